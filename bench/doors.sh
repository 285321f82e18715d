#!/bin/sh
# B6: requests per second through NBD and vhost-user, against nbdkit's memory plugin and qemu-storage-daemon on a file in
# memory, in turns on one machine. Servers have their data in /dev/shm. Prints a table of medians and their ratios.
# Use: bench/doors.sh [ROUNDS]         (FLASHLANE, B6: other binaries; MS: milliseconds of each row; WARM: of each
# door before that)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
release=${CARGO_TARGET_DIR:-$root/target}/release
flashlane=${FLASHLANE:-$release/flashlane}
b6=${B6:-$release/examples/b6}
rounds=${1:-3}
dir=$(mktemp -d /dev/shm/flashlane-doors.XXXXXX)
pids=
trap 'kill $pids 2>/dev/null; wait; rm -rf "$dir"' EXIT
cd "$dir"

"$flashlane" drive create d.img --preset peers-16g --set geometry.chunks_per_pu=28 >/dev/null
"$flashlane" lnvm create d.img -n db -t pblk >/dev/null
truncate -s 1G ram
"$flashlane" serve d.img --target db --null-latency --nbd unix:ours.nbd --vhost-user ours.vhost </dev/null >serve.out 2>serve.err &
pids="$pids $!"
nbdkit -f -U theirs.nbd memory 1G </dev/null >/dev/null 2>&1 &
pids="$pids $!"
qemu-storage-daemon --blockdev driver=file,filename=ram,node-name=ram,cache.direct=off \
    --export type=vhost-user-blk,id=x,node-name=ram,addr.type=unix,addr.path=theirs.vhost,writable=on </dev/null >/dev/null 2>&1 &
pids="$pids $!"
for name in ours.nbd ours.vhost theirs.nbd theirs.vhost; do
    for _ in $(seq 100); do
        [ -S "$name" ] && break
        sleep 0.1
    done
    [ -S "$name" ] || { echo "doors: $name: nobody listens" >&2; cat serve.err >&2; exit 1; }
done

# All doors of both for so many milliseconds each, or one row of them.
measure() {
    for who in ours theirs; do
        for door in nbd vhost; do
            kind=$door
            [ "$door" = vhost ] && kind=vhost-user
            export=
            [ "$who" = ours ] && export=db
            "$b6" "$kind" "$who.$door" "$1" "$export" ${2:-} | sed "s/^/$door $who /"
        done
    done
}

# First every page of the servers' memory is written: on a virtual machine the first touch of a page can cost more
# than all else.
measure "${WARM:-5000}" 1024/32/write >/dev/null
for round in $(seq "$rounds"); do
    measure "${MS:-1000}" >>rows
done
awk '
    { key = $1 " " $3 " " $4 ", " $5 " " $6 ", " $7; all[key, $2] = all[key, $2] " " $8; if (!(key in seen)) { seen[key] = 1; order[++n] = key } }
    function median(text,   v, count, i, j, t) {
        count = split(text, v, " ")
        for (i = 1; i <= count; i++) for (j = i + 1; j <= count; j++) if (v[j] + 0 < v[i] + 0) { t = v[i]; v[i] = v[j]; v[j] = t }
        return v[int((count + 1) / 2)]
    }
    END {
        print "| door | flashlane | the other | ratio |"; print "|---|---|---|---|"
        for (i = 1; i <= n; i++) {
            a = median(all[order[i], "ours"]); b = median(all[order[i], "theirs"])
            printf "| %s | %d | %d | %.2f |\n", order[i], a, b, a / b
        }
    }' rows
