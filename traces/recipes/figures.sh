# Recipes of record.sh for the figures of the SLC/TLC paper, at an eighth of its sizes. To be sourced, after detector.sh.
#
# Owns: ext4 with a journal of 16 MiB, a part that warms a device up, a part that is measured, and where the latter ends.
# Promises: both parts are of one recording; a request belongs to the part in which it was issued, and has the latency
# that its completion tells; the journal went round at least `warm_laps` times before the measured part, or there is no
# recording. Never: writes to the file system back when the measured part is over.
#
#   fio-INTERVAL-MODE    8 KiB at random in a file of 256 MiB that was written once, fsync after so many
#   fallocated-2-MODE    the same in a file as fio lays it out, of which nothing was written
#   PERSONALITY-MODE     Filebench's fileserver, varmail, webserver or proxyserver, by `flashlane filebench`
#   oltp-MODE            sysbench's oltp_read_write on MariaDB: 100,000 rows, 4 threads, redo log of 16 MiB
#
# Kept is all that the device got (D events): reads, writes, flushes.

figure_recipes=
for way in ordered data; do
    for interval in 2 4 8 16 32 64 128; do figure_recipes+="fio-$interval-$way "; done
    figure_recipes+="fallocated-2-$way "
    for personality in fileserver varmail webserver proxyserver; do figure_recipes+="$personality-$way "; done
    figure_recipes+="oltp-$way "
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
    oltp-*) tools+=(sysbench filefrag mariadbd mariadb-install-db mariadb mariadb-admin) ;;
    esac
    case $recipe in
    fio-* | fallocated-*) ;;
    *)
        if [ ! -w "$throttle" ]; then
            say "missing: $throttle (the blkio controller, cgroups of version 1, or root)"
            exit 1
        fi
        ;;
    esac
}

prepare() {
    local more=
    case $recipe in
    fio-* | fallocated-*) ;;
    *)
        on_a_device
        more=,commit=1
        ;;
    esac
    mkfs.ext4 -q -F -b 4096 -J "size=$journal_mib" "$device"
    # Tables of inodes that are made in the background would be work that nobody asked for.
    mount -t ext4 -o "data=${mode/data/journal},noinit_itable$more" "$device" "$mnt"
    mkdir "$mnt/set"
    sync -f "$mnt"
    mkfifo "$work/never"
}

# The measured part of what runs in time. Sizes are an eighth, so times are, too: ext4's commit of each 5 s and the
# kernel's writing of pages that are 30 s old. So is what may wait to be written: 10% and 20% of the 8 GB of the paper's PC.
# And the device takes so much per second, by a limit below it: what is as fast as memory would end before a commit.
device_bytes_per_s=40000000
throttle=/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device
lower=
kept=()
an_eighth_of_time() {
    local knob
    for knob in dirty_background_ratio=0 dirty_ratio=0 dirty_expire_centisecs=375 dirty_writeback_centisecs=62; do
        kept+=("${knob%=*}=$(cat "/proc/sys/vm/${knob%=*}")")
        [ "${knob#*=}" = 0 ] || echo "${knob#*=}" >"/proc/sys/vm/${knob%=*}"
    done
    echo 100000000 >/proc/sys/vm/dirty_background_bytes
    echo 200000000 >/proc/sys/vm/dirty_bytes
    echo "$(cat "/sys/block/${lower##*/}/dev") $device_bytes_per_s" >"$throttle"
}
# Puts a device on the device, whose requests wait for it.
on_a_device() {
    lower=$device
    device=$(losetup -f --show -b 4096 --direct-io=on "$lower")
    name=${device##*/}
}
undo() {
    local knob
    # Who says a ratio takes the bytes back.
    for knob in "${kept[@]}"; do echo "${knob#*=}" >"/proc/sys/vm/${knob%=*}"; done
    [ -n "$lower" ] || return 0
    echo "$(cat "/sys/block/${lower##*/}/dev") 0" >"$throttle"
    losetup -d "$device"
    device=$lower
}

# ---- the two parts ----------------------------------------------------------------------------
workload() {
    phase warm
    case $recipe in
    fio-*) dd if=/dev/urandom of="$mnt/file" bs=1M count=256 conv=fsync status=none ;;
    oltp-*)
        prepare_mariadb
        oltp prepare >"$work/sysbench.log"
        ;;
    fallocated-*) ;;
    *) personality --prepare-only >&2 ;;
    esac
    sync -f "$mnt"
    work tree "$mnt/tree" 4000 4 1
    until_lapped lap_work
    rm -r "$mnt/tree" "$mnt/mail"
    sync -f "$mnt"
    case $recipe in
    fio-* | fallocated-*) ;;
    *)
        an_eighth_of_time
        echo 3 >/proc/sys/vm/drop_caches
        ;;
    esac
    phase measured
    case $recipe in
    fio-* | fallocated-*) measured_fio ;;
    oltp-*) measured_oltp ;;
    *) personality --reuse --until-written "${measured_mib}MiB" --of "$name" --for "${measured_s}s" --json "$work/did.json" >&2 ;;
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

# Filebench's numbers; the set of files that is the largest by far is an eighth.
personality() {
    local files=()
    case $recipe in
    fileserver-*) files=(--files 1250) ;;
    esac
    "$flashlane" filebench "${recipe%-*}" "$mnt/set" "${files[@]}" "$@"
}

# Beside detector.sh's server. An event that returns something is the last one of its thread.
oltp() {
    cat >"$work/oltp.lua" <<'END'
require("oltp_read_write")
local transaction = event
function event()
    transaction()
    local stop = io.open(os.getenv("STOP"))
    return stop and stop:close()
end
END
    STOP=$work/stop sysbench "$work/oltp.lua" --db-driver=mysql --mysql-socket="$work/db.sock" --mysql-user=root \
        --mysql-db=d --tables=1 --table-size=100000 --threads=4 --events=0 --time="$((measured_s * 2))" "$@"
}
measured_oltp() {
    local server=$writer
    oltp run >"$work/sysbench.log" &
    writer=$!
    until_measured
    : >"$work/stop"
    wait "$writer"
    writer=$server
    awk '/^ *(read|write|other):/ { sub(":", "", $1); n[$1] = $2 } /transactions:/ { done = $2 } /total time:/ { s = $3 + 0 }
        END { printf "{\n  \"reads\": { \"count\": %d },\n  \"writes\": { \"count\": %d },\n", n["read"], n["write"]
            printf "  \"others\": { \"count\": %d },\n  \"transactions\": %d,\n  \"seconds\": %s\n}\n", n["other"], done, s }' \
        "$work/sysbench.log" | tee "$work/did.json" >&2
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
    local part limit= base=${output%.parquet}
    case $recipe in
    oltp-*) note_file redo "$mnt/db/ib_logfile0" ;;
    esac
    cd /
    umount "$mnt"
    : >>"$work/truth.raw"
    note_journal
    work ranges "$work/truth" "$recipe" <"$work/truth.raw"
    for part in warm measured; do
        if [ "$part" = measured ]; then limit=$measured_mib; fi
        python3 "$here/ftrace2blkparse.py" --phase "$part" $limit <"$work/ftrace.txt" >"$work/$part.blkparse"
        "$flashlane" trace convert "$work/$part.blkparse" "$work/$part.parquet" >&2
        summary "$part"
    done
    cp "$work/warm.parquet" "$base.warm.parquet"
    cp "$work/truth" "$base.truth"
    [ ! -e "$work/did.json" ] || cp "$work/did.json" "$base.json"
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
