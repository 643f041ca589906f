"""Spark gives the bits that DuckDB gives, with any number of partitions."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline.errors import DataError, MachineError
from paceline.training.preparation.prepare import prepare
from paceline.training.preparation.recipe import Recipe, Words
from paceline.training.preparation.sources import Csv, Images, JsonLines, Parquet
from tests.training.preparation.dirty import SCHEMA, write_dirty
from tests.training.preparation.test_prepare import digests

pytest.importorskip("pyspark")

#: Run in a process of its own, since Spark's Java process stays until its parent ends.
IN_SPARK = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from paceline.training.preparation.prepare import prepare
from tests.training.preparation.test_spark import recipes, said
folder, partitions = Path(sys.argv[1]), int(sys.argv[2])
settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": partitions,
            "spark.sql.files.maxPartitionBytes": (1 << 30) // 8 ** (partitions * 2)}
SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
found = {}
for name, recipe in recipes(folder).items():
    prepare(recipe, folder / f"{name}-{partitions}", "spark")
    found[name] = said(folder / f"{name}-{partitions}")
print(json.dumps(found))
"""


def write_files(folder: Path) -> None:
    write_dirty(folder / "a.csv", rows=6000, bad=100, seed=1)
    objects = [f'{{"id": {n % 900}, "n": "x{n % 7}", "v": {n}.50}}' for n in range(3000)]
    objects += ["nope", "", "[1]", '{"id": "z"}', '{"id": 3, "n": null, "v": 1e5, "more": {"a": 1}}']
    (folder / "a.jsonl").write_text("\n".join(objects))
    texts = "".join(f"{n};{n % 7},5;Zo\u00eb\n" for n in range(2000))
    (folder / "b.csv.xz").write_bytes(lzma.compress(texts.encode("cp1252") + b"7;1,5;\x81\n"))
    (folder / "c.csv").write_text('id,v,name\n1,"1,5",x\n')
    values = {"id": list(range(5000)), "v": [n / 7 for n in range(5000)], "w": [f"w{n % 7}" for n in range(5000)]}
    pq.write_table(pa.table(values), folder / "a.parquet", row_group_size=1000)


def recipes(folder: Path) -> dict[str, Recipe]:
    words = {"x": ["a", "b"], "word": Words("name"), "text": "name", "id": "id"}
    splits = {"train": 0.7, "test": 0.3}
    fields = {"id": "int", "v": "text", "name": "text"}
    encoded = Csv(folder / "b.csv.xz", fields, delimiter=";", header=False, encoding="cp1252")
    return {
        "two": Recipe(
            [encoded, Csv(folder / "c.csv", fields)], {"v": "CAST(replace(v, ',', '.') AS FLOAT)", "name": "name"}
        ),
        "csv": Recipe(Csv(folder / "a.csv", SCHEMA), words, {"b is small": "b < 8"}, splits=splits, shard_rows=4096),
        "jsonl": Recipe(
            JsonLines(folder / "a.jsonl", {"id": "int", "n": "text?", "v": "float?"}),
            {"id": "id", "v": "coalesce(v, 0)", "n": "coalesce(n, '')"},
            key=["id"],
        ),
        "parquet": Recipe(Parquet(folder / "a.parquet"), {"id": "id", "v": "v", "w": Words("w")}, {"v": "v > 3"}),
    }


def said(folder: Path) -> list[object]:
    """Return what both engines must agree on: the bytes, the account, and the rejected lines."""
    from paceline.training.shards.manifest import read_manifest

    manifest, rejected = read_manifest(folder), pq.read_table(folder / "rejected.parquet").to_pylist()
    lines = sorted([row["line"], row["rule"]] for row in rejected)
    account = manifest.account
    return [digests(manifest), [account.read, account.kept, account.duplicates], lines]


@pytest.mark.soak
@pytest.mark.parametrize("partitions", [1, 3])
def test_spark_gives_the_bits_of_duckdb(partitions: int, tmp_path: Path) -> None:
    write_files(tmp_path)
    command = [sys.executable, "-c", IN_SPARK, str(tmp_path), str(partitions)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for name, recipe in recipes(tmp_path).items():
        prepare(recipe, tmp_path / name)
        assert found[name] == said(tmp_path / name), name


def test_without_java_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MachineError, match=r"^Spark needs Java 17 or newer, and there is no java"):
        prepare(Recipe(Csv(tmp_path / "a.csv", {"id": "int"}), {"id": "id"}), tmp_path / "out", "spark")


def test_what_spark_does_not_read_is_named_before_it_is_started(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(b"1")
    with pytest.raises(DataError, match="the engine spark reads no Images; use --engine duckdb"):
        prepare(Recipe(Images(tmp_path), {"image": "image"}), tmp_path / "out", "spark")
