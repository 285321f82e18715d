#!/bin/sh
# The commands of README.md and docs/COOKBOOK.md, as they stand there; and wrong input as a
# new user would give it.
# What the docs name is looked up first (tests/docs.sh).
# Use: sh tests/readme.sh            (FLASHLANE=path/to/flashlane for another binary)
# Lines of the two that begin with `flashlane `, and README.md's table of systems, are run in a temporary folder, in
# their order and each once. Those marked `# minutes` are not; `sh tests/readme.sh minutes` runs them and nothing else.
set -u

. "$(dirname "$0")/binary.sh"
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
cd "$dir" || exit 2
ln -s "$root/traces" traces
ln -s "$root/experiments" experiments
ln -s "$root/examples" examples

bad=0
fail() {
    bad=$((bad + 1))
    echo "FAIL  $1"
    tail -n 5 out err 2>/dev/null | sed 's/^/      | /'
}

# until_ready ARGS...: runs the binary until it says that it is ready, then has it end.
until_ready() {
    rm -f out # the one before has said that it is ready
    "$bin" "$@" >out 2>err </dev/null &
    server=$!
    for _ in $(seq 100); do
        grep -q ^ready out 2>/dev/null && break
        sleep 0.1
    done
    kill -TERM "$server"
    wait "$server"
}

# run WANT ARGS...: runs the binary, compares the exit code, sees that nothing panicked.
run() {
    want=$1
    shift
    what="flashlane $*"
    case $what in
        *--fuse-file*)
            if ! [ -c /dev/fuse ] || { [ "$(id -u)" -ne 0 ] && ! command -v fusermount3 >/dev/null; }; then
                sh "$root/tests/skip.sh" note fuse "no /dev/fuse, or nothing may be mounted: $what"
                return 0
            fi
            ;;
        *"idiscard ext4.img"*)
            if ! [ -e ext4.img ] && ! { truncate -s 16M ext4.img && mke2fs -q -F -t ext4 ext4.img; } >out 2>err; then
                rm -f ext4.img
                sh "$root/tests/skip.sh" note e2fsprogs "no mke2fs here, which makes an image of ext4: $what"
                return 0
            fi
            ;;
    esac
    if [ "${1-}" = serve ]; then
        until_ready "$@"
    else
        "$bin" "$@" >out 2>err </dev/null
    fi
    got=$?
    if grep -q panicked out err; then
        fail "$what: panicked"
    elif [ "$got" -ne "$want" ]; then
        fail "$what: exit code $got, not $want"
    else
        echo "ok    $what (exit $got)"
        return 0
    fi
    return 1
}

# has FILE TEXT: the last command printed it there.
has() {
    if grep -qF -- "$2" "$1"; then
        echo "ok      prints: $2"
    else
        fail "$what: no '$2' in its $1"
    fi
}

# refused TEXT ARGS...: exit code 2, a message that names TEXT, nothing on standard output.
refused() {
    text=$1
    shift
    if run 2 "$@"; then
        has err "$text"
        [ ! -s out ] || fail "$what: something on standard output"
    fi
}

echo "docs: paths, names, dependencies"
if sh "$root/tests/docs.sh" >out 2>err; then
    echo "ok    tests/docs.sh"
else
    grep FAIL out
    fail "tests/docs.sh"
fi

echo "README.md, docs/COOKBOOK.md: the job file and the commands"
readme=$root/README.md
cookbook=$root/docs/COOKBOOK.md
awk '/^```ini/ { on = 1; next } /^```/ { on = 0 } on' "$cookbook" >job.fio
[ -s job.fio ] || fail "docs/COOKBOOK.md has no job file"
if [ "${1-}" = minutes ]; then
    cat "$readme" "$cookbook" | sed -n 's/^flashlane \(.*[^ ]\)  *# minutes.*/\1/p' >commands
    [ -s commands ] || fail "no command is marked as one that takes minutes"
    while read -r line; do
        eval "run 0 $line"
    done <commands
    [ "$bad" -eq 0 ] && echo "readme: all that takes minutes is good"
    exit "$((bad > 0))"
fi
# commands_of FILE: one per line, without `flashlane`; of a table's row what stands in backticks at its end.
commands_of() {
    awk '/^[|].*`flashlane [^`]*` [|]$/ { sub(/.*`flashlane /, "flashlane "); sub(/` [|]$/, "") }
        /^flashlane / && !/# minutes/ { sub(/ *#.*/, ""); sub(/^flashlane /, ""); print }' "$1"
}
commands_of "$readme" >of-readme
commands_of "$cookbook" >of-cookbook
[ "$(wc -l <of-readme)" -ge 6 ] || fail "README.md has fewer than 6 commands"
[ "$(wc -l <of-cookbook)" -ge 45 ] || fail "docs/COOKBOOK.md has fewer than 45 commands"
# A build for tests measures nothing that counts, so few rounds do.
cat of-readme of-cookbook | awk '!seen[$0]++' | sed '/^bench --calibrate/s/$/ --rounds 20/' >commands
while read -r line; do
    eval "run 0 $line" # quotes group words, as in a reader's shell
done <commands

echo "files that a report is made of"
for file in quickstart-report/report.html quickstart-report/results.json quickstart-report/results.csv \
    quickstart-report/results.parquet quickstart-report/timeline.csv quickstart-report/timeline.parquet \
    quickstart-report/fio.json quickstart-report/latency.hlog report.html fio.json trace.json; do
    if [ -s "$file" ]; then echo "ok      $file"; else fail "docs/COOKBOOK.md: its commands leave no $file"; fi
done
if [ -n "$(find . -name '*.flashlane-new-*')" ]; then fail "something unfinished is left behind"; fi

echo "the main job, without a command"
if run 0; then
    for text in pblk QBLK "block SSD" "WA" "latency" "mean read in us" "mean write in us" \
        "dies programming" "Least write amplification" "moved by garbage collection" "limited by GC" ": steady: write amplification" \
        "fingerprint" "bundled"; do
        has out "$text"
    done
    # README.md shows what comes out: the simulation gives every reader the same numbers.
    for number in $(sed -n 's/^[A-Za-z ]*, 32 threads  *\([0-9,]*\) .*/\1/p' "$root/README.md"); do
        has out " $number "
    done
fi

echo "JSON: the promised keys; the same seed gives the same fingerprint, another seed another one"
job="run job.fio --device peers-16g --target pblk --json -"
mark() { sed -n 's/^ *"fingerprint": *"\([0-9a-f]*\)".*/\1/p' out; }
# shellcheck disable=SC2086
if run 0 $job --seed 1; then
    for key in fingerprint wall_seconds runs name requests bytes_read bytes_written runtime_ns latency_ns \
        read write mean p50 p99 p99_9 max write_amplification_ratio programmed_sectors user gc fold \
        padding_flush padding_pair padding_gc metadata log retry dead erases violations steady; do
        grep -qF "\"$key\":" out || fail "$what: no key $key"
    done
    has out '"violations": 0,'
    one=$(mark)
    # shellcheck disable=SC2086
    run 0 $job --seed 1 && [ "$(mark)" = "$one" ] || fail "$what: another fingerprint than $one"
    # shellcheck disable=SC2086
    run 0 $job --seed 2 && [ "$(mark)" != "$one" ] || fail "$what: the fingerprint of seed 1"
fi
if run 0 reproduce; then
    has out lightnvm-table1
    has out lightnvm-fig8
fi
if run 0 trace info traces/ext4-sqlite-git.blkparse.zst; then has out "93598 requests"; fi
if run 0 trace info web.parquet; then has out "device web_1"; fi
if run 0 trace info git.iolog; then has out "fio I/O log 3"; fi
# Formats of numbers alone are guesses, unless they are named.
for sample in traces/samples/sample.*; do
    case $sample in
    *.disksim.*) format="--format disksim" ;;
    *.femu.*) format="--format femu-replayer" ;;
    *.mqsim.*) format="--format mqsim" ;;
    *.ssdsim.*) format="--format ssdsim" ;;
    *.tencent.*) format="--format tencent" ;;
    *) format= ;;
    esac
    # shellcheck disable=SC2086 # none, or two words
    run 0 trace validate "$sample" $format && has out "good"
done
for command in run check sweep compare torture reproduce "trace info" "trace validate" "trace convert" \
    "drive create" "drive inject" "drive upgrade" "lnvm list" "lnvm knobs" "lnvm init" "lnvm create" "lnvm remove" "lnvm info" "lnvm id-ns" "lnvm chunk-log" "lnvm diag-bbtbl" \
    "lnvm diag-set-bbtbl" "lnvm factory" top completions; do
    # shellcheck disable=SC2086
    if run 0 $command --help; then has out Examples; fi
done

if run 0 run --help; then
    presets=$(ls "$root"/presets/devices/*.toml | wc -l)
    grep -q " $((presets)) presets" "$readme" || fail "README.md says another number of presets than $presets"
    for preset in "$root"/presets/devices/*.toml; do has out "$(basename "$preset" .toml)"; done
fi
if run 0 $job; then
    [ "$(wc -l <out)" -lt 1000 ] || fail "$what: a line for each number of the timeline"
fi

echo "wrong input: a message that names the place, exit code 2, no panic"
refused missing.toml run missing.toml
refused "no device preset" run job.fio --device westlakee --target pblk
refused frobnicate run --frobnicate
refused pblkk run job.fio --device peers-16g --target pblkk
refused "unknown key" run --set run.no_such_key=1
refused "--scale-to-device" trace validate traces/samples/sample.blkparse.txt --device tiny
refused "choose a larger device" run job.fio --device tiny --target pblk
refused lightnvm-table1 reproduce lightnvm-table9
printf '[x]\nrw=randwrite\nbs=4k\nsize=1m\nno_such_option=1\n' >bad.fio
refused no_such_option run bad.fio --device peers-16g --target pblk
printf '[x]\nrw=randwrite\nbs=3k\nsize=1m\n' >bad.fio
refused "bad.fio:3: " run bad.fio --device peers-16g --target pblk
printf '[x]\nrw=randwrite\nsize=1m\ntime_based\n' >bad.fio
refused runtime run bad.fio --device peers-16g --target pblk
printf '[device]\npreset = "tlc-modern"\ncolour = 1\n' >bad.toml
refused colour check bad.toml
sed '20s/^/not a trace line /' traces/samples/sample.blkparse.txt >bad.txt
refused "20" trace validate bad.txt
refused "--lossy" trace convert traces/samples/sample.blkparse.txt lost.txt --to mqsim
[ ! -e lost.txt ] || fail "$what: left lost.txt behind"
refused "did you mean" trace convert traces/samples/sample.msr.csv lost.txt --to paquet
sed '3s/[a-zA-Z]*,4096/Rite,4096/; 3s/Read,\|Write,/Rite,/' traces/samples/sample.msr.csv >bad.csv
refused "bad.csv:3:" trace info bad.csv
head -c 700 traces/samples/sample.parquet >cut.parquet
refused "truncated" trace info cut.parquet
printf '' >empty
refused "invalid value '-1'" run job.fio --seed -1
refused "regular file" run /dev/null
refused "4KiB" check experiments/quickstart.toml --set 'workload=[{rw="randread",bs="4k"}]'
refused "there are: db, log" run job.fio --drive db.img
refused "is busy" lnvm create db.img -n other -t raw -b 1 -e 2
refused empty run empty --device peers-16g --target pblk
refused "no/such/folder" run job.fio --device peers-16g --target pblk --json no/such/folder/out.json
refused "no/such/folder" run job.fio --report no/such/folder
refused "is no folder" run job.fio --report job.fio
refused "name a folder" run job.fio --report -
refused "both want same.json" run job.fio --json same.json --fio-json same.json
refused "both want standard output" run job.fio --html - --csv -
[ ! -e same.json ] || fail "a refused command wrote same.json"

if [ "$bad" -ne 0 ]; then
    echo "readme: $bad checks failed"
    exit 1
fi
echo "readme: all good"
