#!/bin/sh
# Runs on a drive in turns, with each of some programs: wall, user and system seconds of the whole process.
# Use: sh measure.sh FOLDER PAIRS JOB PROGRAM...   FOLDER has start.img, a drive with the target `db`.
dir=$1 pairs=$2 job=$3
shift 3
for n in $(seq "$pairs"); do
    for program in "$@"; do
        cp --sparse=always "$dir/start.img" "$dir/run.img"
        bash -c "TIMEFORMAT='%R %U %S'; time $program run $job --drive $dir/run.img --target db \
            --json /dev/null >/dev/null 2>&1" 2>&1 | tail -n 1 | sed "s|^|$(basename "$program") |"
    done
done
