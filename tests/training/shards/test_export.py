"""A split as one file of another format."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from paceline.errors import UsageError
from paceline.training.preparation.prepare import prepare
from paceline.training.preparation.recipe import Expression, Recipe, Words
from paceline.training.preparation.sources import Parquet
from paceline.training.shards.files import export

pytest.importorskip("duckdb")


def test_what_came_in_comes_out(tmp_path: Path) -> None:
    given = pa.table(
        {
            "id": range(9000),
            "v": [n / 8 for n in range(9000)],
            "word": [f"w{n % 7}" for n in range(9000)],
            "text": ["ü" * (n % 5) for n in range(9000)],
            "list": [list(range(n % 4)) for n in range(9000)],
        }
    )
    pq.write_table(given, tmp_path / "a.parquet")
    columns: dict[str, Expression] = {
        "id": "id",
        "pair": ["v", "id"],
        "word": Words("word"),
        "text": "text",
        "list": "list",
    }
    recipe = Recipe(Parquet(tmp_path / "a.parquet"), columns, splits={"train": 0.8, "test": 0.2}, shard_rows=4096)
    manifest = prepare(recipe, tmp_path / "out")
    counts = [
        export(tmp_path / "out", manifest, tmp_path / "train.parquet"),
        export(tmp_path / "out", manifest, tmp_path / "test.arrow", "test"),
    ]
    assert counts == [split.rows for split in manifest.splits.values()]
    with pa.memory_map(str(tmp_path / "test.arrow")) as mapped:
        rows = pq.read_table(tmp_path / "train.parquet").to_pylist() + pa.ipc.open_file(mapped).read_all().to_pylist()
    for found, row in zip(sorted(rows, key=lambda each: each["id"]), given.to_pylist(), strict=True):
        assert found == {
            "id": row["id"],
            "pair": [row["v"], row["id"]],
            "word": row["word"],
            "text": row["text"],
            "list": row["list"],
        }
    with pytest.raises(UsageError, match=r"must end in \.parquet or \.arrow"):
        export(tmp_path / "out", manifest, tmp_path / "rows.csv")
