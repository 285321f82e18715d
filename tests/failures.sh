#!/bin/sh
# Runs a command; where it fails, says last of all what failed: the tests print thousands of lines, and two parts of
# them run side by side.
# Use: sh tests/failures.sh COMMAND ARGUMENT...
set -u

root=$(cd "$(dirname "$0")/.." && pwd)
log=${CARGO_TARGET_DIR:-$root/target}/tests.log
mkdir -p "$(dirname "$log")"
rm -f "$log.rc"
{
    "$@"
    echo $? >"$log.rc"
} 2>&1 | tee "$log"
rc=$(cat "$log.rc")
[ "$rc" -eq 0 ] && exit 0
echo
echo "what failed (all output: $log):"
grep -E -A 6 '^(FAIL|missed|error|test .* FAILED|failures:|---- .* stdout|make.*Error)' "$log" | tail -n 120
exit "$rc"
