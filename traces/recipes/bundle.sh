# Recipe `bundle` of record.sh: the bundled trace. SQLite, git and a compiler on ext4 (-o discard) on a loop device.
# The sources and SQL that it feeds them are made from fixed seeds. To be sourced.

tools+=(sqlite3 git gcc make tar find zstd mkfs.ext4 fsck.ext4 fstrim)
file_system=ext4
actions=queue,issue,complete

# ---- inputs -----------------------------------------------------------------------------------
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
inputs() {
    export GIT_CONFIG_NOSYSTEM=1
    git config --global user.name recorder
    git config --global user.email recorder@localhost
    git config --global gc.auto 0             # no background gc: phases must end when they end
    git config --global advice.detachedHead false
    export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
    make_repository
    updates 1000 11 3 >"$work/rollback.sql"
    updates 2300 12 2 >"$work/wal.sql"
    updates 1200 13 2 >"$work/wal-mixed.sql"
    selects 4500 14 >"$work/selects.sql"
}

# ---- the workload -----------------------------------------------------------------------------
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

prepare() { :; }    # mkfs is part of what is recorded

finish() {
    fsck.ext4 -fn "$device" >"$work/fsck.txt" 2>&1 || { say "fsck found errors"; cat "$work/fsck.txt" >&2; exit 1; }
    python3 "$here/ftrace2blkparse.py" <"$work/ftrace.txt" >"$work/trace.blkparse"
    zstd -q -f -19 "$work/trace.blkparse" -o "$output"
}
