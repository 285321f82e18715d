#!/bin/sh
# SQLite, RocksDB and MariaDB on a ParaFS, and on ext4 on a loop device on a target by FUSE. What serves it is killed under
# them: each record that a database has acknowledged is there, and each database finds itself whole.
# Use: sh tests/databases.sh [ROUNDS]     (FLASHLANE=path/to/flashlane for another binary)
# Installs what it needs where it may (root and apt), else is skipped by name (`databases-tools`, `fuse-loop`).
set -u

tools="losetup mkfs.ext4 fusermount3 sqlite3 db_bench ldb mariadbd mariadb mariadb-install-db"
packages="fuse3 e2fsprogs mount util-linux sqlite3 rocksdb-tools mariadb-server mariadb-client"
. "$(dirname "$0")/loop.sh"
if ! has_tools; then
    sh "$root/tests/skip.sh" note databases-tools "not all of $tools are here, and they can't be installed (root and apt)"
    exit 0
fi
rounds=${1:-3}

# Each database: NAME_makes a fresh one, NAME_writes until it can't (numbers that are acknowledged go to the file `acked`),
# NAME_checks what it has found: prints how many records it has, and fails where it is not whole.
lite_makes() { sqlite3 mnt/lite "pragma journal_mode=$journal; create table t(n integer primary key, text)"; }
lite_writes() {
    n=0
    while sqlite3 mnt/lite "pragma synchronous=full; insert into t values($n, hex(randomblob(300)))" >/dev/null; do
        echo $n >>acked
        n=$((n + 1))
    done
}
lite_checks() {
    [ "$(sqlite3 mnt/lite 'pragma integrity_check')" = ok ] || return 1
    sqlite3 mnt/lite 'select count(*) from t where n < (select count(*) from t)'
}

rocks="--db=mnt/rocks --value_size=300 --compression_type=none --write_buffer_size=1048576"
rocks_makes() { true; }
rocks_writes() {
    # It says how many it has, each of them synced.
    db_bench $rocks --benchmarks=fillseq --sync=1 --num=100000000 --stats_interval=20 --stats_per_interval=0 2>&1 |
        sed -nu 's/.*: ([0-9]*,\([0-9]*\)) ops .*/\1/p' >acked
}
rocks_checks() {
    db_bench $rocks --use_existing_db=1 --benchmarks=verifychecksum --num=1 >&2 || return 1
    ldb --db=mnt/rocks checkconsistency >&2 || return 1
    ldb --db=mnt/rocks scan 2>/dev/null | wc -l
}

maria="--no-defaults --datadir=$dir/mnt/maria --socket=$dir/maria.sock --skip-networking --user=root --pid-file=$dir/maria.pid
    --innodb-buffer-pool-size=32M --innodb-log-file-size=8M --log-error=$dir/maria.log"
maria_runs() {
    mariadbd $maria >/dev/null 2>&1 </dev/null &
    others="$others $!"
    for _ in $(seq 300); do
        mariadb --no-defaults -S maria.sock -e 'select 1' >/dev/null 2>&1 && return
        sleep 0.1
    done
    return 1
}
maria_ends() {
    mariadb --no-defaults -S maria.sock -e shutdown >&2
    for process in $others; do wait "$process"; done
    others=
}
maria_makes() {
    mariadb-install-db --no-defaults --datadir="$dir/mnt/maria" --user=root --auth-root-authentication-method=normal \
        --skip-test-db >&2 && maria_runs &&
        mariadb --no-defaults -S maria.sock -e 'create table mysql.t(n int primary key, v varbinary(400)) engine=innodb' && maria_ends
}
maria_writes() {
    maria_runs || return
    n=0
    while mariadb --no-defaults -S maria.sock -e "insert into mysql.t values($n, repeat(md5($n), 9))"; do
        echo $n >>acked
        n=$((n + 1))
    done
}
maria_checks() {
    maria_runs || return 1
    mariadb --no-defaults -S maria.sock -N -e 'check table mysql.t' | grep -q 'OK$' || return 1
    mariadb --no-defaults -S maria.sock -N -e 'select count(*) from mysql.t where v = cast(repeat(md5(n), 9) as binary)'
    maria_ends
}

# The disk, by $kind: DISK_makes an empty one and mounts it, DISK_returns behind a kill, DISK_leaves at the end.
ext4_makes() {
    good "$case: a drive" "$bin" drive create my.img --preset tiny --set geometry.chunks_per_pu=1024
    good "$case: a target" "$bin" lnvm create my.img -n db -t "$kind"
    begin
    attach 512
    good "$case: mkfs" mkfs.ext4 -q -F -E nodiscard "$loop"
    good "$case: mount" mount -o discard "$loop" mnt
}
ext4_is_gone() {
    umount mnt 2>/dev/null || umount -l mnt
    detach
}
ext4_returns() {
    good "$case: check, behind a kill" "$bin" drive check my.img
    begin
    attach 512
    good "$case: mount, behind a kill" mount -o discard "$loop" mnt
}
ext4_is_sound() {
    good "$case: umount" umount mnt
    good "$case: fsck finds nothing" e2fsck -fn "$loop"
    good "$case: mount" mount -o discard "$loop" mnt
}
ext4_leaves() {
    good "$case: umount" umount mnt
    detach
    ends_well
}

parafs_begins() {
    : >ready
    "$bin" mount my.img mnt --null-latency >ready 2>said </dev/null &
    server=$!
    says_ready "$dir/mnt"
}
parafs_makes() {
    good "$case: a drive" "$bin" drive create my.img --preset parafs --set geometry.channels=8 --set geometry.chunks_per_pu=64
    good "$case: mkfs" "$bin" mkfs my.img
    parafs_begins
}
parafs_is_gone() { fusermount3 -uz mnt; }
parafs_returns() { parafs_begins; }
parafs_is_sound() {
    parafs_leaves
    parafs_begins
}
parafs_leaves() {
    good "$case: umount" umount mnt
    if wait "$server"; then echo "ok    $case: ends well"; else fail "$case: ends with $?: $(cat said)"; fi
    server=
    good "$case: fsck" "$bin" fsck my.img
    grep -q "nothing wrong found" out || fail "$case: fsck: $(tail -n 1 out)"
}

for what in lite:wal:parafs lite:delete:parafs rocks::parafs maria::parafs lite:wal:pblk lite:delete:qblk rocks::pftl maria::pblk; do
    base=${what%%:*} kind=${what##*:} journal=${what#*:} journal=${journal%:*}
    disk=ext4
    [ "$kind" != parafs ] || disk=parafs
    case="$base${journal:+ $journal} on $kind"
    rm -rf my.img disk
    ${disk}_makes
    if ! "${base}_makes" >out 2>err; then
        fail "$case: it can't be made: $(tail -n 3 err)"
        exit 1
    fi
    for round in $(seq "$rounds"); do
        : >acked
        "${base}_writes" >/dev/null 2>writes.err </dev/null &
        writer=$!
        others="$others $writer"
        for _ in $(seq 300); do
            [ "$(tail -n 1 acked)" != "" ] && [ "$(tail -n 1 acked)" -ge 30 ] && break
            sleep 0.1
        done
        sleep 1
        kill -9 "$server"
        wait "$server" 2>/dev/null
        server=
        sleep 1
        # What hangs on the disk that is gone is killed as a crash would.
        for process in $others $(pgrep -P "$writer") $(cat maria.pid 2>/dev/null); do kill -9 "$process" 2>/dev/null; done
        wait "$writer" 2>/dev/null
        others=
        rm -f maria.pid maria.sock
        ${disk}_is_gone
        ${disk}_returns
        last=$(tail -n 1 acked)
        if there=$("${base}_checks" 2>err) && [ "${last:-0}" -ge 30 ] && [ "$there" -ge "$last" ]; then
            echo "ok    $case: $there records, of $last that were acknowledged"
        else
            fail "$case: ${there:-no} records, of ${last:-0} that were acknowledged: $(tail -n 3 err)"
        fi
        ${disk}_is_sound
        [ "$round" -lt "$rounds" ] || break
        # The next round begins anew, on what the last one has left of the disk.
        rm -rf mnt/lite* mnt/rocks mnt/maria
        "${base}_makes" >out 2>err || fail "$case: it can't be made again: $(tail -n 3 err)"
    done
    ${disk}_leaves
done
[ "$bad" -eq 0 ] || { echo "databases: $bad checks failed" && exit 1; }
echo "databases: all good"
