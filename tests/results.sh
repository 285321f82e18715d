#!/bin/sh
# Every result file is opened by the programs that people use for such files, and they agree: pandas, polars, DuckDB, and
# Python's csv module. Columns have names of their own, and what was not measured is no number.
# Use: sh tests/results.sh            (FLASHLANE=path/to/flashlane for another binary)
# The three come from PyPI into target/tools/results where they are not here; without them only csv is tried, and they are
# skipped by name (`results-readers`).
set -u

. "$(dirname "$0")/binary.sh"
if ! command -v python3 >/dev/null 2>&1; then
    sh "$root/tests/skip.sh" note results-readers "there is no python3 here"
    exit 0
fi
python=python3
readers="import pandas, pyarrow, polars, duckdb"
if ! $python -c "$readers" 2>/dev/null; then
    tools=${CARGO_TARGET_DIR:-$root/target}/tools/results
    case $tools in /*) ;; *) tools=$root/$tools ;; esac
    if [ -x "$tools/bin/python3" ] && "$tools/bin/python3" -c "$readers" 2>/dev/null; then
        python=$tools/bin/python3
    elif timeout 300 $python -m venv "$tools" >/dev/null 2>&1 &&
        timeout 300 "$tools/bin/pip" install --quiet --only-binary :all: pandas pyarrow polars duckdb >/dev/null 2>&1 &&
        "$tools/bin/python3" -c "$readers" 2>/dev/null; then
        python=$tools/bin/python3
    else
        sh "$root/tests/skip.sh" note results-readers "not all of pandas, pyarrow, polars and duckdb are here, nor from PyPI"
    fi
fi
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
cd "$dir" || exit 2

# A block device that is only read; one that is written, with flushes; files; nothing of either in the others.
printf '[a]\nrw=randread\nbs=4k\nsize=4m\n' >reads.fio
printf '[a]\nrw=randrw\nbs=4k\nsize=4m\nfsync=16\n' >mixed.fio
cat >files.toml <<'END'
[device]
preset = "parafs"
geometry = { channels = 2, chunks_per_pu = 96, pages_per_block = 16 }
[[target]]
kind = "parafs"
meta_percent = 20
cache_pages = 256
cache_nodes = 256
dirty_pages = 128
[[workload]]
files = "varmail"
nfiles = 50
filesize = "16KiB"
nthreads = 2
written = "2MiB"
END
quiet() { "$@" >out 2>&1 </dev/null || { tail -n 5 out && return 1; }; }
ran() {
    ok "$1: a run" quiet "$bin" run "$2" --report "$1"
}
ran reads reads.fio
ran mixed mixed.fio
ran files files.toml
printf '[a]\nrw=randrw\nbs=4k\nsize=1m\n' >small.fio
ok "a sweep" quiet "$bin" sweep small.fio --device tiny --vary "run.seed=1,2" --csv sweep.csv --json sweep.json
ok "all readers agree" "$python" "$root/tests/results.py" reads mixed files sweep.csv
[ "$bad" -eq 0 ] || { echo "results: $bad checks failed" && exit 1; }
echo "results: all good"
