#!/bin/sh
# Runs a command as a stage of the tests. With FLASHLANE_HISTORY=FILE its CPU time, user and system, becomes a row of
# that file (bench/history.csv has such rows): the wall clock of a shared machine says little.
# Use: sh tests/stage.sh NAME COMMAND ARGUMENT...
set -u

root=$(cd "$(dirname "$0")/.." && pwd)
name=$1
shift
[ -n "${FLASHLANE_HISTORY:-}" ] || exec "$@"
"$@"
rc=$?
history=$FLASHLANE_HISTORY
case $history in /*) ;; *) history=$root/$history ;; esac
[ -s "$history" ] || echo "commit,benchmark,value,unit,machine,why" >"$history"
commit=$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || echo none)
# The second line of `times`: user and system time of what this shell has waited for, as 0m1.23s 0m0.45s.
times >"$history.$$"
seconds=$(awk 'NR == 2 { split($1, u, /[ms]/); split($2, s, /[ms]/); printf "%.1f", 60 * (u[1] + s[1]) + u[2] + s[2] }' "$history.$$")
rm -f "$history.$$"
echo "$commit,ci-$name,$seconds,user and system seconds,$(uname -m) $(nproc) cores," >>"$history"
exit "$rc"
