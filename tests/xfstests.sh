#!/bin/sh
# xfstests on a mounted ParaFS: XFSTESTS=DIRECTORY sh tests/xfstests.sh [TEST...]
# A TEST is `generic/001`; without one it runs every test of `generic`. It needs root.
#
# XFSTESTS names a built checkout of the unmodified suite. Each test runs alone, in namespaces of its
# own for processes and mounts: the end of the test ends all that it started. A test that needs longer
# than LIMIT (200) seconds is killed, with the daemons of its mounts. Behind each test `flashlane fsck`
# looks through both images. The run ends with a table: test, result, seconds, fsck, remark.
#
# tests/xfstests-expected lists tests that fail for a reason that it states. The run fails for any
# other test that fails or does not end, and for each image in which fsck finds something.
#
# Variables: FLASHLANE names another program than target/release/flashlane; SIZE (256) is the number of
# 2 MiB chunks in each of the 8 channels of an image; RESULTS (target/xfstests) is the folder for the
# table and for what the suite writes; OPTIONS are further options of the mount.
set -u

root=$(cd "$(dirname "$0")/.." && pwd)
bin=$(realpath "${FLASHLANE:-$root/target/release/flashlane}")
helper=/sbin/mount.fuse.parafs

# What the script starts for each test, as process 1 of a namespace: the suite's `check` of one test.
if [ "${1:-}" = --one ]; then
    # Processes have the same numbers in every such namespace, and the suite names its files by them.
    mount --bind "$TEST_DIR/../tmp" /tmp
    (cd "$XFSTESTS" && ./check "$2")
    umount "$SCRATCH_MNT" 2>/dev/null
    umount "$TEST_DIR" 2>/dev/null || umount -l "$TEST_DIR"
    # Process 1 must not end before the daemons have: its end kills them.
    for image in "$TEST_DEV" "$SCRATCH_DEV"; do
        for _ in $(seq 300); do
            "$FLASHLANE" fsck "$image" 2>&1 | grep -q "in use" || break
            sleep 0.1
        done
    done
    exit 0
fi

skip() {
    exec sh "$root/tests/skip.sh" note xfstests "$1"
}
[ -x "${XFSTESTS:-}/check" ] || skip "XFSTESTS names no built checkout of xfstests"
XFSTESTS=$(realpath "$XFSTESTS")
[ "$(id -u)" = 0 ] || skip "not root"
for user in fsgqa fsgqa2 123456-fsgqa; do
    id "$user" >/dev/null 2>&1 || skip "there is no user $user (useradd --badname -m $user)"
done
if [ -e $helper ] && ! cmp -s "$root/tests/mount.fuse.parafs" $helper; then
    echo "FAIL  xfstests: there is another $helper; move it away"
    exit 1
fi

dir=$(mktemp -d /var/tmp/parafs-xfstests.XXXXXX)
had_helper=$(test -e $helper && echo yes)
leave() {
    [ "$had_helper" = yes ] || rm -f $helper
    rm -rf "$dir"
}
trap leave EXIT
trap 'exit 130' INT TERM
[ "$had_helper" = yes ] || cp "$root/tests/mount.fuse.parafs" $helper
chmod 755 $helper "$dir"

# make IMAGE: an empty file system.
make() {
    rm -f "$dir/$1.img"
    "$bin" drive create "$dir/$1.img" --preset parafs --set geometry.channels=8 \
        --set "geometry.chunks_per_pu=${SIZE:-256}" >/dev/null || exit 1
    "$bin" mkfs "$dir/$1.img" >/dev/null || exit 1
}

for at in test scratch; do
    mkdir "$dir/$at"
    make $at
done

mkdir -m 1777 "$dir/tmp"
# The suite takes FUSE file systems of the type `fuse` only; df says `fuse.parafs`.
mkdir "$dir/bin"
cat >"$dir/bin/df" <<END
#!/bin/bash
set -o pipefail
$(command -v df) "\$@" | sed "s/fuse\\.parafs/fuse/"
END
chmod 755 "$dir/bin" "$dir/bin/df"
export PATH="$dir/bin:$PATH"

results=${RESULTS:-$root/target/xfstests}
mkdir -p "$results"
export RESULT_BASE="$results" XFSTESTS FLASHLANE="$bin" FSTYP=fuse FUSE_SUBTYP=.parafs
# The suite's word for namespaces of this kind.
export FSTESTS_ISOL=privatens
export TEST_DEV="$dir/test.img" TEST_DIR="$dir/test"
export SCRATCH_DEV="$dir/scratch.img" SCRATCH_MNT="$dir/scratch"
export TEST_FS_MOUNT_OPTIONS="rw${OPTIONS:+,$OPTIONS}"
export MOUNT_OPTIONS="-o $TEST_FS_MOUNT_OPTIONS" TEST_FS_MOUNT_OPTS="-o $TEST_FS_MOUNT_OPTIONS"
[ $# -gt 0 ] || set -- $(cd "$XFSTESTS/tests" && ls -d generic/[0-9][0-9][0-9])

# The first line of tests/xfstests-expected for a test, without the test.
reason() {
    sed -n "s,^$1  *,,p" "$root/tests/xfstests-expected" | head -n 1
}

# verdict TEST SAID ENDED: what became of a test: pass, fail, not run, or killed.
verdict() {
    if [ "$3" != 0 ]; then
        echo killed
    elif grep -q "^Failures:.*$1" "$2"; then
        echo fail
    elif grep -q "^Not run:.*$1" "$2"; then
        echo "not run"
    elif grep -q "^Passed all" "$2"; then
        echo pass
    else
        echo fail
    fi
}

# check IMAGE: what fsck says of it in a word; its whole answer goes to the results.
check() {
    "$bin" fsck "$dir/$1.img" >"$dir/fsck" 2>&1
    if grep -q "nothing wrong found" "$dir/fsck"; then
        echo clean
    else
        mkdir -p "$results/fsck"
        cp "$dir/fsck" "$results/fsck/$(basename "$test").$1"
        make "$1"
        echo "WRONG in $1"
    fi
}

table=$results/table.txt
: >"$table"
code=0
for test in "$@"; do
    began=$(date +%s)
    timeout -s KILL "${LIMIT:-200}" \
        unshare --mount --pid --fork --kill-child --mount-proc sh "$0" --one "$test" \
        >"$dir/said" 2>&1 </dev/null
    result=$(verdict "$test" "$dir/said" $?)
    rm -rf "$dir/tmp/"* "$dir/tmp/".[!.]*
    seconds=$(($(date +%s) - began))
    cp "$dir/said" "$results/$(echo "$test" | tr / -).said"
    found=$(check test)
    [ "$found" != clean ] || found=$(check scratch)
    [ "$found" = clean ] || code=1
    expected=$(reason "$test")
    remark=
    case $result in
    pass) [ -z "$expected" ] || remark="passes although it is listed: $expected" ;;
    "not run") remark=$(head -n 1 "$results/$test.notrun" 2>/dev/null) ;;
    *)
        remark=$expected
        if [ -z "$expected" ]; then
            remark="NOT LISTED"
            code=1
        fi
        ;;
    esac
    printf '%s | %s | %s | %s | %s\n' "$test" "$result" $seconds "$found" "$remark" | tee -a "$table"
done

for result in pass fail "not run" killed; do
    echo "$result: $(grep -c "| $result |" "$table")"
done
[ $code = 0 ] && echo "PASS  xfstests" || echo "FAIL  xfstests"
exit $code
