#!/bin/sh
# ParaFS as a directory: pjdfstest and fsx, both from their crates.
# Use: sh tests/posix.sh            (FLASHLANE=path/to/flashlane for another binary)
#      OPS=1000000 sh tests/posix.sh    operations of fsx, in runs of 5,000: its time grows with the square of a run's length
#      SEED=1000                    of the first run; a run that fails prints its own
#      TOOLS=DIR                    where fsx and pjdfstest are (the Makefile installs them into target/tools/bin)
# Needs root, /dev/fuse, and the tools (else it is skipped).
set -u

tools=$(realpath -m "${TOOLS:-${CARGO_TARGET_DIR:-$(dirname "$0")/../target}/tools/bin}")
for tool in fsx pjdfstest; do
    [ -x "$tools/$tool" ] || exec sh "$(dirname "$0")/skip.sh" note posix-tools "there is no $tool: the Makefile installs it"
done
[ "$(id -u)" = 0 ] || exec sh "$(dirname "$0")/skip.sh" note posix "pjdfstest needs root"
# Each fsync commits the image: in memory that is soon done.
[ ! -d /dev/shm ] || TMPDIR=${TMPDIR:-/dev/shm}
export TMPDIR
name=posix
. "$(dirname "$0")/parafs-mounted.sh"

must "a drive" "$bin" drive create my.img --preset parafs --set geometry.channels=8 --set geometry.chunks_per_pu=64
must "mkfs" "$bin" mkfs my.img
begin_or_skip
# What this machine has no second file system for, and remounts, are skipped by pjdfstest itself, by name.
cat >pjd.toml <<'T'
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
T
timeout 600 "$tools/pjdfstest" -c pjd.toml -p "$dir/mnt" >pjd.out 2>&1
tail -n 1 pjd.out | sed 's/^/      pjdfstest: /'
grep -q "^Summary: 0 failed" pjd.out || { grep -i "fail" pjd.out | head -n 20; fail pjdfstest; }
began=$(date +%s)
run=5000
seed=${SEED:-1000}
done=0
while [ $done -lt "${OPS:-50000}" ] && [ $failed = 0 ]; do
    timeout 300 "$tools/fsx" -N $run -S "$seed" -P "$dir" mnt/fsx >fsx.out 2>&1 && grep -q "A-OK" fsx.out ||
        { tail -n 20 fsx.out; fail "fsx: OPS=$run SEED=$seed sh tests/posix.sh"; }
    done=$((done + run))
    seed=$((seed + 1))
done
echo "      fsx: $done operations in $(($(date +%s) - began)) s"
end
all_good
