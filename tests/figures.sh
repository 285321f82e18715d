#!/bin/sh
# Every figure of the papers, end to end at the smallest size: measured, compared, drawn, with the verdict that its file
# expects. A minute or two.
# Use: sh tests/figures.sh            (FLASHLANE=path/to/flashlane for another binary)
# The page and the files are left in target/figures, to be looked at.
set -u

. "$(dirname "$0")/binary.sh"
out=${CARGO_TARGET_DIR:-$root/target}/figures
rm -rf "$out"
mkdir -p "$out" || exit 2

"$bin" reproduce all --ci --report "$out" >"$out/said" 2>"$out/errors" </dev/null
ended=$?
ok "every verdict is the expected one" [ "$ended" -eq 0 ]
if [ "$ended" -ne 0 ]; then
    grep -E '^(verdict|EXPECTED|[a-z0-9-]+: )|OFF$' "$out/said" | grep -v -E '^(ours|here|cause):' | sed 's/^/      | /'
    sed 's/^/      | /' "$out/errors" | tail -n 5
fi
for figure in $("$bin" reproduce --list | cut -d' ' -f1); do
    ok "$figure: points" [ "$(wc -l <"$out/$figure.csv")" -gt 2 ]
    ok "$figure: a picture" [ -s "$out/$figure-1.png" ]
    ok "$figure: a plot" grep -q 'class="dot' "$out/$figure-1.svg"
    ok "$figure: on the page" grep -q "<h2 id=\"$figure\">" "$out/figures.html"
done

if [ "$bad" -gt 0 ]; then
    echo "figures: $bad bad"
    exit 1
fi
echo "figures: all good"
