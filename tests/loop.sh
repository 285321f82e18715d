# What tests/fuse.sh and tests/databases.sh have in common: a target as a file by FUSE, and a loop device on it. Read by
# them, not run. They set `tools` and `packages`, and `case` before each part.
. "$(dirname "$0")/binary.sh"
PATH=$PATH:/usr/sbin:/sbin

if [ "$(id -u)" -ne 0 ] || ! [ -c /dev/fuse ] || [ -z "$(losetup -f 2>/dev/null)" ]; then
    sh "$root/tests/skip.sh" note fuse-loop "not root, no /dev/fuse, or no loop devices here"
    exit 0
fi

dir=$(mktemp -d) || exit 2
server= others= loop=
leave() {
    for process in $others; do kill -9 "$process" 2>/dev/null; done
    umount -l "$dir/mnt" 2>/dev/null
    [ -z "$loop" ] || losetup -d "$loop" 2>/dev/null
    [ -z "$server" ] || kill -9 "$server" 2>/dev/null
    wait
    umount -l "$dir/disk" 2>/dev/null
    rm -rf "$dir"
}
trap leave EXIT
trap 'exit 130' INT TERM PIPE
cd "$dir" || exit 2
mkdir mnt

bad=0
fail() {
    bad=$((bad + 1))
    echo "FAIL  $*"
}
# good WHAT COMMAND...: runs it for two minutes at most, says whether it ended well.
good() {
    what=$1
    shift
    if timeout 120 "$@" >out 2>err </dev/null; then
        echo "ok    $what"
    else
        fail "$what (exit $?)"
        tail -n 5 out err 2>/dev/null | sed 's/^/      | /'
    fi
}
# begin OPTION...: serves it, with these options too.
begin() {
    : >ready # an earlier server said so, too
    "$bin" serve my.img --target db --fuse-file disk --nbd unix:db.sock --null-latency "$@" >ready 2>said </dev/null &
    server=$!
    says_ready fuse:disk
}
# says_ready WHAT: it says so within ten seconds, or the script ends.
says_ready() {
    for _ in $(seq 200); do
        grep -q "^ready $1\$" ready && return
        sleep 0.05
    done
    echo "FAIL  the server is not ready: $(cat said)"
    exit 1
}
# attach SECTOR_SIZE
attach() {
    loop=$(losetup -f --show --direct-io=on --sector-size "$1" disk) || {
        echo "FAIL  no loop device on the file"
        exit 1
    }
}
detach() {
    good "$case: the loop device goes" losetup -d "$loop"
    loop=
}
ends_well() {
    kill -TERM "$server"
    if wait "$server"; then echo "ok    $case: ends well"; else fail "$case: ends with $?: $(cat said)"; fi
    server=
}
