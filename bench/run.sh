#!/bin/sh
# Measures the stack on this machine and keeps the whole result under bench/runs/<date>-<machine>/:
# machine, commit, B1 (simulation), B3 and B4 (live), B5 and the overhead of a request (live figures), and B1 and B2 in turns
# with an earlier commit (BEFORE=COMMIT, the previous one by itself). Ratios within a run on a quiet machine mean something,
# absolute figures of a busy one do not.
set -eu
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
machine=$(uname -m)-$(nproc)c
out=bench/runs/$(date -u +%Y-%m-%d)-$machine
mkdir -p "$out"
$CARGO build --release -p flashlane-ftl --examples
$CARGO build --release -p flashlane
release=${CARGO_TARGET_DIR:-target}/release
target=$release/examples
{
    echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo none)"
    echo "cpu $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores"
    echo "load before $(cut -d' ' -f1-3 /proc/loadavg)"
    echo "rustc $(rustc --version)"
} >"$out/machine.txt"
"$target/b1" peers-16g 4 | tee "$out/b1.txt"
"$target/b3" | tee "$out/b3.txt"
"$release/flashlane" reproduce lightnvm-overhead | tee "$out/overhead.txt"
"$release/flashlane" reproduce qblk-scaling | tee "$out/b5.txt"
bench/compare.sh "${BEFORE:-HEAD~1}" >"$out/paired.txt"
cat "$out/paired.txt"
echo "load after $(cut -d' ' -f1-3 /proc/loadavg)" >>"$out/machine.txt"
echo "kept in $out"
