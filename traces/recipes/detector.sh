# Recipes of record.sh that tune and judge the detector of journals (crates/detect). To be sourced.
#
# A recording tunes if the CRC-32C of its recipe's name is even, and judges if it is odd. The names were chosen, and this
# rule with them, before anything was recorded, so that both halves have each kind; a recording that judges was made
# after the thresholds were committed. The names of the last line, all even, came after the first verdict: what it found
# wrong was mended by them, and then those that judge were recorded again.
# Kept are the writes as the device got them (D events): place, length, time.

detector_recipes="ext4-16-ordered ext4-128-ordered ext4-512-ordered ext4-16-data ext4-128-data ext4-512-data ext4-none
    xfs-mixed xfs-fsync mariadb-update mariadb-insert sqlite-wal sqlite-wal-large postgres-update postgres-insert
    copy-big copies tar tar-backup rewrite-once rewrite-direct append-log append-direct rsync rsync-tree
    ext4-64-ordered ext4-300-ordered xfs-large sqlite-wal-full postgres copy-tree rsync-again"
detector_recipes=$(echo $detector_recipes)

file_system=ext4
journal_mib=16           # ext4's, where the recipe does not say another
log_mib=64               # XFS's, the smallest that mkfs.xfs makes
mode=ordered
laps=2.3                 # of the journal, at least
user=${PG_USER:-postgres} # PostgreSQL refuses to work as root

work() { python3 "$here/recipes/work.py" "$@"; }

detector_setup() {
    tools+=(sync dd cp "$flashlane" filefrag)
    actions=issue
    local size
    case $recipe in
    ext4-none) journal_mib=0 ;;
    ext4-*)
        size=${recipe#ext4-}
        journal_mib=${size%-*} mode=${size#*-}
        ;;
    xfs-*) file_system=xfs journal_mib=$log_mib tools+=(mkfs.xfs xfs_db) ;;
    mariadb-*) tools+=(mariadbd mariadb-install-db mariadb mariadb-admin) ;;
    postgres*) tools+=(initdb pg_ctl psql pgbench runuser) ;;
    tar*) tools+=(tar) ;;
    rsync*) tools+=(rsync) ;;
    esac
    if [ "$file_system" = ext4 ]; then tools+=(mkfs.ext4 debugfs); fi
}

inputs() { :; }

# ---- before the recording ---------------------------------------------------------------------
prepare() {
    if [ "$file_system" = xfs ]; then
        mkfs.xfs -q -f -b size=4096 -l "size=${log_mib}m" "$device"
        mount -t xfs "$device" "$mnt"
    elif [ "$journal_mib" = 0 ]; then
        mkfs.ext4 -q -F -b 4096 -O ^has_journal "$device"
        mount -t ext4 "$device" "$mnt"
    else
        mkfs.ext4 -q -F -b 4096 -J "size=$journal_mib" "$device"
        mount -t ext4 -o "data=${mode/data/journal}" "$device" "$mnt"
    fi
    case $recipe in
    ext4-16-* | ext4-none | xfs-fsync) ;;
    ext4-* | xfs-*) work tree "$mnt/tree" 20000 8 1 ;;
    mariadb-*) prepare_mariadb ;;
    postgres*) prepare_postgres ;;
    sqlite-*) work sqlite "$mnt/items.db" 0 0 1000 1 0 6 ;;
    esac
    sync -f "$mnt"
}

# ---- the work ---------------------------------------------------------------------------------
workload() {
    case $recipe in
    ext4-16-* | xfs-fsync | ext4-none) until_lapped small_work ;;
    ext4-* | xfs-*) until_lapped large_work ;;
    mariadb-*) mariadb_work ;;
    sqlite-wal)
        work sqlite "$mnt/items.db" 1800 5 1000 1 0 7
        ;;
    sqlite-wal-full)
        work sqlite "$mnt/items.db" 1500 4 1200 1 0 9
        ;;
    sqlite-wal-large)
        work sqlite "$mnt/items.db" 1200 60 6000 0 3 8
        ;;
    postgres*) postgres_work ;;
    copy-big)
        dd if=/dev/urandom of="$mnt/a" bs=1M count=256 status=none
        cp "$mnt/a" "$mnt/b"
        sync -f "$mnt"
        rm "$mnt/a"
        cp "$mnt/b" "$mnt/c"
        ;;
    copies | copy-tree)
        local size=64
        if [ "$recipe" = copy-tree ]; then
            size=40
            work tree "$mnt/tree" 1000 512 5
        fi
        for file in a b c; do dd if=/dev/urandom of="$mnt/$file" bs=1M count="$size" status=none; done
        sync -f "$mnt"
        for turn in 1 2 3; do
            for file in a b c; do cp "$mnt/$file" "$mnt/$file.copy" & done
            wait
            if [ "$recipe" = copy-tree ]; then cp -r "$mnt/tree" "$mnt/tree.copy"; fi
            sync -f "$mnt"
            rm -r "$mnt"/*.copy
            work mail "$mnt/mail" 20 "$turn"
        done
        ;;
    tar | tar-backup)
        work tree "$mnt/tree" 4000 128 3
        for turn in 1 2 3 4 5; do
            tar -cf "$mnt/backup.$turn" -C "$mnt" tree
            sync -f "$mnt"
            # The recipe `tar-backup` keeps the last two, so that their room is used again.
            if [ "$recipe" = tar-backup ]; then rm -f "$mnt/backup.$((turn - 2))"; fi
            work touch "$mnt/tree" 5 1 "$turn"
        done
        ;;
    rewrite-once)
        dd if=/dev/urandom of="$mnt/a" bs=1M count=256 status=none
        sync -f "$mnt"
        work mail "$mnt/mail" 100 1
        dd if=/dev/urandom of="$mnt/a" bs=1M count=256 conv=notrunc status=none
        ;;
    rewrite-direct)
        for turn in 1 2; do
            dd if=/dev/zero of="$mnt/a" bs=256k count=1024 oflag=direct conv=notrunc status=none
            work mail "$mnt/mail" 100 "$turn"
        done
        ;;
    append-log)
        for turn in 1 2 3; do
            work append "$mnt/log" 16 1500 1 "$turn" &
            work append "$mnt/access" 8 4000 20 "$turn"
            wait
        done
        ;;
    append-direct)
        fallocate -l 256M "$mnt/log"
        dd if=/dev/zero of="$mnt/log" bs=32k count=6000 oflag=direct,dsync conv=notrunc status=none
        ;;
    rsync | rsync-tree | rsync-again)
        work tree "$mnt/tree" 4000 128 4
        for turn in 1 2 3; do
            rsync -a "$mnt/tree/" "$mnt/copy/"
            sync -f "$mnt"
            work touch "$mnt/tree" 20 1 "$turn"
            if [ "$recipe" != rsync-tree ]; then rsync -a --inplace --no-whole-file -I "$mnt/tree/" "$mnt/copy/"; fi
        done
        ;;
    esac
    sync -f "$mnt"
}

# Blocks of 4 KiB that the file system has written to its journal or log.
journaled() {
    if [ "$file_system" = xfs ]; then
        awk '/^log / { print int($3 / 8) }' "/sys/fs/xfs/$name/stats/stats"
    else
        awk '/transactions/ { n = $1 } /blocks per transaction/ { logged = $1 } /handles/ { } END { print n * (logged + 2) }' \
            /proc/fs/jbd2/"$name"-8/info
    fi
}
# Repeats a work until the journal went round often enough. Without a journal three times will do.
until_lapped() {
    local turn=1 begun=0 size=$((journal_mib * 256))
    if [ "$journal_mib" != 0 ]; then begun=$(journaled); fi
    while :; do
        "$1" "$turn"
        if [ "$journal_mib" = 0 ]; then
            [ "$turn" -lt 3 ] || return 0
        elif awk -v done="$(($(journaled) - begun))" -v want="$laps" -v size="$size" 'BEGIN { exit done < want * size }'; then
            return 0
        fi
        turn=$((turn + 1))
    done
}
# $1: the turn
small_work() {
    work scatter "$mnt/table" 48 1200 8 4 "$1" &
    work mail "$mnt/mail" 300 "$1"
    wait
    case $(($1 % 3)) in
    0) dd if=/dev/urandom of="$mnt/bulk" bs=1M count=24 conv=fsync status=none ;;
    1) rm -rf "$mnt/few" && work tree "$mnt/few" 600 32 "$1" ;;
    esac
}
large_work() {
    if [ "$mode" = data ]; then
        work scatter "$mnt/table" 96 3000 16 200 "$1"
        dd if=/dev/urandom of="$mnt/bulk$(($1 % 3))" bs=1M count=24 conv=fsync status=none
    fi
    work touch "$mnt/tree" 10 8 "$1"
    work mail "$mnt/mail" 60 "$1"
    case $(($1 % 4)) in
    2) dd if=/dev/urandom of="$mnt/copied" bs=1M count=48 conv=fsync status=none ;;
    3) rm -rf "$mnt/few" && work tree "$mnt/few" 1000 16 "$1" ;;
    esac
}

# ---- databases --------------------------------------------------------------------------------
prepare_mariadb() {
    local size=16M
    if [ "$recipe" = mariadb-insert ]; then size=12M; fi
    mariadb-install-db --no-defaults --user=root --datadir="$mnt/db" --skip-test-db >"$work/install.log" 2>&1
    mariadbd --no-defaults --user=root --datadir="$mnt/db" --socket="$work/db.sock" --skip-networking \
        --pid-file="$work/db.pid" --innodb-log-file-size="$size" --innodb-flush-log-at-trx-commit=1 \
        --innodb-buffer-pool-size=64M >"$work/db.log" 2>&1 &
    writer=$!
    until mariadb-admin --no-defaults --socket="$work/db.sock" ping >/dev/null 2>&1; do
        kill -0 "$writer" || { cat "$work/db.log" >&2; exit 1; }
        sleep 0.2
    done
    printf '%s;\n' 'CREATE DATABASE d' 'USE d' \
        'CREATE TABLE t(id INT PRIMARY KEY AUTO_INCREMENT, k INT, c VARCHAR(400), KEY(k)) ENGINE=InnoDB' \
        "INSERT INTO t(k, c) SELECT seq % 1000, REPEAT('x', 200) FROM seq_1_to_40000" |
        mariadb --no-defaults --socket="$work/db.sock"
}
mariadb_work() {
    local transactions=2600
    # What is inserted is logged once, what is updated with its old content.
    if [ "$recipe" = mariadb-insert ]; then transactions=8000; fi
    awk -v recipe="$recipe" -v transactions="$transactions" '
    function random(n) { seed = (seed * 16807) % 2147483647; return seed % n }
    BEGIN {
        seed = 17
        for (i = 0; i < transactions; i++) {
            print "BEGIN;"
            for (r = 0; r < 12; r++)
                if (recipe == "mariadb-insert")
                    printf "INSERT INTO d.t(k, c) VALUES (%d, REPEAT(CHAR(%d), %d));\n", random(1000), 65 + random(26), 100 + random(300)
                else
                    printf "UPDATE d.t SET k = %d, c = REPEAT(CHAR(%d), %d) WHERE id = %d;\n", random(1000), 65 + random(26), 100 + random(300), 1 + random(40000)
            print "COMMIT;"
        }
    }' | mariadb --no-defaults --socket="$work/db.sock"
    mariadb-admin --no-defaults --socket="$work/db.sock" shutdown
    wait "$writer"
    writer=
}

as_user() { runuser -u "$user" -- "$@"; }
segment=16               # MiB
postgres_segments=5      # that are used in turn
prepare_postgres() {
    if [ "$recipe" = postgres-insert ]; then segment=4; fi
    chmod 755 "$work"
    mkdir "$mnt/db" "$work/run"
    chown "$user" "$mnt/db" "$work/run"
    cd "$work/run"
    as_user initdb -D "$mnt/db" --wal-segsize="$segment" -A trust >"$work/install.log" 2>&1
    as_user tee -a "$mnt/db/postgresql.conf" >/dev/null <<END
listen_addresses = ''
unix_socket_directories = '$work/run'
min_wal_size = $((segment * postgres_segments))MB
max_wal_size = $((segment * postgres_segments))MB
checkpoint_timeout = 30s
autovacuum = off
END
    as_user pg_ctl -D "$mnt/db" -w -l "$work/run/log" start >/dev/null
    # PostgreSQL ends by itself when its pid file goes; who is interrupted stops it so.
    writer=$(head -n 1 "$mnt/db/postmaster.pid")
    as_user pgbench -h "$work/run" -i -q -s 10 postgres >/dev/null 2>&1
}
note_segments() { for file in "$mnt"/db/pg_wal/0*; do note_file wal "$file"; done; }
# Bytes of its log so far.
logged() { as_user psql -h "$work/run" -At postgres -c "SELECT pg_current_wal_lsn() - '0/0'"; }
# Rounds of its work until the log went round often enough.
postgres_work() {
    local turn=0 begun
    begun=$(logged)
    # Random rows: after each checkpoint the log holds whole pages.
    printf '\\set a random(1, 1000000)\nUPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid %% 33333 = :a %% 33333;\n' \
        >"$work/run/rows.sql"
    while awk -v bytes="$(($(logged) - begun))" -v want="$laps" -v lap="$((postgres_segments * segment << 20))" \
        'BEGIN { exit bytes >= want * lap }'; do
        turn=$((turn + 1))
        case $recipe in
        postgres-insert)
            as_user psql -h "$work/run" -q postgres -c "CREATE TABLE log$turn(id serial, body text)"
            awk -v turn="$turn" 'BEGIN { for (i = 0; i < 400; i++)
                printf "INSERT INTO log%d(body) SELECT repeat(chr(65 + %d), 300) FROM generate_series(1, 30);\n", turn, i % 26 }' |
                as_user psql -h "$work/run" -q postgres
            ;;
        postgres-update)
            as_user pgbench -h "$work/run" -n -c 2 -t 300 postgres >/dev/null 2>&1
            as_user pgbench -h "$work/run" -n -c 2 -t 40 -f "$work/run/rows.sql" postgres >/dev/null 2>&1
            ;;
        *)
            as_user pgbench -h "$work/run" -n -c 4 -t 60 -f "$work/run/rows.sql" postgres >/dev/null 2>&1
            ;;
        esac
        sync -f "$mnt"
        note_segments
    done
    as_user pg_ctl -D "$mnt/db" -w -m fast stop >/dev/null
    writer=
    note_segments
}

# ---- truth ------------------------------------------------------------------------------------
# Notes where a file lies now, under a name. A file that goes away may have to be noted more than once.
note_file() {
    filefrag -e -b4096 "$2" 2>/dev/null |
        awk -v name="$1" '/^ *[0-9]+: / { gsub(/[.:]+/, " "); print $4, $6, name }' >>"$work/truth.raw" || true
}
note_journal() {
    if [ "$file_system" = xfs ]; then
        # The first block of the log as the file system counts: a group's number above the block in it.
        for field in logstart logblocks agblocks agblklog; do
            xfs_db -r -c 'sb 0' -c "p $field" "$device"
        done | awk '{ v[$1] = $3 } END {
            group = int(v["logstart"] / 2 ^ v["agblklog"])
            print group * v["agblocks"] + v["logstart"] - group * 2 ^ v["agblklog"], v["logblocks"], "journal" }'
    elif [ "$journal_mib" != 0 ]; then
        debugfs -R 'blocks <8>' "$device" 2>/dev/null | tr ' ' '\n' | awk 'NF { print $1, 1, "journal" }'
    fi >>"$work/truth.raw"
}

finish() {
    case $recipe in
    sqlite-*) note_file wal "$mnt/items.db-wal" ;;
    mariadb-*) note_file redo "$mnt/db/ib_logfile0" ;;
    esac
    cd /
    umount "$mnt"
    : >>"$work/truth.raw"
    note_journal
    work ranges "${output%.parquet}.truth" "$recipe" <"$work/truth.raw"
    python3 "$here/ftrace2blkparse.py" --writes <"$work/ftrace.txt" >"$work/trace.blkparse"
    "$flashlane" trace convert "$work/trace.blkparse" "$work/trace.parquet" >&2
    cp "$work/trace.parquet" "$output"
}
