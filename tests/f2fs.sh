#!/bin/sh
# Is `policy = "f2fs"` a straw man? What F2FS of a real kernel writes and trims per call of Filebench, in user-mode
# Linux over vhost-user, beside what the policy writes in virtual time: the same calls, the same files, a disk and
# a page cache of the same sizes. Fails where the policy writes 15% more or less than the kernel as it is mounted
# without options.
# Use: sh tests/f2fs.sh [LOOPS]      of each thread of the file server, 400 without it: minutes
# The kernel is the one of tests/uml.sh; without it, or without f2fs-tools, it is skipped (`f2fs`).
# FLASHLANE=path/to/flashlane for another binary.
set -u

. "$(dirname "$0")/binary.sh"
skip() {
    sh "$root/tests/skip.sh" note f2fs "$2"
    exit 0
}
loops=${1:-400}
dir=$(mktemp -d) || exit 2
server=
trap 'kill -9 $server 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
cd "$dir" || exit 2
. "$root/tests/uml.sh"
unpack
PATH=$PATH:/usr/sbin:/sbin tools=mkfs.f2fs packages=f2fs-tools
has_tools || skip f2fs "there is no mkfs.f2fs here"

# A page cache of which 64 MiB may be dirty. With less than what F2FS keeps of dirty nodes (16 MiB) before it
# writes any, the kernel's writers wait for ever.
dirty=67108864

# kernel PERSONALITY FILES THREADS LOOPS OPTIONS: calls, bytes of users, KiB written, KiB trimmed before and at the
# unmount, commands of that, into the file `row`.
kernel() {
    rm -f my.img ready disk.sock
    : >ready
    "$bin" drive create my.img --preset parafs --set geometry.channels=8 --set geometry.chunks_per_pu=64 >out &&
        "$bin" lnvm create my.img -n db -t pftl >out || exit 2
    "$bin" serve my.img --vhost-user disk.sock --null-latency >ready 2>said </dev/null &
    server=$!
    for _ in $(seq 100); do
        grep -q ^ready ready && break
        sleep 0.1
    done
    grep -q ^ready ready || {
        echo "FAIL  the server is not ready: $(cat said)"
        exit 1
    }
    cat >init <<END
#!/bin/sh
PATH=$PATH
mount -t proc p /proc; mount -t sysfs s /sys
# By its descriptor: it may be below /run, which is covered.
exec 3<"$bin"
mount -t tmpfs t /run; mount -t devtmpfs d /dev 2>/dev/null
mkdir /run/m
mkfs.f2fs -f -q /dev/vda && mount -t f2fs -o discard,noatime$5 /dev/vda /run/m || {
    echo "no F2FS"
    echo o >/proc/sysrq-trigger
    sleep 5
}
echo $dirty >/proc/sys/vm/dirty_bytes; echo $((dirty / 2)) >/proc/sys/vm/dirty_background_bytes
mkdir /run/m/w
/proc/self/fd/3 filebench $1 /run/m/w --files $2 --threads $3 --prepare-only; sync
stat() { sync; echo; echo "stat \$1 \$(cat /sys/block/vda/stat)"; }
stat begin
/proc/self/fd/3 filebench $1 /run/m/w --files $2 --threads $3 --loops $4 --reuse --json /run/json
stat end
echo "calls \$(sed -n '/"all"/,/}/s/.*"count": *\([0-9]*\).*/\1/p' /run/json)"
echo "users \$(sed -n '/"all"/,/}/s/.*"written_bytes": *\([0-9]*\).*/\1/p' /run/json)"
umount /run/m
stat unmounted
echo o >/proc/sysrq-trigger
sleep 5
END
    chmod +x init
    boot init 1G 300
    kill -TERM $server
    wait $server
    server=
    awk '
        $1 == "stat" { written[$2] = $9; commands[$2] = $14; trimmed[$2] = $16 }
        $1 == "calls" { calls = $2 }
        $1 == "users" { users = $2 }
        END {
            if (!calls || !("unmounted" in written)) exit 1
            print calls, users, (written["end"] - written["begin"]) / 2, (trimmed["end"] - trimmed["begin"]) / 2, \
                (trimmed["unmounted"] - trimmed["end"]) / 2, commands["unmounted"] - commands["begin"]
        }' guest.log >row || {
        echo "FAIL  F2FS of the kernel ($1$5)"
        tail -n 20 guest.log | sed 's/^/      | /'
        exit 1
    }
}

# policy PERSONALITY FILES THREADS CALLS: the same of the policy.
policy() {
    cat >f2fs.toml <<END
name = "f2fs"
[device]
preset = "parafs"
[device.geometry]
channels = 8
chunks_per_pu = 64
[[target]]
kind = "pftl"
[target.parafs]
policy = "f2fs"
page = "4KiB"                   # as the kernel's
dirty_pages = $((dirty / 4096))
[[workload]]
files = "$1"
nfiles = $2
nthreads = $3
ops = $4
END
    "$bin" run f2fs.toml --csv out.csv >out 2>&1 || {
        sed 's/^/      | /' out
        exit 1
    }
    awk -F, -v calls="$4" '
        NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i }
        NR == 2 {
            print calls, $column["written_bytes"], 4 * $column["written_below_sectors"], 2048 * $column["fs_trims"], 0, $column["fs_trims"]
        }' out.csv >row
}

# say WHAT WHO: the row as a line of the table.
say() {
    awk -v what="$1" -v who="$2" '{
        printf "%-11s %-24s %8d %9.2f %9.2f %11.2f %11.2f %9d\n", what, who, $1, $2 / $1 / 1024, $3 / $1, $4 / $1, $5 / $1, $6
    }' row
}

echo "                                                KiB of users   written     trimmed   at unmount"
echo "workload    who                         calls  per call  per call    per call    per call  commands"
for of in "fileserver 4400 50 $loops" "varmail 1000 16 $((loops * 2))"; do
    # shellcheck disable=SC2086
    set -- $of
    kernel "$@" ""
    say "$1" "kernel, as mounted"
    read -r calls _ written _ <row
    kernel "$@" ",mode=lfs"
    say "$1" "kernel, mode=lfs"
    policy "$1" "$2" "$3" "$calls"
    say "$1" "policy f2fs"
    read -r _ _ ours _ <row
    ratio=$(awk -v ours="$ours" -v written="$written" 'BEGIN { printf "%.3f", ours / written }')
    ok "$1: the policy writes $ratio times as much per call as the kernel" \
        awk -v ratio="$ratio" 'BEGIN { exit !(ratio >= 0.85 && ratio <= 1.15) }'
done
[ "$bad" -eq 0 ] || { echo "f2fs: $bad checks failed" && exit 1; }
echo "f2fs: all good"
