#!/bin/sh
# A target used as a disk by the tools that people use: libnbd's, QEMU's, fio.
# Use: sh tests/serve.sh             (FLASHLANE=path/to/flashlane for another binary)
# Installs the tools where it may (root and apt), else skips what needs them by name (`nbd-tools`).
set -u

. "$(dirname "$0")/binary.sh"
tools="nbdinfo nbdcopy qemu-io qemu-img fio"
packages="libnbd-bin qemu-utils fio"
if ! has_tools || ! fio --enghelp 2>/dev/null | grep -qw nbd; then
    sh "$root/tests/skip.sh" note nbd-tools \
        "no nbdinfo, nbdcopy, qemu-io, or fio with NBD here, and they can't be installed (root and apt)"
    exit 0
fi

dir=$(mktemp -d) || exit 2
server=
leave() {
    [ -z "$server" ] || kill -9 "$server" 2>/dev/null
    rm -rf "$dir"
}
trap leave EXIT
trap 'exit 130' INT TERM
cd "$dir" || exit 2
uri="nbd+unix:///?socket=$dir/db.sock"

bad=0
# good WHAT COMMAND...: runs it for a minute at most, says whether it ended well.
good() {
    what=$1
    shift
    if timeout 60 "$@" >out 2>err </dev/null; then
        echo "ok    $what"
    else
        bad=$((bad + 1))
        echo "FAIL  $what (exit $?)"
        tail -n 5 out err 2>/dev/null | sed 's/^/      | /'
    fi
}
begin() {
    : >ready # an earlier server said so, too
    "$bin" serve my.img --target db --nbd "unix:db.sock" --null-latency >ready 2>said </dev/null &
    server=$!
    for _ in $(seq 100); do
        grep -q ^ready ready && return
        sleep 0.1
    done
    echo "FAIL  the server is not ready: $(cat said)"
    exit 1
}

for kind in pblk qblk pftl slc-tlc; do
    rm -f my.img
    good "$kind: a drive" "$bin" drive create my.img --preset tiny --set geometry.chunks_per_pu=128
    good "$kind: a target" "$bin" lnvm create my.img -n db -t "$kind"
    begin
    good "$kind: nbdinfo" nbdinfo --json "$uri"
    for says in '"can_flush": true' '"can_fua": true' '"can_trim": true' '"can_multi_conn": true' \
        '"can_zero": true' '"block_size_minimum": 4096' '"structured": true'; do
        grep -qF "$says" out || { bad=$((bad + 1)) && echo "FAIL  $kind: nbdinfo has no $says"; }
    done
    head -c 8388608 /dev/urandom >random
    good "$kind: nbdcopy to it" nbdcopy --flush random "$uri"
    good "$kind: nbdcopy from it" nbdcopy "$uri" back
    good "$kind: it is the same" cmp -n 8388608 random back
    good "$kind: qemu-img compares" qemu-img compare -f raw -F raw back "$uri"
    good "$kind: qemu-io" qemu-io -f raw -c 'write -P 7 0 1M' -c 'discard 0 1M' -c 'read -P 0 0 1M' \
        -c 'write -P 9 8192 4096' -c 'write -z 0 1M' -c 'read -P 0 0 1M' -c flush "$uri"
    good "$kind: nothing is left" qemu-io -f raw -c 'discard 0 8M' -c 'write -P 5 8192 4096' "$uri"
    good "$kind: what is allocated" nbdinfo --map "$uri"
    awk '{ print $1, $2, $3 }' out | head -n 2 >map
    printf '0 8192 3\n8192 4096 0\n' | cmp - map || { bad=$((bad + 1)) && echo "FAIL  $kind: its map: $(cat map)"; }
    good "$kind: fio writes and verifies" fio --name=v --ioengine=nbd --uri="$uri" --rw=randwrite --bs=4k \
        --size=12M --iodepth=32 --verify=crc32c --do_verify=1 --verify_fatal=1 --fsync=64
    # fio's last writes come behind its last fsync.
    good "$kind: a flush" qemu-io -f raw -c flush "$uri"
    # Killed under load: what was flushed is there.
    fio --name=load --ioengine=nbd --uri="$uri" --rw=randwrite --bs=4k --offset=12M --size=8M --iodepth=16 \
        --time_based --runtime=30 >/dev/null 2>&1 </dev/null &
    load=$!
    sleep 0.5
    kill -9 "$server"
    wait "$server" 2>/dev/null
    wait "$load"
    good "$kind: check, behind a kill" "$bin" drive check my.img
    begin
    good "$kind: fio finds what it flushed" fio --name=v --ioengine=nbd --uri="$uri" --rw=randwrite --bs=4k \
        --size=12M --iodepth=32 --verify=crc32c --verify_only --verify_fatal=1
    kill -TERM "$server"
    if wait "$server"; then echo "ok    $kind: ends well"; else
        bad=$((bad + 1))
        echo "FAIL  $kind: ends with $?: $(cat said)"
    fi
    server=
done
[ "$bad" -eq 0 ] || { echo "serve: $bad checks failed" && exit 1; }
echo "serve: all good"
