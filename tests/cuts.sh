#!/bin/sh
# The power cuts of every test run: at least 20,000 over all stacks. Evenly spread, dense at the
# beginning, and after longer runs; a second one in the recovery from the first, or in what follows. Some more, in a build with
# debug assertions, are in crates/testkit/tests/stacks/torture.rs.
# Use: sh tests/cuts.sh              (FLASHLANE=path/to/flashlane for another binary)
set -eu

. "$(dirname "$0")/binary.sh"
out=$(mktemp) || exit 2
trap 'rm -f "$out"' EXIT
trap 'exit 130' INT TERM

# torture ARGS...: adds what was cut to the sum; a failure prints the command that replays it.
sum=0
torture() {
    "$bin" torture --target all "$@" >"$out" </dev/null || { cat "$out"; exit 1; }
    cuts=$(sed -n 's/.* \([0-9]*\) power cuts, .*/\1/p' "$out")
    echo "ok    flashlane torture $*: $cuts power cuts"
    sum=$((sum + cuts))
}
torture --mode linear --cuts 2 --effort 2 --from 0 --seeds 1
torture --mode log --cuts 2 --effort 2 --from 101 --seeds 2
torture --mode linear --cuts 1 --effort 10 --from 200 --seeds 3
if [ "$sum" -lt 20000 ]; then
    echo "cuts: $sum power cuts, not 20,000" >&2
    exit 1
fi
echo "cuts: all good, $sum power cuts"
