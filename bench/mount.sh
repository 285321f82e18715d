#!/bin/sh
# B7: what a ParaFS mount costs, beside passthroughs of FUSE on tmpfs, in turns on one machine; and the same in process.
# All data lie in /dev/shm. Prints medians in operations per second, and what ours comes to over each of the others.
# Before: cargo build --release -p flashlane; cargo build --release -p flashlane-testkit --example b7
# Use: bench/mount.sh [ROUNDS]           (FLASHLANE, B7, PASSTHROUGH: other binaries; LOOPS: rounds in each, the best
# of them counts)
# Others: `alike` and `plain` are passthrough_ll, libfuse's own example, with the options of our mount and with its
# defaults; `bindfs` has its defaults, and is left out where it is not installed. Debian has the first as a source in
# libfuse3-dev. A request's time is most of all where client and server run: `chrt -f 1
# bench/mount.sh` has them on CPUs of their own, `taskset -c 1 bench/mount.sh` on one. Both at once do not end.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
release=${CARGO_TARGET_DIR:-$root/target}/release
flashlane=${FLASHLANE:-$release/flashlane}
b7=${B7:-$release/examples/b7}
passthrough=${PASSTHROUGH:-}
for name in flashlane b7 passthrough; do
    eval "path=\$$name"
    case $path in /* | '') ;; *) eval "$name=\$PWD/\$path" ;; esac
done
for tool in "$flashlane" "$b7" fusermount3; do
    command -v "$tool" >/dev/null 2>&1 || { echo "mount: there is no $tool" >&2; exit 1; }
done
rounds=${1:-3}
dir=$(mktemp -d /dev/shm/flashlane-mount.XXXXXX)
pids=
leave() {
    for name in ours alike plain bindfs; do
        fusermount3 -uz "$dir/$name" 2>/dev/null || true
    done
    # shellcheck disable=SC2086
    [ -z "$pids" ] || kill $pids 2>/dev/null || true
    wait
    rm -rf "$dir"
}
trap leave EXIT
trap 'exit 130' INT TERM
cd "$dir"
# A passthrough holds each file that the kernel knows.
ulimit -n "$(ulimit -H -n)"

if [ -z "$passthrough" ]; then
    source=/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c
    [ -f "$source" ] || { echo "mount: no $source: install libfuse3-dev, or set PASSTHROUGH" >&2; exit 1; }
    passthrough=$dir/passthrough_ll
    # shellcheck disable=SC2046
    cc -O2 $(pkg-config --cflags fuse3) "$source" -o "$passthrough" $(pkg-config --libs fuse3)
fi
# mounted NAME COMMAND...: begins it, and waits until it is there.
mounted() {
    name=$1
    shift
    mkdir -p "$name" "$name.on"
    "$@" </dev/null >"$name.out" 2>&1 &
    pids="$pids $!"
    for _ in $(seq 100); do
        grep -q " $dir/$name " /proc/mounts && break
        sleep 0.1
    done
    grep -q " $dir/$name " /proc/mounts || { echo "mount: $name is not mounted" >&2; cat "$name.out" >&2; exit 1; }
}
"$flashlane" drive create d.img --preset parafs --set geometry.channels=4 --set geometry.chunks_per_pu=256 >/dev/null
"$flashlane" mkfs d.img >/dev/null
mounted ours "$flashlane" mount d.img ours --null-latency
# As fuse.rs: two threads, each with its own device; the kernel keeps names and attributes, hands writes on at once,
# and checks permissions.
mounted alike "$passthrough" -f -o "source=$dir/alike.on,cache=always,timeout=86400" \
    -o clone_fd,max_threads=2,default_permissions,allow_other alike
mounted plain "$passthrough" -f -o "source=$dir/plain.on" plain
others="alike plain"
if command -v bindfs >/dev/null; then
    mounted bindfs bindfs -f bindfs.on bindfs
    others="$others bindfs"
fi

for round in $(seq "$rounds"); do
    for who in ours $others; do
        timeout -s KILL 120 "$b7" folder "$who" "${LOOPS:-3}" >out
        sed "s/^/$who	/" out >>rows
    done
    timeout -s KILL 120 "$b7" process "${LOOPS:-3}" >out
    sed "s/^/process	/" out >>rows
    echo "round $round of $rounds" >&2
done
awk -F '\t' -v others="$others" '
    { all[$2, $1] = all[$2, $1] " " $3; if (!($2 in seen)) { seen[$2] = 1; order[++n] = $2 } }
    function median(text,   v, count, i, j, t) {
        count = split(text, v, " ")
        for (i = 1; i <= count; i++) for (j = i + 1; j <= count; j++) if (v[j] + 0 < v[i] + 0) { t = v[i]; v[i] = v[j]; v[j] = t }
        return v[int((count + 1) / 2)]
    }
    END {
        count = split(others, other, " ")
        head = "| operations/s | ours"; line = "|---|---"
        for (j = 1; j <= count; j++) { head = head " | " other[j] " | ratio"; line = line "|---|---" }
        print head " | in process | over ours |"; print line "|---|---|"
        for (i = 1; i <= n; i++) {
            a = median(all[order[i], "ours"]); p = median(all[order[i], "process"])
            text = sprintf("| %s | %d", order[i], a)
            for (j = 1; j <= count; j++) { b = median(all[order[i], other[j]]); text = text sprintf(" | %d | %.2f", b, a / b) }
            printf "%s | %d | %.1f |\n", text, p, p / a
        }
    }' rows
