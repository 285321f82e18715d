# Recipes of record.sh for the figures of the SLC/TLC paper, at an eighth of its sizes. To be sourced, after detector.sh.
#
# Owns: ext4 with a journal of 16 MiB, a part that warms a device up, a part that is measured, and where the latter ends.
# Promises: both parts are of one recording; a request belongs to the part in which it was issued, and has the latency
# that its completion tells; the journal went round at least `warm_laps` times before the measured part, or there is no
# recording. Never: writes to the file system back when the measured part is over.
#
#   fio-INTERVAL-MODE    8 KiB at random in a file of 256 MiB that was written once, fsync after so many
#   fallocated-2-MODE    the same in a file as fio lays it out, of which nothing was written
#
# Kept is all that the device got (D events): reads, writes, flushes.

figure_recipes=
for way in ordered data; do
    for interval in 2 4 8 16 32 64 128; do figure_recipes+="fio-$interval-$way "; done
    figure_recipes+="fallocated-2-$way "
done

case " $figure_recipes " in
*" $recipe "*) ;;
*) return 0 ;;            # what follows stands in for detector.sh's
esac

mode=${recipe##*-}
measured_mib=160         # that the device gets in the measured part: twice an eighth of 640 MiB
measured_s=90            # and how long it lasts at most
laps=1.5                 # of the journal after the preparation, as the journal counts
warm_laps=1.3            # as the trace must tell

figures_setup() {
    actions=issue,complete
    tools+=(sync cp kill mkfifo "$flashlane" mkfs.ext4 debugfs dd)
    case $recipe in
    fio-* | fallocated-*) tools+=(fio cc) ;;
    esac
}

prepare() {
    mkfs.ext4 -q -F -b 4096 -J "size=$journal_mib" "$device"
    # Tables of inodes that are made in the background would be work that nobody asked for.
    mount -t ext4 -o "data=${mode/data/journal},noinit_itable" "$device" "$mnt"
    sync -f "$mnt"
    mkfifo "$work/never"
}

# ---- the two parts ----------------------------------------------------------------------------
workload() {
    phase warm
    case $recipe in
    fio-*) dd if=/dev/urandom of="$mnt/file" bs=1M count=256 conv=fsync status=none ;;
    esac
    sync -f "$mnt"
    work tree "$mnt/tree" 4000 4 1
    until_lapped lap_work
    rm -r "$mnt/tree" "$mnt/mail"
    sync -f "$mnt"
    phase measured
    case $recipe in
    fio-* | fallocated-*) measured_fio ;;
    esac
    phase end
    end_writer
}
# Messages that are synced one by one, and times of many inodes, which are large transactions. $1: the turn
lap_work() {
    work mail "$mnt/mail" 40 "$1"
    work touch "$mnt/tree" 100 1 "$1"
}

# A write changes a file's time once per tick of 4 ms, or also when somebody has looked at it since. On the paper's
# device an fsync lasts longer than a tick, so each has a new time to commit; here it takes 0.1 ms, so each looks.
inputs() {
    case $recipe in
    fio-* | fallocated-*)
        cc -shared -fPIC -O1 -o "$work/look.so" -x c - <<'END'
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
int fsync(int file)
{
    struct stat times;
    int result = syscall(SYS_fsync, file);
    fstat(file, &times);
    return result;
}
END
        ;;
    esac
}
measured_fio() {
    local interval=${recipe#*-}
    LD_PRELOAD=$work/look.so fio --name="$recipe" --filename="$mnt/file" --size=256M --io_size=64G \
        --rw=randwrite --bs=8k --ioengine=psync --fsync="${interval%-*}" --thread >"$work/fio.log" 2>&1 &
    writer=$!
    until_measured
}

# Sectors that the device has written.
sectors_written() { local f; read -ra f <"/sys/block/$name/stat"; written=${f[6]}; }
# Waits until the device has had its bytes, or the time is over.
until_measured() {
    local written until end=$((SECONDS + measured_s))
    exec {never}<>"$work/never"
    sectors_written
    until=$((written + measured_mib * 2048))
    while [ "$written" -lt "$until" ] && [ "$SECONDS" -lt "$end" ]; do
        kill -0 "$writer" 2>/dev/null || { cat "$work"/*.log >&2; exit 1; }
        read -rt 0.002 -u "$never" || true    # a pause without a program
        sectors_written
    done
    exec {never}<&-
}
# At once: what it has in its hands is not written any more.
end_writer() {
    [ -n "$writer" ] || return 0
    kill -KILL "$writer"
    wait "$writer" 2>/dev/null || true
    writer=
}

# ---- afterwards -------------------------------------------------------------------------------
finish() {
    local part base=${output%.parquet}
    cd /
    umount "$mnt"
    : >>"$work/truth.raw"
    note_journal
    work ranges "$work/truth" "$recipe" <"$work/truth.raw"
    for part in warm measured; do
        python3 "$here/ftrace2blkparse.py" --phase "$part" <"$work/ftrace.txt" >"$work/$part.blkparse"
        "$flashlane" trace convert "$work/$part.blkparse" "$work/$part.parquet" >&2
        summary "$part"
    done
    cp "$work/warm.parquet" "$base.warm.parquet"
    cp "$work/truth" "$base.truth"
    cp "$work/measured.parquet" "$output"
}
# Says what the table of traces/README.md has, and refuses a warm part that is none. $1: the part
summary() {
    awk -v part="$1" -v want="$warm_laps" -v size="$((journal_mib * 256))" '
    FNR == NR { if ($2 == "+") { n++; first[n] = $1; end[n] = $1 + $3; what[n] = $4 } next }
    $6 == "D" && $7 ~ /F/ { requests++; flushes++ }
    $6 == "D" && $7 ~ /R/ { requests++; reads++; read_blocks += $10 / 8 }
    $6 == "D" && $7 ~ /W/ {
        requests++
        writes++
        written += $10 / 8
        for (i = 1; i <= n; i++)
            if ($8 / 8 >= first[i] && $8 / 8 < end[i]) logged[what[i]] += $10 / 8
    }
    END {
        printf "%s: %d requests, %d flushes; reads %d of %.1f MiB, writes %d of %.1f MiB, of which",
            part, requests, flushes, reads, read_blocks / 256, writes, written / 256
        for (name in logged) printf " %s %.3f", name, logged[name] / written
        printf "; journal %.2f times round\n", logged["journal"] / size
        exit part == "warm" && logged["journal"] < want * size
    }' "$work/truth" "$work/$1.blkparse" >&2 || { say "the journal did not go round before the measured part"; exit 1; }
}
