# What scripts about a mounted ParaFS share: `name=NAME`, then `. tests/parafs-mounted.sh`, in a script with `set -u`.
# It makes a directory of its own, `$dir`, goes there, and cleans up at the end. Each of them fails by `fail`.
root=$(cd "$(dirname "$0")/.." && pwd)
bin=$(realpath "${FLASHLANE:-$root/target/release/flashlane}")
dir=$(mktemp -d)
server=
failed=0
leave() {
    fusermount3 -uz "$dir/mnt" 2>/dev/null
    [ -z "$server" ] || kill -9 "$server" 2>/dev/null
    rm -rf "$dir"
}
trap leave EXIT
trap 'exit 130' INT TERM
cd "$dir" || exit 1
mkdir mnt
chmod 755 "$dir" # other users are tried, too

fail() {
    echo "FAIL  $name: $*"
    failed=$((failed + 1))
}
# must WHAT COMMAND...: it ends well.
must() {
    what=$1
    shift
    timeout "${LIMIT:-120}" "$@" >out 2>err </dev/null && return
    fail "$what (exit $?)"
    tail -n 5 out err | sed 's/^/      | /'
}
# begin [OPTION...]: mounts my.img.
begin() {
    : >ready
    "$bin" mount my.img mnt --null-latency "$@" >ready 2>said </dev/null &
    server=$!
    for _ in $(seq 100); do
        grep -q "^ready $dir/mnt$" ready && return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.05
    done
    return 1
}
# The same; a machine that can't skips the script.
begin_or_skip() {
    begin && return
    if grep -q "can't be mounted there" said; then
        sh "$root/tests/skip.sh" note fuse "$(head -n 1 said)"
        exit 0
    fi
    fail "mount: $(head -n 1 said)"
    exit 1
}
# Unmounts it, and has it checked.
end() {
    must "umount" fusermount3 -u mnt
    wait "$server" || fail "the mount ends with $?"
    server=
    must "fsck" "$bin" fsck my.img
    grep -q "nothing wrong found" out || fail "fsck: $(tail -n 1 out)"
}
all_good() {
    [ $failed = 0 ] || exit 1
    echo "$name: all good"
}
