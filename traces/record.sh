#!/bin/bash
# Makes a file system's work seen by the kernel's blk tracer into a trace: a recipe says which work.
#
#   record.sh RECIPE OUTPUT     a recipe by its name; without any: the list of them
#
# recipes/bundle.sh has the bundled trace (OUTPUT.blkparse.zst), recipes/detector.sh those that tune and judge the
# detector of journals (OUTPUT.parquet; the true blocks of journals and logs are put beside it, OUTPUT.truth),
# recipes/figures.sh those of the SLC/TLC paper's figures (OUTPUT.parquet; OUTPUT.warm.parquet is what came before it,
# OUTPUT.json what the application did).
#
# IMAGE_DIR  where the backing file of 2 GiB goes (default /dev/shm; must allow direct I/O)
# TMPDIR     where the scratch folder goes (default /tmp; about 200 MiB)
# FLASHLANE  the program, for Parquet (default flashlane)
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
tracing=/sys/kernel/tracing
image_dir=${IMAGE_DIR:-/dev/shm}
flashlane=${FLASHLANE:-flashlane}
image_size=2G
buffer_kb=65536          # per CPU; 80,000 requests, three actions each, fill about 20 MiB in all

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
# From a recipe on, `phase` is also in the trace.
phase() { say "phase $1"; echo "phase $1" >"$tracing/trace_marker"; }

# ---- the recipe: `bundle`, one of detector.sh's or of figures.sh's; it says what it needs and what it does ----------
#   tools          commands that must be there
#   file_system    what /proc/filesystems must name
#   actions        which events of a request are kept (a list for the tracer)
#   inputs         makes what the work needs, outside the traced device
#   prepare        makes and mounts the file system, before the recording begins
#   workload       what is recorded
#   undo           what else was changed of the machine, whatever happens
#   finish         after it: checks, truth, conversion of $work/ftrace.txt to $output
recipe=${1:-}
tools=(awk python3 losetup mountpoint)
detector_recipes= figure_recipes=
undo() { :; }
# shellcheck source=recipes/detector.sh
. "$here/recipes/detector.sh"
# shellcheck source=recipes/figures.sh
. "$here/recipes/figures.sh"
case " bundle $detector_recipes $figure_recipes " in
*" $recipe "*) ;;
*) recipe= ;;
esac
if [ $# -ne 2 ] || [ -z "$recipe" ]; then
    say "usage: ${0##*/} RECIPE OUTPUT, with one of these recipes:"
    printf '  %s\n' bundle $detector_recipes $figure_recipes >&2
    exit 2
fi
output=$(realpath -m "$2")
if [ "$recipe" = bundle ]; then
    # shellcheck source=recipes/bundle.sh
    . "$here/recipes/bundle.sh"
elif [[ " $figure_recipes " = *" $recipe "* ]]; then
    figures_setup
else
    detector_setup
fi

# ---- what must be there -----------------------------------------------------------------------
missing=()
[ "$(id -u)" = 0 ] || missing+=("root (run as uid 0)")
for tool in "${tools[@]}"; do
    command -v "$tool" >/dev/null || missing+=("command $tool")
done
[ -d "$tracing" ] || missing+=("$tracing (kernel without tracefs)")
[ -e /dev/loop-control ] || missing+=("/dev/loop-control (kernel without the loop driver)")
grep -qw "$file_system" /proc/filesystems || missing+=("$file_system in /proc/filesystems")
if [ ${#missing[@]} -ne 0 ]; then
    for thing in "${missing[@]}"; do say "missing: $thing"; done
    exit 1
fi

# ---- set up, and undo it whatever happens -----------------------------------------------------
work=$(mktemp -d)
image=$(mktemp -p "$image_dir" trace-image.XXXXXX)
mnt=$work/mnt
device= mounted_tracefs= writer= tracer_on=
old_buffer_kb= old_clock=

tracer_off() {
    [ -n "$tracer_on" ] || return 0
    tracer_on=
    echo 0 >"$tracing/tracing_on"
    echo 0 >"/sys/block/$name/trace/enable"
    echo nop >"$tracing/current_tracer"
    echo "$old_clock" >"$tracing/trace_clock"
    echo "$old_buffer_kb" >"$tracing/buffer_size_kb"
    echo 1 >"$tracing/tracing_on"
}
cleanup() {
    trap - EXIT
    set +e
    [ -z "$writer" ] || kill "$writer" 2>/dev/null
    wait
    ! mountpoint -q "$mnt" || umount "$mnt"
    tracer_off
    undo
    [ -z "$device" ] || losetup -d "$device"
    [ -z "$mounted_tracefs" ] || umount "$tracing"
    rm -f "$image"
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
mkdir "$mnt"

if [ ! -e "$tracing/current_tracer" ]; then
    mount -t tracefs nodev "$tracing"
    mounted_tracefs=1
fi
if ! grep -qw blk "$tracing/available_tracers"; then
    say "missing: the blk tracer (CONFIG_BLK_DEV_IO_TRACE)"
    exit 1
fi
if [ "$(cat "$tracing/current_tracer")" != nop ]; then
    say "tracer '$(cat "$tracing/current_tracer")' is in use; not touching it"
    exit 1
fi

# ---- record -----------------------------------------------------------------------------------
export HOME=$work LC_ALL=C
say "making the inputs"
inputs
truncate -s "$image_size" "$image"
device=$(losetup -f --show -b 4096 --direct-io=on "$image")
name=${device##*/}
prepare

old_buffer_kb=$(sed 's/.*expanded: \([0-9]*\).*/\1/' "$tracing/buffer_size_kb")
old_clock=$(sed 's/.*\[\(.*\)\].*/\1/' "$tracing/trace_clock")
tracer_on=1
echo 0 >"$tracing/tracing_on"
echo "$buffer_kb" >"$tracing/buffer_size_kb"
echo mono >"$tracing/trace_clock"
echo blk >"$tracing/current_tracer"
echo "$actions" >"/sys/block/$name/trace/act_mask"
echo 1 >"/sys/block/$name/trace/enable"
echo >"$tracing/trace"
echo 1 >"$tracing/tracing_on"

workload

echo 0 >"$tracing/tracing_on"
lost=$(cat "$tracing"/per_cpu/cpu*/stats |
    awk '/^(overrun|commit overrun|dropped events):/ { n += $NF } END { print n + 0 }')
cat "$tracing/trace" >"$work/ftrace.txt"
tracer_off
if [ "$lost" -ne 0 ]; then
    say "$lost events lost: enlarge buffer_kb"
    exit 1
fi
finish
say "wrote $output ($(stat -c %s "$output") bytes, 0 events lost)"
