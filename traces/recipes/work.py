#!/usr/bin/env python3
"""Work for the recipes of detector.sh: small programs that write to a file system as others do.

Owns: what is written, in which order and when it is made durable. Promises: the same arguments, the same
calls in the same order. Never: touches anything outside the paths that it is given.
"""

import ctypes
import os
import random
import sqlite3
import sys

LIBC = ctypes.CDLL(None, use_errno=True)


def syncfs(path):
    fd = os.open(path, os.O_RDONLY)
    if LIBC.syncfs(fd) != 0:
        raise OSError(ctypes.get_errno(), "syncfs")
    os.close(fd)


def files_under(folder):
    return sorted(os.path.join(root, name) for root, _, names in os.walk(folder) for name in names)


def tree(folder, count, kib_max, seed):
    """A folder of files of skewed sizes, a hundred in each folder."""
    rng = random.Random(seed)
    content = rng.randbytes(kib_max << 10)
    for i in range(count):
        place = os.path.join(folder, f"d{i // 100:04d}")
        os.makedirs(place, exist_ok=True)
        with open(os.path.join(place, f"f{i:06d}"), "wb") as file:
            file.write(content[: int((kib_max << 10) ** rng.random()) + 100])
    syncfs(folder)


def touch(folder, percent, rounds, seed):
    """Changes the times of some files, then syncs: a large transaction of inodes, again and again."""
    rng = random.Random(seed)
    names = files_under(folder)
    for _ in range(rounds):
        for name in rng.sample(names, len(names) * percent // 100):
            os.utime(name, (rng.randrange(1 << 30),) * 2)
        syncfs(folder)


def mail(folder, count, seed):
    """Messages that are made durable one by one; old ones go."""
    rng = random.Random(seed)
    content = rng.randbytes(32 << 10)
    os.makedirs(folder, exist_ok=True)
    here = os.open(folder, os.O_RDONLY)
    for i in range(count):
        path = os.path.join(folder, f"m{seed}.{i}")
        with open(path, "wb") as file:
            file.write(content[: rng.randrange(500, 12000)])
            os.fsync(file.fileno())
        os.fsync(here)
        if i >= 200 and rng.random() < 0.9:
            os.unlink(os.path.join(folder, f"m{seed}.{i - 200}"))


def scatter(path, mib, count, kib, durable_every, seed):
    """Overwrites random places of a file; every so many are made durable."""
    rng = random.Random(seed)
    content = rng.randbytes(kib << 10)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, mib << 20)
    for i in range(count):
        os.pwrite(fd, content, rng.randrange((mib << 10) // kib) * (kib << 10))
        if (i + 1) % durable_every == 0:
            os.fdatasync(fd)
    os.fsync(fd)


def append(path, kib, count, durable_every, seed):
    """A log that only grows, by lines of some hundred bytes up to so many KiB."""
    rng = random.Random(seed)
    content = rng.randbytes(kib << 10)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for i in range(count):
        os.write(fd, content[: rng.randrange(200, kib << 10)])
        if (i + 1) % durable_every == 0:
            os.fdatasync(fd)
    os.fsync(fd)


def sqlite(path, transactions, rows, checkpoint, full, hold, seed):
    """A table, made where there is none, and transactions in WAL mode. Every `hold` checkpoints a reader keeps the WAL from its reset: it grows."""
    rng = random.Random(seed)
    db = sqlite3.connect(path, isolation_level=None)
    if transactions:
        db.execute("PRAGMA journal_mode=WAL").fetchall()
    db.execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")
    db.execute(f"PRAGMA wal_autocheckpoint={checkpoint}").fetchall()
    last = 60000
    if not db.execute("SELECT name FROM sqlite_master").fetchall():
        db.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, n INT, body BLOB)")
        db.execute("BEGIN")
        for i in range(last):
            db.execute("INSERT INTO item VALUES(?, 0, ?)", (i, rng.randbytes(300)))
        db.execute("COMMIT")
    reader = sqlite3.connect(path, isolation_level=None)
    wrote = resets = 0
    for _ in range(transactions):
        db.execute("BEGIN")
        for _ in range(rows):
            place = rng.randrange(last)
            db.execute("UPDATE item SET n = n + 1, body = ? WHERE id = ?", (rng.randbytes(300), place))
        db.execute("COMMIT")
        wrote += rows
        if hold and wrote > checkpoint:
            wrote, resets = 0, resets + 1
            if resets % hold == 0:
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM item WHERE id < 10").fetchall()
            elif reader.in_transaction:
                reader.execute("COMMIT")
    sys.stdout.flush()
    os._exit(0)  # without closing, which would remove the WAL: its place is to be looked up


def ranges(path, name):
    """From `FIRST COUNT NAME` per line, of 4 KiB: joins what meets, by name; writes to `path`."""
    spans = {}
    for line in sys.stdin:
        first, count, what = line.split()
        spans.setdefault(what, []).append((int(first), int(first) + int(count)))
    with open(path, "w", encoding="ascii") as out:
        out.write(f"# {name}: the true blocks of journals and logs, in 4 KiB: FIRST + COUNT NAME\n")
        for what in sorted(spans):
            first, end = None, None
            for a, b in sorted(spans[what]) + [(1 << 62, 1 << 62)]:
                if end is not None and a <= end:
                    end = max(end, b)
                    continue
                if end is not None:
                    out.write(f"{first} + {end - first} {what}\n")
                first, end = a, b


def main():
    verbs = {f.__name__: f for f in (tree, touch, mail, scatter, append, sqlite, ranges)}
    verb, *args = sys.argv[1:]
    verbs[verb](*(int(a) if a.isdigit() else a for a in args))


if __name__ == "__main__":
    main()
