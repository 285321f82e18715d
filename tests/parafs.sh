#!/bin/sh
# ParaFS as a directory of this machine: programs on it, a kill of the mount, the check.
# Use: sh tests/parafs.sh            (FLASHLANE=path/to/flashlane for another binary)
# Needs /dev/fuse and a way to mount (else `fuse` is skipped).
set -u

name=parafs
. "$(dirname "$0")/parafs-mounted.sh"

# refused WORDS COMMAND...: it exits with 2, and says so.
refused() {
    words=$1
    shift
    timeout 60 "$@" >out 2>err </dev/null
    code=$?
    [ $code = 2 ] && grep -q "$words" err || fail "$* exits with $code and says: $(head -n 1 err)"
}
refused "my.img" "$bin" mkfs my.img
must "a drive" "$bin" drive create my.img --preset parafs --set geometry.channels=4 --set geometry.chunks_per_pu=64
refused "no ParaFS file system" "$bin" mount my.img mnt
must "mkfs" "$bin" mkfs my.img --label "a label"
files=$("$bin" mkfs my.img --force --label "a label" | sed -n 's/.*, \([0-9.]*\) MiB of them for files.*/\1/p')
refused "already (a label)" "$bin" mkfs my.img
refused "no directory" "$bin" mount my.img my.img
refused "mkdir nowhere" "$bin" mount my.img nowhere
refused "no.img" "$bin" mount no.img nowhere
must "fsck of an empty one" "$bin" fsck my.img
begin_or_skip
size=$(df -k mnt | tail -n 1 | awk '{ print $2 / 1024 }')
[ "$size" = "$files" ] || fail "mkfs says $files MiB for files, and df $size"
refused "mounted there already" "$bin" mount my.img mnt
refused "." "$bin" fsck my.img # it is in use
mkdir mnt/d
must "a copy" cp "$bin" mnt/d/program
cmp -s "$bin" mnt/d/program || fail "the copy differs"
ln -s d/program mnt/link
ln mnt/d/program mnt/other
[ "$(stat -c %h mnt/other)" = 2 ] || fail "a hard link counts $(stat -c %h mnt/other)"
for i in $(seq 300); do echo "$i" >"mnt/d/file $i"; done
[ "$(ls mnt/d | wc -l)" = 301 ] || fail "$(ls mnt/d | wc -l) names in the directory"
dd if=/dev/zero of=mnt/sparse bs=4096 count=1 seek=100000000 conv=fsync 2>/dev/null || fail "a file of 400 GB"
[ "$(du -k mnt/sparse | cut -f 1)" -lt 100 ] || fail "holes take room"
# Whoever may write to a program of another user does not become that user by it.
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
    others() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
    # bits MODE LEFT WHO COMMAND...: a file that has this mode is changed so by root or others; what it has then.
    bits() {
        mode=$1 left=$2 who=$3
        shift 3
        : >mnt/set
        chmod "$mode" mnt/set
        [ "$(stat -c %a mnt/set)" = "$mode" ] || fail "chmod $mode gives $(stat -c %a mnt/set)"
        if [ "$who" = others ]; then others "$@"; else "$@"; fi >out 2>&1 || fail "$who, $*: $(head -n 1 out)"
        [ "$(stat -c %a mnt/set)" = "$left" ] || fail "$who, $*: $mode becomes $(stat -c %a mnt/set), not $left"
        rm mnt/set
    }
    bits 6777 6777 root sh -c 'echo more >>mnt/set'
    bits 6777 777 others sh -c 'echo more >>mnt/set'
    bits 6777 777 others dd if=/dev/zero of=mnt/set bs=4096 count=1 oflag=direct conv=notrunc
    bits 6777 777 others truncate -s 100 mnt/set
    bits 6777 777 others fallocate -l 8192 mnt/set
    bits 6777 777 root chown 1:1 mnt/set
    bits 4766 766 others sh -c 'echo more >>mnt/set'
    # The kernel has kept the mode, and must not go by it.
    cp "$(command -v id)" mnt/id && chmod 4777 mnt/id
    [ "$(others mnt/id -u)" = 0 ] || fail "a program of root with mode 4777 runs as $(others mnt/id -u)"
    others sh -c 'echo more >>mnt/id'
    [ "$(others mnt/id -u)" = 65534 ] || fail "a program that somebody wrote to runs as $(others mnt/id -u)"
    rm mnt/id
    if command -v setcap >/dev/null; then
        echo program >mnt/able && chmod 777 mnt/able
        setcap cap_net_raw+ep mnt/able || fail "a capability"
        others sh -c 'echo more >>mnt/able'
        [ -z "$(getcap mnt/able)" ] || fail "what somebody wrote to has $(getcap mnt/able)"
        rm mnt/able
    fi
fi
# What is durable survives a kill; what is not may.
dd if=/dev/urandom of=mnt/durable bs=1M count=3 conv=fsync 2>/dev/null
cp mnt/durable kept
if command -v sqlite3 >/dev/null; then
    for mode in delete wal; do
        timeout 60 sqlite3 "mnt/$mode.db" "pragma journal_mode=$mode; pragma synchronous=full; create table t(a);
            with recursive c(x) as (select 1 union all select x + 1 from c where x < 500) insert into t select x from c;" >out 2>&1 ||
            fail "SQLite, $mode: $(tail -n 1 out)"
    done
fi
kill -9 "$server"
wait "$server" 2>/dev/null
server=
fusermount3 -uz mnt
must "fsck behind a kill" "$bin" fsck my.img
grep -q "nothing wrong found" out || fail "fsck: $(tail -n 1 out)"
begin || fail "a mount behind a kill: $(head -n 1 said)"
cmp -s kept mnt/durable || fail "what was durable differs"
for mode in delete wal; do
    [ -f "mnt/$mode.db" ] || continue
    rows=$(timeout 60 sqlite3 "mnt/$mode.db" "pragma integrity_check; select count(*) from t;" 2>&1 | tr '\n' ' ')
    [ "$rows" = "ok 500 " ] || fail "SQLite, $mode: $rows"
done
if command -v git >/dev/null && [ -d "$root/.git" ]; then
    must "a clone" git clone -q "$root" mnt/repository
    must "its check" git -C mnt/repository fsck
fi
if command -v cargo >/dev/null; then
    must "a crate" cargo init -q --vcs none --name on-parafs mnt/crate
    CARGO_TARGET_DIR=$dir/mnt/crate/target must "its build" cargo build -q --offline --manifest-path mnt/crate/Cargo.toml
    [ "$(mnt/crate/target/debug/on-parafs)" = "Hello, world!" ] || fail "what was built does not run"
fi
rm -rf mnt/d mnt/repository
end
# A full file system tells whoever writes, and what nobody made durable is there after a while.
begin --commit 100ms || fail "a mount: $(head -n 1 said)"
echo unasked >mnt/unasked
timeout 120 dd if=/dev/zero of=mnt/full bs=1M >out 2>err </dev/null
code=$?
[ $code = 1 ] && grep -q "No space left" err || fail "dd on a full one ends with $code and says: $(tail -n 1 err)"
sleep 3
kill -9 "$server"
wait "$server" 2>/dev/null
server=
fusermount3 -uz mnt
begin || fail "a mount behind a kill: $(head -n 1 said)"
[ "$(cat mnt/unasked)" = unasked ] || fail "what was written seconds before a kill is gone"
rm mnt/full
end
all_good
