#!/bin/sh
# ParaFS as a directory: pjdfstest, and fsx with a million operations, both from their crates.
# Use: sh tests/posix.sh             (FLASHLANE=path/to/flashlane for another binary)
#      OPS=20000 sh tests/posix.sh   fewer operations of fsx
#      TOOLS=DIR                     where fsx and pjdfstest are (`make posix` installs them into target/tools/bin)
# Needs root and /dev/fuse.
set -u

root=$(cd "$(dirname "$0")/.." && pwd)
bin=$(realpath "${FLASHLANE:-$root/target/release/flashlane}")
tools=${TOOLS:-${CARGO_TARGET_DIR:-$root/target}/tools/bin}
for tool in fsx pjdfstest; do
    [ -x "$tools/$tool" ] || { echo "FAIL  posix: no $tools/$tool: run \`make posix\`"; exit 1; }
done
# Each fsync commits the image: in memory that is soon done.
[ ! -d /dev/shm ] || TMPDIR=${TMPDIR:-/dev/shm}
export TMPDIR
dir=$(mktemp -d)
server=
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
    echo "FAIL  posix: $*"
    exit 1
}
"$bin" drive create my.img --preset parafs --set geometry.channels=8 --set geometry.chunks_per_pu=64 >/dev/null || exit 1
"$bin" mkfs my.img >/dev/null || exit 1
"$bin" mount my.img mnt --null-latency >ready 2>said </dev/null &
server=$!
for _ in $(seq 100); do
    ! grep -q ^ready ready || break
    sleep 0.05
done
grep -q ^ready ready || fail "$(cat said)"
# What this machine has no second file system for, and remounts, are skipped by pjdfstest itself, by name.
cat >pjd.toml <<'T'
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
T
timeout 600 "$tools/pjdfstest" -c pjd.toml -p "$dir/mnt" >pjd.out 2>&1
tail -n 1 pjd.out | sed 's/^/      pjdfstest: /'
grep -q "^Summary: 0 failed" pjd.out || { grep -i "fail" pjd.out | head -n 20; fail pjdfstest; }
began=$(date +%s)
timeout 3000 "$tools/fsx" -N "${OPS:-1000000}" mnt/fsx >fsx.out 2>&1 || { tail -n 20 fsx.out; fail fsx; }
grep -q "A-OK" fsx.out || fail "fsx: $(tail -n 1 fsx.out)"
echo "ok    fsx: ${OPS:-1000000} operations in $(($(date +%s) - began)) s"
fusermount3 -u mnt || fail "umount"
wait "$server" || fail "the mount ends with $?"
server=
"$bin" fsck my.img || fail "fsck"
echo "posix: all good"
