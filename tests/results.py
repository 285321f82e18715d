"""Opens result files with every reader that is here, and compares what they give.

Use: results.py FOLDER... FILE.csv...       a folder is what `flashlane run --report` has written
"""
import csv, importlib, json, math, os, sys

bad = 0


def fail(text):
    global bad
    bad += 1
    print("FAIL ", text)


def plain(value):
    """A cell as None, a bool, a number or a text, whichever reader it is from."""
    if value is None or value == "":
        return None
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        return None
    if value in ("true", "false"):
        return value == "true"
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value if isinstance(value, bool) else float(value)


def same(one, other):
    if isinstance(one, float) and isinstance(other, float):
        # The CSV has six digits of a ratio.
        return abs(one - other) <= 1e-6 * max(1.0, abs(one))
    return one == other


def compare(name, rows, others):
    for reader, read in others.items():
        if len(read) != len(rows):
            fail(f"{name}: {reader} has {len(read)} rows, csv has {len(rows)}")
            continue
        for number, (row, other) in enumerate(zip(rows, read)):
            if list(row) != list(other):
                fail(f"{name}: {reader} has other columns than csv")
                break
            for column in row:
                one, two = plain(row[column]), plain(other[column])
                if not same(one, two):
                    fail(f"{name}: row {number}, {column}: csv has {one!r}, {reader} {two!r}")


def records(frame):
    return frame.to_dict("records") if hasattr(frame, "to_dict") and hasattr(frame, "iloc") else frame.to_dicts()


def there(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def read_csv(path):
    with open(path, newline="") as file:
        lines = list(csv.reader(file))
    head = lines[0] if lines else []
    twice = sorted({name for name in head if head.count(name) > 1})
    if twice:
        fail(f"{path}: columns that are there twice: {', '.join(twice)}")
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def duck(path):
    duckdb = there("duckdb")
    how = f"read_parquet('{path}')" if path.endswith(".parquet") else f"read_csv('{path}', header=true, sample_size=-1)"
    found = duckdb.sql(f"select * from {how}")
    return [dict(zip(found.columns, row)) for row in found.fetchall()]


def readers_of(csv_path, parquet_path):
    pandas, polars, duckdb = there("pandas"), there("polars"), there("duckdb")
    others = {}
    if pandas:
        others["pandas.read_csv"] = records(pandas.read_csv(csv_path))
    if polars:
        others["polars.read_csv"] = polars.read_csv(csv_path, infer_schema_length=None).to_dicts()
    if duckdb:
        others["duckdb csv"] = duck(csv_path)
    if parquet_path:
        if pandas:
            others["pandas.read_parquet"] = records(pandas.read_parquet(parquet_path))
        if polars:
            others["polars.read_parquet"] = polars.read_parquet(parquet_path).to_dicts()
        if duckdb:
            others["duckdb parquet"] = duck(parquet_path)
    return others


def as_in_json(folder, rows):
    """What a run did not do is null in JSON and nothing in the CSV; what it did is a number in both."""
    with open(f"{folder}/results.json") as file:
        runs = json.load(file)["runs"]
    for run, row in zip(runs, rows):
        for op in ("read", "write", "discard", "flush"):
            latency = run["latency_ns"][op]
            for json_name, name in (("mean", "mean"), ("p99", "p99"), ("p99_9", "p99_9"), ("max", "max")):
                one, two = latency[json_name], plain(row[f"{op}_{name}_ns"])
                if (latency["count"] == 0) != (one is None) or one != two:
                    fail(f"{folder}: {op} {name}: {latency['count']} values, JSON has {one}, CSV {two}")


for given in sys.argv[1:]:
    if given.endswith(".csv"):
        compare(given, read_csv(given), readers_of(given, None))
        continue
    tables = [name for name in sorted(os.listdir(given)) if name.endswith(".csv")]
    if "results.csv" not in tables:
        fail(f"{given}: no results.csv among {tables}")
        continue
    for name in tables:
        path = f"{given}/{name}"
        parquet = path[:-4] + ".parquet"
        if not os.path.exists(parquet):
            fail(f"{path} has no Parquet beside it")
            continue
        rows = read_csv(path)
        compare(path, rows, readers_of(path, parquet))
        if name == "results.csv":
            as_in_json(given, rows)
sys.exit(1 if bad else 0)
