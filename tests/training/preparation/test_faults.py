"""What cannot be prepared is named in one sentence, and nothing half is left behind."""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline.errors import DataError, MachineError, PacelineError, RunFailed, UsageError
from paceline.training.preparation.ingest import ingest
from paceline.training.preparation.prepare import prepare
from paceline.training.preparation.recipe import Recipe
from paceline.training.preparation.sources import Arrow, Csv, Parquet, RowSource
from paceline.training.shards.manifest import read_manifest

pytest.importorskip("duckdb")
CSV = b"id,v\n" + b"".join(b"%d,%d\n" % (n, n * n) for n in range(5000))


def _csv(folder: Path) -> RowSource:
    return Csv(folder / "*.csv*", {"id": "int", "v": "int"})


def _truncated_gzip(folder: Path) -> RowSource:
    (folder / "a.csv.gz").write_bytes(gzip.compress(CSV)[:-2000])
    return _csv(folder)


def _truncated_zst(folder: Path) -> RowSource:
    (folder / "a.csv.zst").write_bytes(pa.compress(CSV, "zstd", asbytes=True)[:-2000])
    return _csv(folder)


def _flipped_gzip(folder: Path) -> RowSource:
    raw = bytearray(gzip.compress(CSV))
    raw[5000] ^= 16
    (folder / "a.csv.gz").write_bytes(raw)
    return _csv(folder)


def _truncated_parquet(folder: Path) -> RowSource:
    pq.write_table(pa.table({"id": range(1000)}), folder / "a.parquet")
    raw = (folder / "a.parquet").read_bytes()
    (folder / "a.parquet").write_bytes(raw[: len(raw) // 2])
    return Parquet(folder / "a.parquet")


def _stray(folder: Path) -> RowSource:
    pq.write_table(pa.table({"id": range(1000)}), folder / "a.parquet")
    (folder / "b.parquet").write_text('{"id": 1, "and": "so on"}')
    return Parquet(folder / "*.parquet")


def _other_parquet(folder: Path) -> RowSource:
    pq.write_table(pa.table({"id": range(10)}), folder / "a.parquet")
    pq.write_table(pa.table({"name": ["x"]}), folder / "b.parquet")
    return Parquet(folder / "*.parquet")


def _arrow(path: Path, values: list[object]) -> None:
    table = pa.table({"id": values})
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


def _other_arrow(folder: Path) -> RowSource:
    _arrow(folder / "a.arrow", [1])
    _arrow(folder / "b.arrow", ["x"])
    return Arrow(folder / "*.arrow")


def _empty_arrow(folder: Path) -> RowSource:
    _arrow(folder / "a.arrow", [])
    return Arrow(folder / "a.arrow")


def _no_arrow(folder: Path) -> RowSource:
    (folder / "a.arrow").write_text("id")
    return Arrow(folder / "a.arrow")


def _null_in_a_list(folder: Path) -> RowSource:
    _arrow(folder / "a.arrow", [[1, None]])
    return Arrow(folder / "a.arrow")


def _carriage_returns(folder: Path) -> RowSource:
    (folder / "a.csv").write_bytes(b"id,v\r1,2\r")
    return _csv(folder)


def _parquet_as_csv(folder: Path) -> RowSource:
    pq.write_table(pa.table({"id": [1]}), folder / "a.csv")
    return _csv(folder)


def _empty_csv(folder: Path) -> RowSource:
    (folder / "a.csv").write_bytes(b"")
    return _csv(folder)


def _moved_fields(folder: Path) -> RowSource:
    (folder / "a.csv").write_bytes(CSV)
    (folder / "b.csv").write_bytes(b"v,id\n1,2\n")
    return _csv(folder)


def _renamed_fields(folder: Path) -> RowSource:
    (folder / "a.csv").write_bytes(b"ID,V\n1,2\n")
    (folder / "b.csv").write_bytes(b"ID,W\n1,2\n")
    return _csv(folder)


def _a_folder(folder: Path) -> RowSource:
    return Parquet(folder)


def _all_rejected(folder: Path) -> RowSource:
    (folder / "a.csv").write_bytes(CSV.replace(b",", b",x"))
    return Csv(folder / "a.csv", {"id": "int", "v": "int"}, header=False)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (_truncated_gzip, r"a\.csv\.gz is damaged or was not written to its end"),
        (_truncated_zst, r"a\.csv\.zst is damaged or was not written to its end"),
        (_flipped_gzip, r"a\.csv\.gz is damaged or was not written to its end"),
        (_truncated_parquet, r"a\.parquet"),
        (_stray, r"b\.parquet"),
        (_other_parquet, r"b\.parquet"),
        (_other_arrow, r"b\.arrow has other fields or types than .*a\.arrow"),
        (_empty_arrow, r"a\.arrow holds no rows"),
        (_no_arrow, r"a\.arrow is no Arrow file"),
        (_null_in_a_list, r"has a null inside"),
        (_carriage_returns, r"a\.csv end with a carriage return alone"),
        (_parquet_as_csv, r"a\.csv does not begin with a line of text"),
        (_empty_csv, r"no row is left of 0: the files are empty"),
        (_moved_fields, r"b\.csv begins with the fields v, id, but the schema has id, v; give the schema every field"),
        (_renamed_fields, r"b\.csv begins with the fields ID, W, but .*a\.csv with ID, V"),
        (_a_folder, r"it is a folder, whose files are .*/\*\*/\*$"),
        (_all_rejected, r"no row is left of 5001: most broke the rule"),
    ],
)
def test_files_that_cannot_be_relied_on(make: Callable[[Path], RowSource], sentence: str, tmp_path: Path) -> None:
    recipe = Recipe(make(tmp_path), {"id": "id"})
    with pytest.raises(DataError, match=sentence) as caught:
        prepare(recipe, tmp_path / "out")
    assert "\n" not in str(caught.value)
    with pytest.raises(PacelineError):
        read_manifest(tmp_path / "out")


def test_a_transform_that_fails_is_named_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(CSV)

    def inverse(rows: pa.Table) -> pa.Table:
        return pa.table({"v": [1 / (v - 289) for v in rows["v"].to_pylist()]})

    with pytest.raises(DataError, match=r"fails at the row v=289: ZeroDivisionError: .*; reject such rows"):
        prepare(Recipe(_csv(tmp_path), {"v": "v"}, transform=inverse), tmp_path / "out")


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_bytes(CSV)
    recipe, whole = Recipe(_csv(tmp_path), {"id": "id"}), os.fsync

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match="is full; make room"):
        prepare(recipe, tmp_path / "out")
    with pytest.raises(MachineError, match="is full; make room"):
        ingest(recipe, tmp_path / "s", [tmp_path / "a.csv"])
    monkeypatch.setattr(os, "fsync", whole)
    assert prepare(recipe, tmp_path / "out").account.kept == 5000
    assert ingest(recipe, tmp_path / "s", [tmp_path / "a.csv"]).kept == 5000


def test_memory_that_is_too_small_is_named_with_the_step(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(CSV)
    recipe = Recipe(_csv(tmp_path), {"id": "id"}, key="id")
    with pytest.raises(RunFailed, match=r"^DuckDB has used up .* of memory while .*; run this again with") as caught:
        prepare(recipe, tmp_path / "out", memory="1MB", threads=1)
    assert caught.value.exit_code == 1
    with pytest.raises(UsageError, match="--memory much"):
        prepare(recipe, tmp_path / "out", memory="much")
    assert prepare(recipe, tmp_path / "out").account.kept == 5000
