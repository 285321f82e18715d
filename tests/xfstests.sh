#!/bin/sh
# xfstests on ParaFS: XFSTESTS=DIRECTORY sh tests/xfstests.sh [WHAT FOR ITS check...]     (default: -g generic/auto)
# XFSTESTS is a built checkout; FLASHLANE another binary; SIZE=256 more chunks of each channel (2 MiB each, 8 channels). Needs root.
# For the time of the run /sbin/mount.fuse.parafs is the helper beside this script (README.fuse of xfstests says how FUSE is tested).
set -u

root=$(cd "$(dirname "$0")/.." && pwd)
bin=$(realpath "${FLASHLANE:-$root/target/release/flashlane}")
helper=/sbin/mount.fuse.parafs
if [ ! -x "${XFSTESTS:-}/check" ]; then
    exec sh "$root/tests/skip.sh" note xfstests "XFSTESTS names no built checkout of xfstests"
fi
[ "$(id -u)" = 0 ] || exec sh "$root/tests/skip.sh" note xfstests "not root"
[ ! -e $helper ] || { echo "FAIL  xfstests: there is a $helper; move it away" && exit 1; }
dir=$(mktemp -d)
leave() {
    for at in test scratch; do umount "$dir/$at" 2>/dev/null || umount -l "$dir/$at" 2>/dev/null; done
    rm -f $helper
    rm -rf "$dir"
}
trap leave EXIT
trap 'exit 130' INT TERM
cp "$root/tests/mount.fuse.parafs" $helper && chmod 755 $helper "$dir"
for at in test scratch; do
    mkdir "$dir/$at"
    "$bin" drive create "$dir/$at.img" --preset parafs --set geometry.channels=8 --set "geometry.chunks_per_pu=${SIZE:-256}" >/dev/null || exit 1
    "$bin" mkfs "$dir/$at.img" >/dev/null || exit 1
done
[ $# -gt 0 ] || set -- -g generic/auto
export FLASHLANE="$bin" FSTYP=fuse FUSE_SUBTYP=.parafs
export TEST_DEV="$dir/test.img" TEST_DIR="$dir/test" SCRATCH_DEV="$dir/scratch.img" SCRATCH_MNT="$dir/scratch"
export MOUNT_OPTIONS="-o rw" TEST_FS_MOUNT_OPTS="-o rw"
mount -t fuse.parafs "$TEST_DEV" "$TEST_DIR" || exit 1
cd "$XFSTESTS" || exit 1
./check "$@"
code=$?
for at in test scratch; do
    umount "$dir/$at" 2>/dev/null
    for _ in $(seq 100); do
        "$bin" fsck "$dir/$at.img" >"$dir/out" 2>&1
        grep -q "in use" "$dir/out" || break
        sleep 0.1
    done
    tail -n 1 "$dir/out" | sed "s/^/      fsck of $at: /"
    grep -q "nothing wrong found" "$dir/out" || code=1
done
exit $code
