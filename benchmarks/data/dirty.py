"""What readers do with a CSV file of 200,000 lines, of which 1,192 are bad in six ways.

Each peer is called as its documentation says for files with errors, in a process of its own.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from paceline.errors import PacelineError
from paceline.training.preparation.prepare import prepare
from paceline.training.preparation.recipe import Recipe
from paceline.training.preparation.sources import Csv

LINES, BAD = 200_000, 1_192
#: Fields of the six kinds of bad lines, and the rule that each breaks.
KINDS = {
    "too few fields": b"%d,1.5",
    "too many fields": b"%d,1.5,a,b",
    "v is not a float": b"%d,abc,a",
    "v is missing": b"%d,,a",
    "a quote is not closed": b'%d,1.5,"a',
    "not UTF-8": b"%d,1.5,\xff\xfe",
}
DUCKDB = """
import duckdb
columns = "{'id': 'BIGINT', 'v': 'DOUBLE', 'name': 'VARCHAR'}"
duckdb.execute(f"CREATE TABLE t AS FROM read_csv('dirty.csv', columns={columns}, ignore_errors=true)")
print(duckdb.execute("SELECT count(*) FROM t").fetchone()[0])
"""
SPARK = """
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[2]").getOrCreate()
read = session.read.csv("dirty.csv", header=True, schema="id BIGINT, v DOUBLE, name STRING", mode="MODE")
print(read.cache().count())
"""
#: Prints the rows that a reader gives; `schema` is given to it where it can be.
PEERS = {
    "pandas": 'import pandas as p; print(len(p.read_csv("dirty.csv", on_bad_lines="skip", encoding_errors="replace")))',
    "pandas, as it is": 'import pandas as p; print(len(p.read_csv("dirty.csv")))',
    "Polars": 'import polars as p; print(p.read_csv("dirty.csv").height)',
    "Polars, ignore_errors": 'import polars as p; print(p.read_csv("dirty.csv", ignore_errors=True).height)',
    "Polars, all that it offers": 'import polars as p; print(p.read_csv("dirty.csv", schema={"id": p.Int64, "v": '
    'p.Float64, "name": p.String}, ignore_errors=True, truncate_ragged_lines=True, encoding="utf8-lossy").height)',
    "pyarrow": "import pyarrow.csv as c; print(c.read_csv('dirty.csv', "
    "parse_options=c.ParseOptions(invalid_row_handler=lambda row: 'skip'), "
    "convert_options=c.ConvertOptions(column_types={'v': 'float64'})).num_rows)",
    "Dask": 'import dask.dataframe as d; print(len(d.read_csv("dirty.csv", on_bad_lines="skip", '
    'encoding_errors="replace", dtype={"v": "object"})))',
    "Daft": 'import daft; print(daft.read_csv("dirty.csv").count_rows())',
    "Ray Data": 'import ray; ray.init(num_cpus=2, log_to_driver=False); print(ray.data.read_csv("dirty.csv").count())',
    "Hugging Face datasets": 'import datasets as d; print(len(d.load_dataset("csv", data_files="dirty.csv", '
    'split="train", on_bad_lines="skip", encoding_errors="replace", cache_dir="cache")))',
    "DuckDB, ignore_errors": DUCKDB,
    "Spark, as it is": SPARK.replace("MODE", "PERMISSIVE"),
    "Spark, DROPMALFORMED": SPARK.replace("MODE", "DROPMALFORMED"),
}


def write(file: Path, quoted: bool) -> dict[int, str]:
    """Write the file, the names of its good rows in quotes or not; return the rule that each bad line breaks."""
    chance, bad = random.Random(24), {}
    kinds, good = list(KINDS.items()), b'%d,%.3f,"name %d"\n' if quoted else b"%d,%.3f,name %d\n"
    with open(file, "wb") as out:
        out.write(b"id,v,name\n")
        places = dict(zip(sorted(chance.sample(range(LINES), BAD)), range(BAD), strict=True))
        for number in range(LINES):
            if number in places:
                rule, text = kinds[places[number] % len(kinds)]
                bad[number + 2] = rule
                out.write(text.replace(b"%d", b"%d" % number) + b"\n")
            else:
                out.write(good % (number, number / 7, number % 100))
    return bad


def measure(folder: Path, python: str, names: Sequence[str] = ()) -> dict[str, Any]:
    """Let every reader read both files; `python` has the peers."""
    found: dict[str, Any] = {"lines": LINES, "bad": BAD}
    for variant in ("quoted names", "plain names"):
        expected = write(folder / "dirty.csv", quoted=variant.startswith("quoted"))
        each: dict[str, Any] = {}
        listed = {engine: _prepared(folder, engine, variant, expected, each) for engine in ("duckdb", "spark")}
        each["the same lines by both engines"] = listed["duckdb"] == listed["spark"] != {}
        for name in names or PEERS:
            each[name] = _read(folder, python, PEERS[name])
            print(json.dumps({variant: {name: each[name]}}), flush=True)
        found[variant] = each
    return found


def _prepared(
    folder: Path, engine: str, variant: str, expected: dict[int, str], found: dict[str, Any]
) -> dict[int, str]:
    """Prepare the file with an engine, note what became of it, and return the rejected lines with their rules."""
    recipe = Recipe(
        Csv(str(folder / "dirty.csv"), {"id": "int", "v": "float", "name": "text"}), {"v": ["v"], "id": "id"}
    )
    try:
        account = prepare(recipe, folder / f"{engine}, {variant}", engine, threads=2).account
    except PacelineError as error:
        found[f"paceline, {engine}"] = f"refuses: {error}"
        return {}
    rows = pq.read_table(folder / f"{engine}, {variant}" / "rejected.parquet").to_pylist()
    listed = {row["line"]: row["rule"] for row in rows}
    found[f"paceline, {engine}"] = {
        "kept": account.kept,
        "rejected": len(rows),
        "every bad line with its rule": listed == expected,
        "rules": dict(Counter(listed.values())),
    }
    print(json.dumps({variant: {engine: found[f"paceline, {engine}"]}}), flush=True)
    return listed


def _read(folder: Path, python: str, program: str) -> str:
    """Return what a reader does: the rows that it gives, or the error that stops it."""
    done = subprocess.run([python, "-W", "ignore", "-c", program], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line[:1].strip()]
        return f"stops: {lines[-1][:110]}" if lines else "stops"
    rows = int(done.stdout.split()[-1])
    return f"{rows:,} rows, silently: {rows - (LINES - BAD):+,} against the good ones"
