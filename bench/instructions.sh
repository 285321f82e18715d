#!/bin/sh
# Instructions per unit of work of small fixed runs (crates/lab/examples/instructions.rs, under callgrind), against
# those in bench/history.csv.
#   sh bench/instructions.sh check            measures; fails where a benchmark takes more than 3% more than its base
#   sh bench/instructions.sh record [WHY]     the same, then adds the rows to bench/history.csv; with WHY also those
#                                             that take more, which are the base from then on
# ONLY="pblk-writes nbd" measures these alone. PROFILE=release: another build than that of the tests.
#
# The base of a benchmark is the least value since its last row with a reason (column `why`), or of all where none has
# one: a row without a reason lowers the base, and never raises it, so that small steps do not add up. Rows of another
# machine (processor family, compiler, profile) are not compared: there, this is skipped by name. CI builds with fewer
# units of code generation, which are other inlining; until it has rows of its own, those of a plain build count.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
CARGO=${CARGO:-cargo}
history=${HISTORY:-bench/history.csv}
most=3

how=${1:-check} why=${2:-}
case $how in check | record) ;; *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;; esac
case $why in *[,\"]* | *"
"*) echo "instructions: a reason has no comma, quote or line break" >&2 && exit 2 ;; esac
skip() {
    sh tests/skip.sh note instructions "$1"
    exit 0
}
command -v valgrind >/dev/null 2>&1 || skip "there is no valgrind here"

profile=${PROFILE:-dev}
case $profile in dev) folder=debug ;; *) folder=$profile ;; esac
target=${CARGO_TARGET_DIR:-target}
case $target in /*) ;; *) target=$root/$target ;; esac
[ -n "${BUILT:-}" ] || $CARGO build --quiet --profile "$profile" --workspace --example instructions
program=$target/$folder/examples/instructions
units=${CARGO_PROFILE_DEV_CODEGEN_UNITS:-}
[ "$profile" = dev ] || units=
plain="$(uname -m) $(rustc --version | cut -d' ' -f1,2) $profile"
machine=$plain${units:+ $units units}
commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo none)
[ -z "$(git status --porcelain -- crates Cargo.toml Cargo.lock 2>/dev/null)" ] || commit=$commit+

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# measure NAME: "VALUE,instructions per UNIT" in $work/NAME.
measure() {
    valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*region_of_interest*' \
        --callgrind-out-file=/dev/null "$program" "$1" >"$work/$1.out" 2>"$work/$1.err" || {
        echo "FAIL  instructions: $1 did not run to its end:"
        tail -n 5 "$work/$1.out" "$work/$1.err" | sed 's/^/      | /'
        return 1
    }
    awk -v out="$work/$1.out" '/Collected *: *[0-9]/ { n = $NF }
        END { getline line < out; split(line, w, " "); unit = line; sub(/^[0-9]+ /, "", unit)
              if (n < 1000 || w[1] < 1) exit 1
              printf "%.1f,instructions per %s\n", n / w[1], unit }' "$work/$1.err" >"$work/$1" || {
        echo "FAIL  instructions: callgrind counted nothing in $1:"
        tail -n 5 "$work/$1.err" | sed 's/^/      | /'
        return 1
    }
}

# base NAME MACHINE: the value to compare with; nothing where there is none for the machine.
base() {
    awk -F, -v name="$1" -v machine="$2" 'NR > 1 && $2 == name && $5 == machine {
        if (least == "" || $6 != "" || $3 + 0 < least + 0) least = $3 } END { print least }' "$history"
}

names=${ONLY:-$("$program" --list)}
: >"$work/rows"
bad=0 compared=0
for name in $names; do
    measure "$name" || exit 1
    IFS=, read -r value unit <"$work/$name"
    base=$(base "$name" "$machine")
    [ -n "$base" ] || base=$(base "$name" "$plain")
    row="$commit,$name,$value,$unit,$machine"
    if [ -z "$base" ]; then
        echo "new   $name: $value $unit"
        echo "$row,$why" >>"$work/rows"
        continue
    fi
    compared=$((compared + 1))
    percent=$(awk -v a="$value" -v b="$base" 'BEGIN { printf "%+.2f", (a / b - 1) * 100 }')
    if awk -v a="$value" -v b="$base" -v most="$most" 'BEGIN { exit !(a > b * (1 + most / 100)) }'; then
        echo "$row,$why" >>"$work/rows"
        if [ "$how" = record ] && [ -n "$why" ]; then
            echo "more  $name: $value $unit, $percent% of $base: $why"
            continue
        fi
        echo "FAIL  $name: $value $unit, $percent% of $base: make it cheaper, or say why it may cost that:" \
            "make instructions WHY=\"...\""
        bad=$((bad + 1))
    else
        echo "ok    $name: $value $unit, $percent% of $base"
        echo "$row," >>"$work/rows"
    fi
done
[ "$bad" -eq 0 ] || exit 1
if [ "$how" = record ]; then
    cat "$work/rows" >>"$history"
    echo "kept in $history"
elif [ "$compared" -eq 0 ]; then
    skip "bench/history.csv has no rows of \"$machine\" (make instructions-record adds them)"
fi
