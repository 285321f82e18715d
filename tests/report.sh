#!/bin/sh
# The report in a real browser, and results in other programs' hands.
# Use: sh tests/report.sh            (FLASHLANE=path/to/flashlane for another binary)
# Checked in chromium: nothing wider than the page at 1280 and at 390 pixels with all tables open, no label cut off or
# on another, nothing on the console, nothing loaded, light and dark; screenshots are left to be looked at. fio's own
# fio_jsonplus_clat2csv reads the fio JSON and finds every request.
# Programs that are missing are installed where that is possible (root, apt), else skipped by name.
set -u

. "$(dirname "$0")/binary.sh"
target=${CARGO_TARGET_DIR:-$root/target}
shots=$target/report-screenshots
mkdir -p "$shots" || exit 2
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
cd "$dir" || exit 2

bad=0
fail() {
    bad=$((bad + 1))
    echo "FAIL  $1"
    sed 's/^/      | /' said 2>/dev/null | head -n 12
    : >said
}

# have PROGRAM PACKAGE...: it is here, or is installed now.
have() {
    program=$1
    shift
    command -v "$program" >/dev/null 2>&1 && return 0
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "      installing $*"
        get() { timeout 300 apt-get install -y --no-install-recommends "$@"; }
        { get "$@" || { timeout 120 apt-get update && get "$@"; }; } >said 2>&1 </dev/null
    fi
    command -v "$program" >/dev/null 2>&1
}

echo "a report of three stacks, with garbage collection"
cat >job.fio <<'END'
[global]
bs=4k
iodepth=8
size=80%

[fill]
rw=write

[mixed]
stonewall
rw=randrw
norandommap
io_size=48m
fsync=32
END
if "$bin" run job.fio --device tiny --target pblk --target pblk:2 --target pftl --set 'target.0.name="<b>&pblk"' \
    --set target.2.over_provisioning_percent=25 \
    --report out >text 2>said; then
    echo "ok    flashlane run --report"
else
    fail "flashlane run --report: exit code $?"
    exit 1
fi
"$bin" run job.fio --device tiny --target pblk --target pblk:2 --target pftl --set 'target.0.name="<b>&pblk"' \
    --set target.2.over_provisioning_percent=25 \
    --report again >/dev/null 2>&1
for file in report.html results.csv results.parquet timeline.csv timeline.parquet fio.json latency.hlog; do
    if [ -s "out/$file" ] && cmp -s "out/$file" "again/$file"; then
        echo "ok      $file, the same bytes twice"
    else
        fail "$file: not there, empty, or other bytes the second time"
    fi
done
grep -v wall_seconds out/results.json >one
grep -v wall_seconds again/results.json >two
cmp -s one two || fail "results.json differs in more than wall_seconds"
if grep -qE '(src|href|action)=["'\'']?(https?:|//)|url\(|@import' out/report.html; then
    fail "report.html names something to be loaded"
fi

# The page inside frames of 1280 and 390 pixels, all tables open; what is wrong with it goes into the title.
cat >check.js <<'END'
addEventListener("load", () => {
  const said = [];
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, width = frame.clientWidth;
    const say = (text) => said.push(width + " px: " + text);
    page.querySelectorAll("details").forEach((d) => { d.open = true; });
    const over = page.documentElement.scrollWidth - width;
    if (over > 0) say("the page is " + over + " px too wide");
    for (const element of page.body.querySelectorAll("*")) {
      const box = element.getBoundingClientRect();
      if (box.width > 0 && box.right > width + 0.5 && !element.closest("svg")) {
        say(element.tagName + "." + element.className + " ends at " + box.right);
      }
    }
    const charts = [...page.querySelectorAll("svg.chart")].filter((s) => s.getBoundingClientRect().width > 0);
    if (charts.length < 8) say("only " + charts.length + " charts are shown");
    for (const chart of charts) {
      if (!chart.getAttribute("aria-label")) say("a chart without a text alternative");
      const frame = chart.getBoundingClientRect();
      const texts = [...chart.querySelectorAll("text")].map((t) => [t.textContent, t.getBoundingClientRect(), t]);
      for (const [text, box, element] of texts) {
        if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1) {
          say("cut off: " + text + " in " + chart.getAttribute("aria-label"));
        }
        if (parseFloat(page.defaultView.getComputedStyle(element).fontSize) * frame.width /
            chart.viewBox.baseVal.width < 10.5) {
          say("too small: " + text);
        }
      }
      for (let i = 0; i < texts.length; i++) {
        for (let j = 0; j < i; j++) {
          const [a, b] = [texts[i][1], texts[j][1]];
          const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
          const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
          if (across > 1 && down > 4) {
            say(texts[i][0] + " lies on " + texts[j][0] + " in " + chart.getAttribute("aria-label"));
          }
        }
      }
    }
    for (const figure of page.querySelectorAll("figure")) {
      if (!figure.querySelector("table tbody td")) say("a figure without a table");
    }
    const paper = page.defaultView.getComputedStyle(page.body).backgroundColor;
    said.push("paper " + paper);
    // What stands under the pointer in the first chart with lines.
    const chart = charts.find((s) => s.classList.contains("lines")), box = chart.getBoundingClientRect();
    chart.dispatchEvent(new page.defaultView.PointerEvent("pointermove",
      { clientX: box.left + box.width * 0.4, clientY: box.top + 40, bubbles: true }));
    const tip = page.getElementById("tip");
    if (tip.hidden || !/MB\/s/.test(tip.textContent)) say("no values under the pointer");
  }
  document.title = said.join(" | ") || "nothing looked at";
});
END
quoted() { sed 's/&/\&amp;/g; s/"/\&quot;/g' out/report.html; }
{
    echo '<!doctype html><meta charset="utf-8"><title>not run</title><link rel="icon" href="data:,">'
    for width in 1280 390; do
        printf '<iframe style="border:0" width="%s" height="1200" srcdoc="' $width
        quoted
        echo '"></iframe>'
    done
    echo '<script>'
    cat check.js
    echo '</script>'
} >frames.html

# browse FLAGS...: chromium on a profile of its own; what it has to say goes to `said`.
browse() {
    chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$dir/profile" \
        --enable-logging=stderr --host-resolver-rules='MAP * ~NOTFOUND' "$@" 2>said
}

# in_browser NAME PAPER FLAGS...: the page has this background, and nothing is wrong with it.
in_browser() {
    name=$1
    paper=$2
    shift 2
    browse "$@" --virtual-time-budget=20000 --window-size=1720,1300 --dump-dom "file://$dir/frames.html" >dom
    title=$(sed -n 's/.*<title>\(.*\)<\/title>.*/\1/p' dom | head -n 1)
    console=$(grep CONSOLE said)
    if [ "$title" = "paper $paper | paper $paper" ] && [ -z "$console" ]; then
        echo "ok    $name: 1280 and 390 pixels"
    else
        printf '%s\n' "$title" | sed 's/ | /\n/g' >said
        printf '%s\n' "$console" >>said
        fail "$name"
    fi
    # A whole page of a phone, and of a wide screen.
    browse "$@" --window-size=900,6000 --screenshot="$shots/$name-wide.png" "file://$dir/out/report.html" >/dev/null
    printf '<body style="margin:0"><iframe style="border:0" width="390" height="6000" srcdoc="%s"></iframe>' \
        "$(quoted)" >phone.html
    browse "$@" --window-size=500,6000 --screenshot="$shots/$name-phone.png" "file://$dir/phone.html" >/dev/null
    for shot in wide phone; do
        [ -s "$shots/$name-$shot.png" ] || fail "$name: no screenshot for $shot"
    done
}

echo "in a browser"
if have chromium chromium fonts-dejavu-core; then
    in_browser light 'rgb(255, 255, 255)'
    in_browser dark 'rgb(18, 20, 22)' --blink-settings=preferredColorScheme=0
    browse --no-pdf-header-footer --print-to-pdf="$shots/print.pdf" "file://$dir/out/report.html" >/dev/null
    if head -c 5 "$shots/print.pdf" | grep -q '%PDF-'; then
        echo "ok    prints"
    else
        fail "no PDF"
    fi
    echo "      screenshots: $shots"
else
    sh "$root/tests/skip.sh" note browser "no chromium here, and it can't be installed (that takes root and apt)"
fi

echo "in fio's own script"
if have fio_jsonplus_clat2csv fio python3; then
    if fio_jsonplus_clat2csv out/fio.json lat.csv >said 2>&1 && [ -s lat_job0.csv ]; then
        # The last cumulated count of completion latencies of writes is the number of writes.
        column=$(head -n 1 lat_job0.csv | tr ',' '\n' | grep -n 'write_clat_ns_cumulative' | cut -d: -f1)
        read_back=$(tail -n +2 lat_job0.csv | cut -d, -f"$column" | tr -d ' ' | grep . | tail -n 1)
        want=$(python3 -c 'import json; print(json.load(open("out/fio.json"))["jobs"][0]["write"]["total_ios"])')
        if [ "${read_back:-none}" = "$want" ]; then
            echo "ok    fio_jsonplus_clat2csv finds all $want writes of the first job"
        else
            fail "fio_jsonplus_clat2csv finds ${read_back:-no} writes of the first job, not $want"
        fi
        n=$(ls lat_job*.csv | wc -l)
        [ "$n" -eq 6 ] || fail "$n jobs, not 2 on each of 3 stacks"
    else
        fail "fio_jsonplus_clat2csv does not read fio.json"
    fi
else
    sh "$root/tests/skip.sh" note fio "no fio_jsonplus_clat2csv here, and it can't be installed (root and apt)"
fi

if [ "$bad" -ne 0 ]; then
    echo "report: $bad checks failed"
    exit 1
fi
echo "report: all good"
