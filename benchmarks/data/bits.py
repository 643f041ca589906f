"""One sha256 for each shard, whatever prepares it: DuckDB with 1, 2 and 4 threads, Spark with 1 and 3 partitions.

The rows are those of the dirty file with quoted names, of JSON lines with duplicates, and of Parquet.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import dirty
import pyarrow as pa
import pyarrow.parquet as pq

from paceline.training.preparation.prepare import prepare
from paceline.training.preparation.recipe import Recipe, Words
from paceline.training.preparation.sources import Csv, JsonLines, Parquet
from paceline.training.shards.manifest import read_manifest

ROWS = 100_000
#: Run in a process of its own, since Spark's Java process stays until its parent ends.
IN_SPARK = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[3]]
from pyspark.sql import SparkSession
import bits
folder, partitions = Path(sys.argv[1]), int(sys.argv[2])
settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": partitions,
            "spark.sql.files.maxPartitionBytes": (64 << 20) // 16 ** (partitions - 1)}
SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
bits.prepare_all(folder, f"Spark, {partitions} partitions", "spark")
"""
WAYS = ("DuckDB, 1 threads", "DuckDB, 2 threads", "DuckDB, 4 threads", "Spark, 1 partitions", "Spark, 3 partitions")


def recipes(folder: Path) -> dict[str, Recipe]:
    words = {"x": ["v", "id / 7"], "word": Words("name"), "text": "name", "id": "id"}
    splits = {"train": 0.7, "test": 0.3}
    csv = Csv(folder / "dirty.csv", {"id": "int", "v": "float", "name": "text"})
    objects = JsonLines(folder / "rows.jsonl", {"id": "int", "n": "text?", "v": "float?"})
    values = {"id": "id", "v": "coalesce(v, 0)", "n": "coalesce(n, '')"}
    return {
        "CSV, quoted and bad": Recipe(csv, words, {"v is small": "v < 28000"}, splits=splits),
        "JSON lines, with duplicates": Recipe(objects, values, key=["id"]),
        "Parquet": Recipe(Parquet(folder / "rows.parquet"), {"id": "id", "v": "v", "w": Words("w")}, {"v": "v > 3"}),
    }


def prepare_all(folder: Path, way: str, engine: str, threads: int | None = None) -> None:
    for name, recipe in recipes(folder).items():
        prepare(recipe, folder / way / name, engine, threads)


def measure(folder: Path) -> dict[str, Any]:
    dirty.write(folder / "dirty.csv", quoted=True)
    objects = (f'{{"id": {n % 90_000}, "n": "x{n % 7}", "v": {n}.50}}\n' for n in range(ROWS))
    (folder / "rows.jsonl").write_text(
        "".join([*objects, 'nope\n\n[1]\n{"id": "z"}\n{"id": 3, "n": null, "v": 1e5}\n'])
    )
    values = {"id": list(range(ROWS)), "v": [n / 7 for n in range(ROWS)], "w": [f"w{n % 7}" for n in range(ROWS)]}
    pq.write_table(pa.table(values), folder / "rows.parquet", row_group_size=10_000)
    for way in WAYS:
        engine, number = way.split()[0].strip(","), way.split()[1]
        if engine == "DuckDB":
            prepare_all(folder, way, "duckdb", int(number))
        else:
            here = str(Path(__file__).parent)
            subprocess.run([sys.executable, "-c", IN_SPARK, str(folder), number, here], check=True)
        print(f"prepared: {way}", flush=True)
    return {name: compared([folder / way / name for way in WAYS]) for name in recipes(folder)}


def compared(folders: list[Path]) -> dict[str, Any]:
    """Return how many different files each shard's file is, and whether all accounts and rejected lines agree."""
    manifests = [read_manifest(folder) for folder in folders]
    files = [
        {
            f"{split}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
            for split in manifests[0].splits
            for path in sorted((folder / split).iterdir())
        }
        for folder in folders
    ]
    rejected = [
        sorted((row["line"], row["rule"]) for row in pq.read_table(folder / "rejected.parquet").to_pylist())
        for folder in folders
    ]
    return {
        "ways": list(WAYS),
        "files": len(files[0]),
        "sha256 of each file": max(len({each.get(name) for each in files}) for name in files[0]),
        "accounts": len(
            {json.dumps([m.account.read, m.account.kept, m.account.rejected, m.account.duplicates]) for m in manifests}
        ),
        "lists of rejected lines": len({json.dumps(each) for each in rejected}),
        "rows": {
            "read": manifests[0].account.read,
            "kept": manifests[0].account.kept,
            "rejected": len(rejected[0]),
            "duplicates": manifests[0].account.duplicates,
        },
        "digest of all shards": hashlib.sha256(json.dumps(files[0], sort_keys=True).encode()).hexdigest(),
    }
