#!/bin/sh
# The stack before and now, in turns, so that what else the machine does meets both alike.
#   bench/compare.sh [COMMIT [PAIRS]]      default: the previous commit, 7 pairs
# B1 (simulation: random writes in steady state, random reads) and B2 (replay of a 4 to 8 KiB Parquet trace). Prints
# each pair, the medians and their ratio; above 1 is faster now. The commit is built beside this one, in
# target/bench-before; nothing of the working tree changes.
set -eu
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
commit=$(git rev-parse --verify --quiet "${1:-HEAD~1}^{commit}") || {
    echo "bench/compare.sh: no such commit: ${1:-HEAD~1}" >&2
    exit 2
}
pairs=${2:-7}
case $pairs in '' | *[!0-9]* | 0) echo "bench/compare.sh: PAIRS is a number above 0, not \"$pairs\"" >&2; exit 2 ;; esac
now=${CARGO_TARGET_DIR:-target}
case $now in /*) ;; *) now=$PWD/$now ;; esac
before=$now/bench-before
tree=$before/tree
work=$before/work
mkdir -p "$work"
leave() { git worktree remove --force "$tree" 2>/dev/null || true; }
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
leave
git worktree prune
git worktree add --quiet --detach "$tree" "$commit"
build() { $CARGO build --quiet --release -p flashlane -p flashlane-ftl --bin flashlane --example b1; }
echo "building $(git rev-parse --short HEAD) and $(git rev-parse --short "$commit")" >&2
CARGO_TARGET_DIR=$now build
(cd "$tree" && CARGO_TARGET_DIR=$before build)

# A trace of 200,000 requests of 4 or 8 KiB, six of ten reads, over 2 GiB; in sectors of 512 bytes, as MQSim has them.
awk 'BEGIN { s = 1; for (i = 0; i < 200000; i++) {
    s = (s * 16807) % 2147483647; at = s % 524280
    s = (s * 16807) % 2147483647; n = 8 * (1 + s % 2)
    s = (s * 16807) % 2147483647; w = s % 10 < 6 ? 1 : 0
    print i * 1000, 0, at * 8, n, w } }' >"$work/b2.trace"
rm -f "$work/b2.parquet"
"$now/release/flashlane" trace convert "$work/b2.trace" "$work/b2.parquet" >/dev/null
cat >"$work/b2.toml" <<'END'
name = "B2"
[device]
preset = "peers-16g"
[[target]]
kind = "pblk"
[workload]
trace = "b2.parquet"
replay = "closed"
loops = 8
END

# Million per CPU second: programmed sectors while writing, reads, and replayed requests.
# measure DIRECTORY: as one line in $work/line.
measure() {
    "$1/release/examples/b1" peers-16g 1 0 1000000 1500000 >"$work/b1"
    # "random writes : 4.49 M programmed/s, 0.75 M host/s, ..."
    b1=$(awk '/^random writes/ { w = $4 } /^random reads/ { r = $7 } END { print w, r }' "$work/b1")
    # CPU time of what a shell of its own has run: user and system, minutes and seconds.
    sh -c '"$1" run "$2" >"$3" 2>&1 || { cat "$3" >&2; exit 1; }; times' \
        sh "$1/release/flashlane" "$work/b2.toml" "$work/b2" >"$work/times"
    b2=$(awk 'END { split($1, u, /[ms]/); split($2, s, /[ms]/)
                    printf "%.2f\n", 1.6 / (60 * (u[1] + s[1]) + u[2] + s[2]) }' "$work/times")
    echo "$b1 $b2" >"$work/line"
}
field() { awk -v n="$1" '{ print $n }' "$2" | sort -n | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }
: >"$work/before"
: >"$work/now"
echo "million per CPU second: B1 programmed sectors, B1 reads, B2 requests"
for pair in $(seq "$pairs"); do
    for side in before now; do
        dir=$now
        [ "$side" = now ] || dir=$before
        measure "$dir"
        line=$(cat "$work/line")
        echo "$line" >>"$work/$side"
        printf '%2d %-6s %s\n' "$pair" "$side" "$line"
    done
done
for n in 1 2 3; do
    name=$(echo "B1-writes B1-reads B2-replay" | cut -d' ' -f"$n")
    b=$(field "$n" "$work/before") a=$(field "$n" "$work/now")
    echo "$name $b $a" | awk '{ printf "%-9s median before %.2f, now %.2f: %.2f\n", $1, $2, $3, $3 / $2 }'
done
