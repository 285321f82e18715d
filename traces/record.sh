#!/bin/bash
# Records the bundled trace: SQLite, git and a compiler on ext4 (-o discard) on a loop device,
# seen by the kernel's blk tracer. The sources and SQL it feeds them are made from fixed seeds.
#
#   record.sh OUTPUT.blkparse.zst
#
# IMAGE_DIR  where the 2 GiB backing file goes (default /dev/shm; must allow direct I/O)
# TMPDIR     where the scratch folder goes (default /tmp; about 200 MiB)
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
tracing=/sys/kernel/tracing
image_dir=${IMAGE_DIR:-/dev/shm}
image_size=2G
buffer_kb=65536          # per CPU; 80,000 requests, three actions each, fill about 20 MiB in all

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

if [ $# -ne 1 ]; then
    say "usage: ${0##*/} OUTPUT.blkparse.zst"
    exit 2
fi
output=$(realpath -m "$1")

# ---- what must be there -----------------------------------------------------------------------
missing=()
[ "$(id -u)" = 0 ] || missing+=("root (run as uid 0)")
for tool in sqlite3 git gcc make awk tar find python3 zstd losetup mkfs.ext4 fsck.ext4 fstrim mountpoint; do
    command -v "$tool" >/dev/null || missing+=("command $tool")
done
[ -d "$tracing" ] || missing+=("$tracing (kernel without tracefs)")
[ -e /dev/loop-control ] || missing+=("/dev/loop-control (kernel without the loop driver)")
grep -qw ext4 /proc/filesystems || missing+=("ext4 in /proc/filesystems")
if [ ${#missing[@]} -ne 0 ]; then
    for thing in "${missing[@]}"; do say "missing: $thing"; done
    exit 1
fi

# ---- set up, and undo it whatever happens -----------------------------------------------------
work=$(mktemp -d)
image=$(mktemp -p "$image_dir" trace-image.XXXXXX)
mnt=$work/mnt
device= mounted_tracefs= writer= tracer_on=
old_buffer_kb= old_clock=

tracer_off() {
    [ -n "$tracer_on" ] || return 0
    tracer_on=
    echo 0 >"$tracing/tracing_on"
    echo 0 >"/sys/block/$name/trace/enable"
    echo nop >"$tracing/current_tracer"
    echo "$old_clock" >"$tracing/trace_clock"
    echo "$old_buffer_kb" >"$tracing/buffer_size_kb"
    echo 1 >"$tracing/tracing_on"
}
cleanup() {
    trap - EXIT
    set +e
    [ -z "$writer" ] || kill "$writer" 2>/dev/null
    wait
    ! mountpoint -q "$mnt" || umount "$mnt"
    tracer_off
    [ -z "$device" ] || losetup -d "$device"
    [ -z "$mounted_tracefs" ] || umount "$tracing"
    rm -f "$image"
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
mkdir "$mnt"

if [ ! -e "$tracing/current_tracer" ]; then
    mount -t tracefs nodev "$tracing"
    mounted_tracefs=1
fi
if ! grep -qw blk "$tracing/available_tracers"; then
    say "missing: the blk tracer (CONFIG_BLK_DEV_IO_TRACE)"
    exit 1
fi
if [ "$(cat "$tracing/current_tracer")" != nop ]; then
    say "tracer '$(cat "$tracing/current_tracer")' is in use; not touching it"
    exit 1
fi

# ---- inputs, made outside the traced device ---------------------------------------------------
export HOME=$work GIT_CONFIG_NOSYSTEM=1 LC_ALL=C
git config --global user.name recorder
git config --global user.email recorder@localhost
git config --global gc.auto 0             # no background gc: phases must end when they end
git config --global advice.detachedHead false
export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'

# A tree of 400 C files to compile and 4,800 text files, sizes skewed from 0.3 KiB to 200 KiB.
# $1: seed, $2: keep only every $2-th file (1: all)
generate_tree() {
    awk -v seed="$1" -v every="$2" '
    function random(n) { seed = (seed * 16807) % 2147483647; return seed % n }
    function word() { return sprintf("%s%x", substr("alphabetagammadeltaepsilonzetathetakappa", 1 + random(36), 4), random(65536)) }
    BEGIN {
        for (i = 0; i < 400; i++) {
            functions = 4 + random(24)
            if (i % every) continue
            path = sprintf("src/m%02d/unit%03d.c", i % 20, i)
            print "#include \"../../include/common.h\"" > path
            for (f = 0; f < functions; f++) {
                printf "int unit%03d_%d(struct state *s, int x)\n{\n", i, f > path
                for (k = 0; k < 8; k++)
                    printf "    s->slot[%d] += (x ^ 0x%x) * s->slot[%d]; /* %s %s */\n", random(64), random(65536), random(64), word(), word() > path
                print "    return x + s->slot[0];\n}\n" > path
            }
            close(path)
        }
        for (i = 0; i < 4800; i++) {
            bytes = 300 * 2 ^ (random(600) / 100) * (random(40) ? 1 : 10)
            if (i % every) continue
            path = sprintf("doc/d%03d/page%04d.txt", i % 140, i)
            for (written = 0; written < bytes; written += length(line) + 1) {
                line = word()
                while (length(line) < 72) line = line " " word()
                print line > path
            }
            close(path)
        }
    }'
}

make_repository() {
    git init -q -b main "$work/origin"
    cd "$work/origin"
    mkdir include src doc
    for ((i = 0; i < 20; i++)); do mkdir "src/m$(printf %02d "$i")"; done
    for ((i = 0; i < 140; i++)); do mkdir "doc/d$(printf %03d "$i")"; done
    {
        echo '#ifndef COMMON_H'
        echo '#define COMMON_H'
        echo '#include <stdio.h>'
        echo '#include <stdlib.h>'
        echo '#include <string.h>'
        echo 'struct state { int slot[64]; };'
        echo '#endif'
    } >include/common.h
    {
        echo 'objects := $(patsubst %.c,%.o,$(sort $(wildcard src/*/*.c)))'
        echo 'libunits.so: $(objects)'
        printf '\t$(CC) -shared -o $@ $^\n'
        echo '%.o: %.c include/common.h'
        printf '\t$(CC) -g -O0 -fPIC -c -o $@ $<\n'
    } >Makefile
    printf '*.o\n*.so\n' >.gitignore
    generate_tree 1 1
    git add -A
    git commit -q -m 'first'
    git checkout -q -b next
    generate_tree 2 3                       # every third file changes
    git add -A
    git commit -q -m 'second'
    git checkout -q main
    cd /
}

# $1: transactions, $2: seed, $3: rows updated in each
updates() {
    awk -v n="$1" -v seed="$2" -v rows="$3" -v last="$rows_loaded" '
    function random(n) { seed = (seed * 16807) % 2147483647; return seed % n }
    BEGIN {
        for (i = 0; i < n; i++) {
            print "BEGIN;"
            for (r = 0; r < rows; r++)
                printf "UPDATE item SET n = n + 1, body = randomblob(%d) WHERE id = %d;\n", 200 + random(200), 1 + random(last)
            printf "INSERT INTO log(item, note) VALUES (%d, hex(randomblob(%d)));\n", 1 + random(last), 20 + random(100)
            print "COMMIT;"
        }
    }'
}
selects() {
    awk -v n="$1" -v seed="$2" -v last="$rows_loaded" '
    function random(n) { seed = (seed * 16807) % 2147483647; return seed % n }
    BEGIN { for (i = 0; i < n; i++) printf "SELECT length(body) FROM item WHERE id = %d;\n", 1 + random(last) }'
}
rows_loaded=250000
make_inputs() {
    make_repository
    updates 1000 11 3 >"$work/rollback.sql"
    updates 2300 12 2 >"$work/wal.sql"
    updates 1200 13 2 >"$work/wal-mixed.sql"
    selects 4500 14 >"$work/selects.sql"
}

# ---- the workload -----------------------------------------------------------------------------
phase() { say "phase $1"; echo "phase $1" >"$tracing/trace_marker"; }
# A cold cache for this file system only: the caches of everybody else on the machine stay.
remount() {
    ! mountpoint -q "$mnt" || umount "$mnt"
    mount -t ext4 -o discard "$device" "$mnt"
}
# A backup: the tree as one archive, the database by VACUUM INTO. The last two are kept.
backup() {
    mkdir -p "$mnt/backup"
    tar -cf "$mnt/backup/tree.$1.tar" -C "$mnt" "$2"
    sql "VACUUM INTO '$mnt/backup/items.$1.db';"
    rm -f "$mnt/backup/tree.$(($1 - 2)).tar" "$mnt/backup/items.$(($1 - 2)).db"
    sync -f "$mnt"
}
sql() { sqlite3 -bail "$mnt/items.db" "$@" >/dev/null; }

workload() {
    phase mkfs
    mkfs.ext4 -q -F -b 4096 "$device"
    remount

    phase sqlite-load
    sql "PRAGMA journal_mode=DELETE; PRAGMA synchronous=FULL;
         CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, n INT, body BLOB);
         CREATE TABLE log(id INTEGER PRIMARY KEY, item INT, note TEXT);
         BEGIN;
         WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < $rows_loaded)
             INSERT INTO item SELECT i, hex(randomblob(8)), 0, randomblob(300) FROM c;
         COMMIT;
         CREATE INDEX item_name ON item(name);"

    phase sqlite-rollback
    remount
    { echo 'PRAGMA journal_mode=DELETE; PRAGMA synchronous=FULL;'; cat "$work/rollback.sql"; } | sql

    phase sqlite-wal
    remount
    { echo 'PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;'; cat "$work/wal.sql"; } | sql

    phase sqlite-read
    remount
    sql <"$work/selects.sql"

    phase git-clone
    git clone -q --no-local "$work/origin" "$mnt/clone"
    sync -f "$mnt"

    phase git-checkout
    remount
    git -C "$mnt/clone" status >/dev/null
    git -C "$mnt/clone" checkout -q next
    sync -f "$mnt"

    phase compile
    remount
    make -s -j2 -C "$mnt/clone"
    sync -f "$mnt"

    phase backup-1
    backup 1 clone

    phase compile-and-wal
    rm -f "$mnt"/clone/src/m0*/*.o
    { echo 'PRAGMA synchronous=FULL;'; cat "$work/wal-mixed.sql"; } | sql &
    writer=$!
    make -s -j2 -C "$mnt/clone"
    wait "$writer"
    writer=
    sync -f "$mnt"

    phase backup-2
    backup 2 clone

    phase git-gc
    git -C "$mnt/clone" checkout -q main
    git -C "$mnt/clone" rm -q -r 'doc/d00*'
    git -C "$mnt/clone" commit -q -m 'third'
    remount
    git -C "$mnt/clone" repack -q -a -d -f
    git -C "$mnt/clone" grep -q 'no such text' || true
    sync -f "$mnt"

    phase backup-3
    backup 3 clone

    phase delete
    find "$mnt/clone" -name '*.o' -delete
    rm -rf "$mnt"/clone/doc/d0[1-6]?
    sync -f "$mnt"
    sql "DELETE FROM item WHERE id % 3 = 0;"

    phase sqlite-vacuum
    sql "PRAGMA journal_mode=DELETE; PRAGMA synchronous=FULL; VACUUM;"

    phase git-clone-again
    git clone -q --no-local "$mnt/clone" "$mnt/clone2"
    sync -f "$mnt"
    rm -rf "$mnt/clone"
    sync -f "$mnt"

    phase backup-4
    backup 4 clone2

    phase fstrim
    fstrim "$mnt"

    phase umount
    umount "$mnt"
}

# ---- record -----------------------------------------------------------------------------------
say "making the inputs"
make_inputs

truncate -s "$image_size" "$image"
device=$(losetup -f --show -b 4096 --direct-io=on "$image")
name=${device##*/}

old_buffer_kb=$(sed 's/.*expanded: \([0-9]*\).*/\1/' "$tracing/buffer_size_kb")
old_clock=$(sed 's/.*\[\(.*\)\].*/\1/' "$tracing/trace_clock")
tracer_on=1
echo 0 >"$tracing/tracing_on"
echo "$buffer_kb" >"$tracing/buffer_size_kb"
echo mono >"$tracing/trace_clock"
echo blk >"$tracing/current_tracer"
echo queue,issue,complete >"/sys/block/$name/trace/act_mask"
echo 1 >"/sys/block/$name/trace/enable"
echo >"$tracing/trace"
echo 1 >"$tracing/tracing_on"

workload

echo 0 >"$tracing/tracing_on"
lost=$(cat "$tracing"/per_cpu/cpu*/stats |
    awk '/^(overrun|commit overrun|dropped events):/ { n += $NF } END { print n + 0 }')
cat "$tracing/trace" >"$work/ftrace.txt"
tracer_off
if [ "$lost" -ne 0 ]; then
    say "$lost events lost: enlarge buffer_kb"
    exit 1
fi
fsck.ext4 -fn "$device" >"$work/fsck.txt" 2>&1 || { say "fsck found errors"; cat "$work/fsck.txt" >&2; exit 1; }

# ---- convert ----------------------------------------------------------------------------------
python3 "$here/ftrace2blkparse.py" <"$work/ftrace.txt" >"$work/trace.blkparse"
zstd -q -f -19 "$work/trace.blkparse" -o "$output"
say "wrote $output ($(stat -c %s "$output") bytes, $(wc -l <"$work/trace.blkparse") lines, 0 events lost)"
