#!/bin/sh
# What this machine can't run is skipped by name, and said at the end of `make test`.
# Use: sh tests/skip.sh begin                a run of the tests begins
#      sh tests/skip.sh note NAME REASON     the test NAME is skipped (Rust: flashlane_testkit::skip)
#      sh tests/skip.sh list                 prints what was skipped since
#      sh tests/skip.sh must-run             fails where tests/must-run names one of them
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
skipped=${FLASHLANE_SKIPPED:-${CARGO_TARGET_DIR:-$root/target}/skipped}

case ${1:-} in
begin)
    mkdir -p "$(dirname "$skipped")"
    : >"$skipped"
    ;;
note)
    printf '%s: %s\n' "$2" "$3" >>"$skipped"
    echo "skip  $2: $3"
    ;;
list)
    if [ -s "$skipped" ]; then
        echo "skipped on this machine:"
        sort -u "$skipped" | sed 's/^/      /'
    else
        echo "nothing was skipped"
    fi
    ;;
must-run)
    bad=0
    for name in $(sed 's/#.*//' "$root/tests/must-run"); do
        if why=$(grep "^$name: " "$skipped"); then
            bad=$((bad + 1))
            echo "FAIL  skipped, although tests/must-run names it: $(echo "$why" | head -n 1)"
        fi
    done
    [ "$bad" -eq 0 ] || exit 1
    echo "ok    all of tests/must-run ran"
    ;;
*)
    sed -n '3,6s/^# //p' "$0" >&2
    exit 2
    ;;
esac
