#!/usr/bin/env python3
"""ftrace text of the kernel's blk tracer (stdin) -> blkparse's default text (stdout).

Keeps the actions Q, D and C and the notes written to trace_marker (as action m); drops the rest.
With `--writes` it keeps only what is written, as the device got it (D).
With `--phase NAME` it keeps the requests that the device got (D) from the note `phase NAME` to the next
such note, and all completions (C) from there on, for the last ones come after that. `--phase NAME MIB` ends
with the request that makes it so many MiB of writes, if that comes first.
Sequence numbers count the kept lines of each CPU, as blktrace numbers per CPU. Time starts at 0.
A line that is neither dropped on purpose nor understood ends the conversion: nothing is lost silently.
"""

import re
import sys

KEPT = {"Q", "D", "C"}
DROPPED = {"G", "I", "M", "F", "P", "U", "UT", "X", "B", "A", "R", "S", "T", "m"}

# "   mkfs.ext4-3208    [001] d..1.   534.714462:   7,0    Q  RA 0 + 32 [mkfs.ext4]"
CONTEXT = re.compile(r"^\s*(?P<task>.*)-(?P<pid>\d+)\s+\[(?P<cpu>\d+)\]\s+\S+\s+(?P<s>\d+)\.(?P<us>\d{6}): (?P<what>.*)$")
EVENT = re.compile(r"^\s*(?P<major>\d+),(?P<minor>\d+)\s+(?P<action>[A-Za-z]+)\s+(?P<rwbs>[A-Z]+) (?P<rest>.*)$")
# With a length: a flush is a write without one.
WRITE = re.compile(r"^D[A-Z]*W[A-Z]*\d+ \+ [1-9]")
LENGTH = re.compile(r"^\d+ \+ (\d+)")
NOTE = re.compile(r"^tracing_mark_write: (?P<text>.*)$")


def main():
    writes_only = sys.argv[1:] == ["--writes"]
    wanted = sys.argv[2] if sys.argv[1:2] == ["--phase"] else None
    phase = None
    sectors_left = int(sys.argv[3]) * 2048 if len(sys.argv) > 3 else None
    start_us = None
    device = None
    pending_notes = []  # notes from before the first event: printed at its time
    sequence = {}
    out = sys.stdout

    def emit(cpu, number, us, pid, action, rwbs, rest):
        s, us = divmod(us, 1_000_000)
        major, minor = device
        out.write(f"{major:3d},{minor:<3d} {cpu:2d} {number:8d} {s:5d}.{us:06d}000 {pid:5d} {action:>2s} {rwbs:>3s} {rest}\n")

    def emit_note(cpu, us, text):  # as blkparse prints notes: sequence 0, process 0
        emit(cpu, 0, us, 0, "m", "N", text)

    for number, line in enumerate(sys.stdin, 1):
        line = line.rstrip("\n")
        if not line or line.startswith("#"):
            continue
        context = CONTEXT.match(line)
        if not context:
            sys.exit(f"ftrace2blkparse: line {number} not understood: {line!r}")
        cpu, pid = int(context["cpu"]), int(context["pid"])
        us = int(context["s"]) * 1_000_000 + int(context["us"])

        note = NOTE.match(context["what"])
        if note and wanted:
            phase = note["text"].removeprefix("phase ")
        if note and (writes_only or wanted):
            continue
        if note:
            if start_us is None:
                pending_notes.append((cpu, note["text"]))
            else:
                emit_note(cpu, us - start_us, note["text"])
            continue

        event = EVENT.match(context["what"])
        if not event or event["action"] not in KEPT | DROPPED:
            sys.exit(f"ftrace2blkparse: line {number} not understood: {line!r}")
        if event["action"] in DROPPED or (writes_only and not WRITE.match(event["action"] + event["rwbs"] + event["rest"])):
            continue
        if wanted and (event["action"] != "D" or phase != wanted) and (event["action"] != "C" or start_us is None):
            continue
        length = LENGTH.match(event["rest"])
        if sectors_left is not None and event["action"] == "D" and "W" in event["rwbs"] and length:
            sectors_left -= int(length[1])
            if sectors_left <= 0:
                wanted = "nothing more"
        if start_us is None:
            start_us = us
            device = (int(event["major"]), int(event["minor"]))
            for note_cpu, text in pending_notes:
                emit_note(note_cpu, 0, text)
        if (int(event["major"]), int(event["minor"])) != device:
            sys.exit(f"ftrace2blkparse: line {number} is of a second device: {line!r}")
        sequence[cpu] = sequence.get(cpu, 0) + 1
        emit(cpu, sequence[cpu], us - start_us, pid, event["action"], event["rwbs"], event["rest"])


if __name__ == "__main__":
    main()
