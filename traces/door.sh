#!/bin/bash
# Records what this kernel's ext4 asks of a drive of flashlane, at the drive's own door: a target as a file by FUSE, a loop
# device on it. Of what was written the contents of the file system's metadata are kept, and nothing of files.
#
#   door.sh files OUTPUT.parquet    2,000 files of 4 KiB are made by fio and deleted one by one (iDiscard, section IV-B)
#   door.sh rounds OUTPUT           aged, formatted anew, then five rounds of files of 1 MiB until it is full and of
#                                   deleting them (section IV-C), at 1/512 of the paper's sizes: OUTPUT.age.parquet,
#                                   OUTPUT.1.parquet to OUTPUT.5.parquet
#
# The journal is off, and the kernel discards what is deleted (`-o discard`). Needs root, /dev/fuse, loop devices, fio and
# e2fsprogs. Takes a minute, or ten.
#
# TMPDIR     where the drive's image goes (default /tmp; 200 MiB, or 4 GiB)
# FLASHLANE  the program (default flashlane)
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
flashlane=$(realpath "$(command -v "${FLASHLANE:-flashlane}")")

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
if [ $# -ne 2 ] || { [ "$1" != files ] && [ "$1" != rounds ]; }; then
    say "usage: ${0##*/} files OUTPUT.parquet, or ${0##*/} rounds OUTPUT"
    exit 2
fi
recipe=$1 output=$(realpath -m "$2")
for tool in fio mkfs.ext4 e2fsck losetup fusermount3; do
    command -v "$tool" >/dev/null || { say "missing: $tool"; exit 1; }
done

work=$(mktemp -d)
server= loop=
leave() {
    umount -l "$work/mnt" 2>/dev/null || true
    [ -z "$loop" ] || losetup -d "$loop" 2>/dev/null || true
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap leave EXIT
trap 'exit 130' INT TERM
cd "$work"
mkdir mnt

# serve RANGES PERCENT ARGUMENT...: a new drive with so much to spare, of which the contents of these ranges are recorded.
serve() {
    local ranges=$1 percent=$2
    shift 2
    "$flashlane" drive create my.img "$@" >/dev/null
    "$flashlane" lnvm create my.img -n db -t pftl -o "$percent" >/dev/null
    "$flashlane" serve my.img --target db --fuse-file disk --null-latency \
        --record all.parquet --record-content "$ranges" >ready 2>said </dev/null &
    server=$!
    for _ in $(seq 200); do
        ! grep -q '^ready fuse:disk$' ready || break
        sleep 0.05
    done
    began=$(date +%s%N)
    loop=$(losetup -f --show --direct-io=on --sector-size 4096 disk)
}
# Since the recording began, about: phases are a second apart.
now() { echo $((($(date +%s%N) - began) / 1000000))ms; }
# It is unmounted, checked, and the recording is whole.
end() {
    umount mnt
    e2fsck -fn "$loop" >fsck || { cat fsck >&2; exit 1; }
    losetup -d "$loop"
    loop=
    kill -INT "$server"
    wait "$server"
    server=
    cat said >&2
}
# cut_out FROM UNTIL NAME: this part of the recording, with the contents of metadata.
cut_out() {
    "$flashlane" trace idiscard all.parquet "$3" --ghosts watch --from "$1" ${2:+--until "$2"} >&2
}
# make_files COUNT SIZE REQUEST PATTERN: COUNT files of SIZE, written by requests of REQUEST in fio's PATTERN, until it is full.
make_files() {
    ulimit -n 8192
    fio --name=f --directory=mnt --nrfiles="$1" --filesize="$2" --bs="$3" --rw="$4" --ioengine=libaio --iodepth=32 \
        --direct=1 --openfiles=1000 --file_service_type=sequential >fio.log || grep -q ENOSPC fio.log || { cat fio.log >&2; exit 1; }
}
delete_one_by_one() {
    find mnt -name 'f.*' | sort -V | while read -r file; do rm "$file"; done
}

case $recipe in
files)
    serve all 15 --preset disksim
    mkfs.ext4 -q -F -b 4096 -O '^has_journal,^resize_inode' "$loop"
    mount -t ext4 -o discard,noinit_itable "$loop" mnt
    make_files 2000 4k 4k randwrite
    sync -f mnt
    delete_one_by_one
    end
    cut_out 0s "" "$output"
    ;;
rounds)
    # As many sectors as 512 MiB with 7% spare have, of a drive that has more to spare. A file system of that size would
    # have other defaults.
    serve 0B+64MiB 52 --preset 850pro --set geometry.channels=1 --set geometry.pus_per_channel=1 \
        --set geometry.pages_per_block=32 --set geometry.chunks_per_pu=992
    mkfs.ext4 -q -F -T default -b 4096 -O '^has_journal' "$loop"
    mount -t ext4 -o discard,noinit_itable "$loop" mnt
    mib=$(($(df --output=avail -B 1M mnt | tail -n 1) - 1))
    fio --name=age --filename=mnt/age --size="${mib}m" --bs=1m --rw=randwrite --ioengine=libaio --iodepth=32 --direct=1 >fio.log
    umount mnt
    mkfs.ext4 -q -F -T default -b 4096 -O '^has_journal' -E nodiscard "$loop"
    mount -t ext4 -o discard,noinit_itable "$loop" mnt
    sync -f mnt
    sleep 1
    marks=("$(now)")
    sleep 1
    for round in 1 2 3 4 5; do
        say "round $round"
        mib=$(df --output=avail -B 1M mnt | tail -n 1)
        make_files $((mib + 8)) 1m 1m write
        sync -f mnt
        df --output=pcent mnt | tail -n 1 >&2
        delete_one_by_one
        sync -f mnt
        sleep 1
        marks+=("$(now)")
        sleep 1
    done
    end
    cut_out 0s "${marks[0]}" "$output.age.parquet"
    for round in 1 2 3 4 5; do
        until=${marks[$round]}
        [ "$round" != 5 ] || until=
        cut_out "${marks[$((round - 1))]}" "$until" "$output.$round.parquet"
    done
    ;;
esac
say "$output"
