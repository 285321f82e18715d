#!/bin/sh
# A target as a file by FUSE, with a loop device and a file system of this kernel on it: fio, discards, a kill under
# load.
# Use: sh tests/fuse.sh              (FLASHLANE=path/to/flashlane for another binary)
#      sh tests/fuse.sh all          every file system on every type of target, for longer
# Installs tools where it may (root and apt), else skips what needs them by name (`fuse-tools`); `fuse-loop` is skipped
# where the kernel or this user has no FUSE or no loop devices.
set -u

tools="losetup fstrim mkfs.ext4 mkfs.xfs mkfs.btrfs fusermount3 fio"
packages="fuse3 e2fsprogs xfsprogs btrfs-progs mount util-linux fio"
. "$(dirname "$0")/loop.sh"
if ! has_tools; then
    sh "$root/tests/skip.sh" note fuse-tools "not all of $tools are here, and they can't be installed (root and apt)"
    exit 0
fi

# What is done, and how many records are synced under load before a kill.
cases="ext4:pblk:512 xfs:qblk:512 btrfs:pftl:4096 ext4:slc-tlc:4096"
records=20
if [ "${1:-}" = all ]; then
    cases=
    for fs in ext4 xfs btrfs; do
        for kind in pblk qblk pftl slc-tlc; do cases="$cases $fs:$kind:512 $fs:$kind:4096"; done
    done
    records=200
fi
for fs in ext4 xfs btrfs; do
    grep -qw $fs /proc/filesystems || modprobe $fs 2>/dev/null
    grep -qw $fs /proc/filesystems && continue
    sh "$root/tests/skip.sh" note "fuse-loop" "this kernel has no $fs"
    exit 0
done

fsck_clean() {
    case $fs in
        ext4) good "$case: fsck finds nothing" e2fsck -fn "$loop" ;;
        xfs) good "$case: xfs_repair finds nothing" xfs_repair -n "$loop" ;;
        btrfs) good "$case: btrfs check finds nothing" btrfs check "$loop" ;;
    esac
}
# Lines of a file that is gone, on the whole disk.
marks() { dd if=disk bs=1M 2>/dev/null | LC_ALL=C grep -ac "$mark"; }

write_and_delete() {
    yes "$mark" | head -c 16777216 >mnt/marks
    sync mnt/marks
    rm mnt/marks
    sync -f mnt
}

for case in $cases; do
    fs=${case%%:*} kind=${case#*:}
    sector=${kind#*:} kind=${kind%:*}
    mark="flashlane-$$-$fs-$kind-$sector"
    discard=discard nodiscard=nodiscard
    [ $fs = btrfs ] && discard=discard=sync
    chunks=192
    [ $fs = xfs ] && chunks=448 # it takes no less than 300 MB
    rm -f my.img acked
    good "$case: a drive" "$bin" drive create my.img --preset tiny --set geometry.chunks_per_pu=$chunks
    good "$case: a target" "$bin" lnvm create my.img -n db -t "$kind"
    begin
    attach "$sector"
    # What is discarded is what the file system discards, not mkfs.
    case $fs in
        ext4) good "$case: mkfs" mkfs.ext4 -q -F -E nodiscard -N 1024 "$loop" ;;
        xfs) good "$case: mkfs" mkfs.xfs -q -f -K "$loop" ;;
        btrfs) good "$case: mkfs" mkfs.btrfs -q -f -K "$loop" ;;
    esac
    good "$case: mount" mount -o "$discard" "$loop" mnt
    good "$case: fio writes and verifies" fio --name=v --directory=mnt --rw=randwrite --bs=4k --size=16M --direct=1 \
        --ioengine=libaio --iodepth=16 --verify=crc32c --do_verify=1 --verify_fatal=1
    write_and_delete
    good "$case: umount" umount mnt
    left=$(marks)
    [ "$left" -eq 0 ] || fail "$case: $left lines are left of a file that was deleted and discarded"
    good "$case: mount" mount -o "$nodiscard" "$loop" mnt
    write_and_delete
    left=$(marks)
    [ "$left" -gt 100000 ] || fail "$case: a file that was deleted and not discarded is gone, which proves nothing"
    good "$case: fstrim" fstrim mnt
    good "$case: umount" umount mnt
    left=$(marks)
    [ "$left" -eq 0 ] || fail "$case: $left lines are left of a file that was deleted and trimmed"
    fsck_clean
    detach
    ends_well
    [ ! -e disk ] || fail "$case: the file is still there"
    discarded=$(sed -n 's/.* \([0-9]*\)\.[0-9]* MiB discarded.*/\1/p; s/.* [0-9.]* GiB discarded.*/1024/p' said)
    if [ "${discarded:-0}" -ge 32 ]; then echo "ok    $case: the FTL has $discarded MiB discarded"; else
        fail "$case: the FTL counts no discards: $(cat said)"
    fi

    # Killed under load: each record that was synced is there.
    begin
    attach "$sector"
    good "$case: mount" mount "$loop" mnt
    fio --name=load --directory=mnt --rw=randwrite --bs=4k --size=16M --fsync=8 --time_based --runtime=60 \
        >/dev/null 2>&1 </dev/null &
    fio=$!
    (
        record=0
        while printf '%0511d\n' $record |
            dd of=mnt/log bs=512 iflag=fullblock oflag=append conv=notrunc,fsync 2>/dev/null; do
            echo $record >>acked
            record=$((record + 1))
        done
    ) 2>/dev/null &
    writer=$!
    others="$fio $writer"
    for _ in $(seq 1200); do
        [ "$(tail -n 1 acked 2>/dev/null || echo 0)" -ge $records ] 2>/dev/null && break
        sleep 0.05
    done
    kill -9 "$server"
    wait "$server" 2>/dev/null
    wait "$writer" 2>/dev/null
    kill -9 "$fio" 2>/dev/null
    wait "$fio" 2>/dev/null
    server= others=
    umount mnt || umount -l mnt
    detach
    good "$case: check, behind a kill" "$bin" drive check my.img
    # The mount that it has left is cleared away.
    begin
    attach "$sector"
    good "$case: mount, behind a kill" mount "$loop" mnt
    last=$(tail -n 1 acked 2>/dev/null)
    [ "${last:-0}" -ge $records ] || fail "$case: ${last:-0} records were synced in a minute, which proves little"
    if seq -f '%0511.0f' 0 "${last:-0}" | cmp -s -n $(((last + 1) * 512)) - mnt/log; then
        echo "ok    $case: all $((last + 1)) synced records are there"
    else
        fail "$case: of ${last:-0} synced records some are not there"
    fi
    good "$case: umount" umount mnt
    fsck_clean
    detach
    ends_well
    umount -l disk 2>/dev/null && fail "$case: something is still mounted on the file"
    rm -f disk
done

# It ends although a loop device stands on it, says so, and leaves what was synced.
case="in use"
begin
attach 4096
head -c 4194304 /dev/urandom >want
good "$case: a write" dd if=want of="$loop" bs=1M oflag=direct conv=fsync
kill -TERM "$server"
if wait "$server"; then echo "ok    $case: ends well"; else fail "$case: ends with $?"; fi
server=
grep -q "still in use.*$loop" said || fail "$case: the loop device is not named: $(cat said)"
detach
begin
cmp -s -n 4194304 want disk || fail "$case: what was synced is not there"
if command -v nbdcopy >/dev/null 2>&1; then
    good "both doors: nbdcopy" nbdcopy "nbd+unix:///?socket=$dir/db.sock" back
    good "both doors: the same" cmp back disk
fi
ends_well
[ "$bad" -eq 0 ] || { echo "fuse: $bad checks failed" && exit 1; }
echo "fuse: all good"
