#!/bin/sh
# A target used as a virtio disk by kernels: mkfs, writes that are verified, fsck.
# Use: sh tests/vhost.sh             user-mode Linux, a second or two for each type of target
#      sh tests/vhost.sh qemu        QEMU by emulation, with a target over vhost-user and one over NBD, whose server is
#                                    killed under load: a minute
# The kernel of user-mode Linux is the one of tests/uml.sh, which is skipped by name (`uml`) where there is none. QEMU
# and Debian's kernel are installed where that may be done (root and apt), else that is skipped (`qemu`).
# FLASHLANE=path/to/flashlane for another binary.
set -u

. "$(dirname "$0")/binary.sh"
skip() {
    sh "$root/tests/skip.sh" note "$1" "$2"
    exit 0
}

dir=$(mktemp -d) || exit 2
server=
guest=
leave() {
    for pid in $guest $server; do kill -9 "$pid" 2>/dev/null; done
    rm -rf "$dir"
}
trap leave EXIT
trap 'exit 130' INT TERM
cd "$dir" || exit 2
. "$root/tests/uml.sh"

# Options of `serve` that are no doors.
targets=0
made() {
    rm -f my.img
    "$bin" drive create my.img --preset tiny --set geometry.chunks_per_pu=256 >out &&
        "$bin" lnvm create my.img -n db -t "$1" >out
}
# begin DOORS...: how many doors are ready is waited for.
begin() {
    "$bin" serve my.img "$@" --null-latency >ready 2>said </dev/null &
    server=$!
    for _ in $(seq 100); do
        [ "$(grep -c ^ready ready)" -ge $(($# / 2 - targets)) ] && return
        sleep 0.1
    done
    echo "FAIL  the server is not ready: $(cat said)"
    exit 1
}
ends() {
    kill -TERM "$server"
    wait "$server"
    ended=$?
    server=
    [ "$ended" -eq 0 ] || { cat said && return 1; }
}
# said WHAT TEXT: the guest said it, on a line of its own.
said() {
    ok "$1" grep -q "^$2" guest.log
}

# What every guest does with its disk.
cat >steps <<'END'
echo # behind what the firmware has printed
echo "cache $(cat /sys/block/vda/queue/write_cache)"
echo "sector $(cat /sys/block/vda/queue/logical_block_size)"
echo "discard $(cat /sys/block/vda/queue/discard_max_bytes)"
mkfs.ext4 -q -F /dev/vda </dev/null && mount -t ext4 -o discard /dev/vda $m && echo mounted
dd if=/dev/urandom of=$m/f bs=1M count=24 conv=fsync 2>/dev/null
before=$(sha256sum <$m/f)
umount $m
echo 3 >/proc/sys/vm/drop_caches
mount -t ext4 /dev/vda $m
[ "$before" = "$(sha256sum <$m/f)" ] && echo same
rm $m/f && fstrim $m && echo trimmed
END

uml() {
    unpack
    for tool in mkfs.ext4 fsck.ext4 fstrim; do
        PATH=$PATH:/usr/sbin:/sbin command -v $tool >/dev/null 2>&1 || skip uml "there is no $tool here"
    done
    # The guest's files are in a tmpfs over /tmp, which hides whatever this machine has there: this tree, perhaps. The
    # program that the guest runs, if any, is opened before, and run by its descriptor.
    begins() {
        echo '#!/bin/sh'
        echo 'PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin m=/tmp/m'
        echo 'mount -t proc p /proc; mount -t sysfs s /sys'
        [ $# -eq 0 ] || echo "exec 3<'$1' && worker=/proc/self/fd/3"
        echo 'mount -t tmpfs t /tmp; mkdir $m'
        echo 'mount -t devtmpfs d /dev 2>/dev/null'
    }
    {
        begins
        cat steps
        cat <<'END'
if command -v fio >/dev/null; then
    fio --name=v --directory=$m --size=24M --rw=randwrite --bs=4k --ioengine=libaio --direct=1 --iodepth=16 \
        --verify=crc32c --do_verify=1 --verify_fatal=1 --fsync=256 >/tmp/fio 2>&1 && echo verified || cat /tmp/fio
fi
umount $m && fsck.ext4 -fn /dev/vda >/tmp/fsck 2>&1 && echo sound || cat /tmp/fsck
echo o >/proc/sysrq-trigger
sleep 5
END
    } >init
    chmod +x init
    for kind in pblk qblk pftl slc-tlc; do
        ok "$kind: a drive and a target" made $kind
        begin --vhost-user disk.sock
        boot init
        said "$kind: it has a cache" "cache write back"
        said "$kind: sectors of 4096 bytes" "sector 4096"
        said "$kind: it can discard" "discard 4294967296"
        said "$kind: ext4" mounted
        said "$kind: what was written is there" same
        said "$kind: fstrim" trimmed
        command -v fio >/dev/null 2>&1 && said "$kind: fio verifies" verified
        said "$kind: fsck" sound
        ok "$kind: it ends well" ends
        [ "$bad" -eq 0 ] || { tail -n 30 guest.log | sed 's/^/      | /' && return; }
    done
    growing
}

# ext4 that grows while it is in use, which takes a capability that root does not have everywhere: iDiscard goes on
# with what it knew, and follows what is new.
growing() {
    worker=${GHOSTS:-${CARGO_TARGET_DIR:-$root/target}/debug/examples/ghosts}
    if ! [ -x "$worker" ]; then
        echo "FAIL  no $worker: cargo build -p flashlane-testkit --example ghosts"
        bad=$((bad + 1))
        return
    fi
    for journal in has_journal ^has_journal; do
        case="ext4 -O $journal that grows"
        {
            begins "$worker"
            echo "journal=$journal"
            cat <<'END'
echo
mkfs.ext4 -q -F -b 4096 -O $journal -g 2048 /dev/vda 24M </dev/null
seed=0
for size in 24 30 41 56; do
    mount -t ext4 -o discard /dev/vda $m || exit
    if [ $size != 24 ]; then
        # Beside the work of a round.
        $worker $m /tmp/notes $seed work >/tmp/round 2>&1 &
        work=$!
        resize2fs /dev/vda ${size}M >/tmp/resize 2>&1 && echo "grown $size" || cat /tmp/resize
        wait $work && echo "worked $size" || cat /tmp/round
        seed=$((seed + 1))
    fi
    for _ in 1 2 3; do
        $worker $m /tmp/notes $seed work >/tmp/round 2>&1 || cat /tmp/round
        seed=$((seed + 1))
    done
    umount $m
    fsck.ext4 -fn /dev/vda >/tmp/fsck 2>&1 && echo "sound $size" || cat /tmp/fsck
done
mount -t ext4 /dev/vda $m
$worker $m /tmp/notes $seed check && echo "all there"
umount $m
echo o >/proc/sysrq-trigger
sleep 5
END
        } >init.grows
        chmod +x init.grows
        ok "$case: a drive and a target" made pblk
        begin --vhost-user disk.sock --idiscard=all
        boot init.grows
        for size in 30 41 56; do
            said "$case: to $size MiB" "grown $size"
            said "$case: beside work" "worked $size"
            said "$case: fsck at $size MiB" "sound $size"
        done
        said "$case: every file" "all there"
        left=$("$bin" top my.img --once --json - | tr ',{}' '\n' |
            sed -n 's/^ *"\(dead_inodes\|zero_inodes\|dead_journal\|zero_bitmap\|freed\|held\)_sectors": *\([1-9][0-9]*\)$/\1/p' | sort | tr '\n' ' ')
        ok "$case: no ghost pages, but $left" [ "$left" = "held " ]
        ok "$case: it ends well" ends
        ok "$case: it is followed on" grep -q "changed, and is followed on" said
        [ "$bad" -eq 0 ] || { tail -n 30 guest.log | sed 's/^/      | /' && return; }
    done
}

qemu() {
    get() { DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -y --no-install-recommends "$@" >/dev/null 2>&1 </dev/null; }
    here() { for tool in qemu-system-x86_64 busybox mkfs.ext4 mkfs.f2fs fio; do command -v $tool || return 1; done; }
    may=$([ "$(id -u)" -eq 0 ] && command -v apt-get)
    PATH=$PATH:/usr/sbin:/sbin
    here >/dev/null || { [ -n "$may" ] && get qemu-system-x86 busybox-static e2fsprogs f2fs-tools fio; }
    here >/dev/null || skip qemu "not all of QEMU, busybox, e2fsprogs, f2fs-tools and fio are here, nor can be installed"
    kept=${CARGO_TARGET_DIR:-$root/target}/guest
    if [ ! -e "$kept/kernel" ] && [ -n "$may" ]; then
        name=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
        timeout 300 apt-get download "$name" >/dev/null 2>&1 && dpkg -x "$name"_*.deb package &&
            mkdir -p "$kept" && mv package/lib/modules/* "$kept/modules" && mv package/boot/vmlinuz-* "$kept/kernel"
    fi
    [ -e "$kept/kernel" ] || skip qemu "no kernel for a guest here, and none can be had (root and apt)"
    mkdir -p ird/bin ird/mod ird/dev ird/proc ird/sys ird/m ird/tmp
    cp "$(command -v busybox)" ird/bin/
    for tool in mkfs.ext4 fsck.ext4 fstrim mkfs.f2fs fsck.f2fs fio; do
        at=$(command -v $tool)
        cp -L "$at" ird/bin/
        for lib in $(ldd "$at" | grep -o '/[^ ]*'); do
            mkdir -p "ird$(dirname "$lib")" && cp -L "$lib" "ird$lib"
        done
    done
    for module in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk crc16 \
        crc32c_generic libcrc32c mbcache jbd2 ext4 crc32_generic zstd_compress lz4_compress lz4hc_compress f2fs; do
        found=$(find "$kept/modules" -name "$module.ko" | head -n 1)
        # What is missing is in the kernel.
        [ -z "$found" ] || { cp "$found" ird/mod/ && echo $module >>ird/mods; }
    done
    {
        echo '#!/bin/busybox sh'
        echo '/bin/busybox --install -s /bin; export PATH=/bin m=/m'
        echo 'mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev'
        echo 'for module in $(cat /mods); do insmod /mod/$module.ko; done; mkdir /n'
        cat steps
        cat <<'END'
echo "queues $(ls /sys/block/vda/mq | wc -l)"
mkfs.f2fs -q /dev/vdb >/tmp/mkfs 2>&1 && mount -t f2fs -o discard /dev/vdb /n && echo f2fs || cat /tmp/mkfs
echo loading
fio --name=v --directory=/n --size=16M --rw=randwrite --bs=4k --ioengine=psync --fsync=64 --verify=crc32c \
    --do_verify=1 --verify_fatal=1 --fallocate=none >/tmp/fio 2>&1 && echo verified || cat /tmp/fio
i=0
while [ $i -lt 40 ]; do
    dd if=/dev/urandom of=/tmp/$i bs=64k count=8 2>/dev/null
    dd if=/tmp/$i of=$m/$i bs=64k conv=fsync 2>/dev/null
    i=$((i + 1))
done
echo loaded
umount $m
echo 3 >/proc/sys/vm/drop_caches
mount -t ext4 /dev/vda $m
i=0
while [ $i -lt 40 ]; do cmp /tmp/$i $m/$i || break; i=$((i + 1)); done
[ $i -eq 40 ] && echo survived
umount $m; fsck.ext4 -fn /dev/vda && echo sound
fstrim /n && echo trimmed by f2fs
umount /n; fsck.f2fs --dry-run /dev/vdb >/tmp/fsck 2>&1 && echo f2fs is sound || cat /tmp/fsck
poweroff -f
END
    } >ird/init
    chmod +x ird/init
    (cd ird && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >initrd
    "$bin" drive create my.img --preset tiny --set geometry.chunks_per_pu=1024 >out &&
        "$bin" lnvm create my.img -n db -t pblk -b 0 -e 1 >out &&
        "$bin" lnvm create my.img -n log -t qblk -b 2 -e 3 >out
    ok "a drive and two targets" [ $? -eq 0 ]
    targets=2
    served="--target db --target log --vhost-user db=disk.sock --nbd unix:disk.nbd"
    # shellcheck disable=SC2086
    begin $served
    timeout 300 qemu-system-x86_64 -accel tcg,thread=multi -cpu max -m 1G -smp 2 -nographic -no-reboot \
        -kernel "$kept/kernel" -initrd initrd -append "console=ttyS0 panic=-1 quiet" \
        -object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem \
        -chardev socket,id=disk,path=disk.sock,reconnect=1 -device vhost-user-blk-pci,chardev=disk,addr=5 \
        -blockdev driver=nbd,node-name=nbd,export=log,reconnect-delay=30,server.type=unix,server.path=disk.nbd,discard=unmap \
        -device virtio-blk-pci,drive=nbd,addr=6,logical_block_size=4096,physical_block_size=4096,discard=on \
        </dev/null 2>qemu.err | tr -d '\r' >guest.log &
    guest=$!
    for _ in $(seq 1500); do
        grep -q ^loading guest.log && break
        sleep 0.1
    done
    # The guest lives on: its requests are done by the next server.
    for _ in 1 2; do
        sleep 0.7
        kill -9 "$server"
        wait "$server" 2>/dev/null
        # shellcheck disable=SC2086
        begin $served
        sleep 1
    done
    wait "$guest"
    guest=
    ok "the server was killed under load" grep -q ^loading guest.log
    for what in "cache write back" "sector 4096" mounted same trimmed "queues 2" f2fs verified loaded survived \
        sound "trimmed by f2fs" "f2fs is sound"; do
        said "QEMU: $what" "$what"
    done
    [ "$bad" -eq 0 ] || tail -n 30 guest.log qemu.err | sed 's/^/      | /'
    ok "it ends well" ends
    ok "check" "$bin" drive check my.img >out
}

case ${1:-uml} in
uml) uml ;;
qemu) qemu ;;
*) sed -n '3,8s/^# //p' "$0" >&2 && exit 2 ;;
esac
[ "$bad" -eq 0 ] || { echo "vhost: $bad checks failed" && exit 1; }
echo "vhost: all good"
