"""Follows a recipe: read and check, then deal the rows into shards, then write the manifest.

    folder/unfinished/     while it runs: the engine's files and progress.json, which names every finished shard
    folder/train/...       shards, each written once
    folder/manifest.json   written last; `unfinished` is removed then

An attempt that was ended leaves `unfinished`; the next one with the same recipe and the same files continues with the
shards that are missing.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.errors import DataError, UsageError, suggest
from paceline.training.preparation import Engine, Progress
from paceline.training.preparation.encoding import Encoder, transformed
from paceline.training.preparation.recipe import Recipe, Words
from paceline.training.preparation.sources import check_headers
from paceline.training.shards.drift import Moments
from paceline.training.shards.manifest import (
    Account,
    Column,
    Manifest,
    Shard,
    ShardFile,
    SourceAccount,
    Split,
    write_whole,
)
from paceline.training.shards.writing import Rows, ShardWriter, refuse_links, room_in

if TYPE_CHECKING:
    pass

#: Rows that are turned into columns at a time.
BATCH = 65536


def _duckdb(recipe: Recipe, folder: Path, threads: int | None, memory: str | None) -> Engine:
    from paceline.training.preparation.duckdb_engine import DuckDbEngine

    return DuckDbEngine(recipe, folder, threads, memory)


def _spark(recipe: Recipe, folder: Path, threads: int | None, memory: str | None) -> Engine:
    from paceline.training.preparation.spark_engine import SparkEngine

    return SparkEngine(recipe, folder, threads, memory)


#: What makes each engine: called with the recipe, its folder, the number of threads and a limit of memory ("512MB").
ENGINES: dict[str, Callable[[Recipe, Path, int | None, str | None], Engine]] = {
    "duckdb": _duckdb,
    "spark": _spark,
}


def prepare(
    recipe: Recipe,
    folder: str | Path,
    engine: str = "duckdb",
    threads: int | None = None,
    memory: str | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Make a folder of shards from raw files, and return its manifest."""
    if engine not in ENGINES:
        raise UsageError(f"there is no engine {engine!r}; {suggest(engine, ENGINES)}")
    root, sizes = Path(folder), dict[str, int]()
    for source in recipe.all_sources:
        sizes |= {str(path): path.stat().st_size for path in source.paths()}
    refuse_links(root)
    _refuse_taken(root)
    check_headers(recipe.all_sources)
    work = root / "unfinished"
    work.mkdir(parents=True, exist_ok=True)
    finished = FinishedShards(work / "progress.json", recipe.sha256(sizes))
    backend = ENGINES[engine](recipe, work, threads, memory)
    with room_in(root):
        try:
            manifest = _Preparation(recipe, root, backend, finished, progress or (lambda step, rows: None)).run()
        finally:
            backend.close()
        manifest.write(root)
    shutil.rmtree(work)
    return manifest


def _refuse_taken(root: Path) -> None:
    if (root / "manifest.json").exists():
        raise DataError(f"{root} is already a folder of shards; choose another one, or remove it first")
    if root.exists() and any(root.iterdir()) and not (root / "unfinished").is_dir():
        raise DataError(f"{root} holds other files; choose a folder that is empty or does not exist")


class FinishedShards:
    """The shards that are written, kept for an attempt that comes after this one."""

    def __init__(self, file: Path, recipe: str) -> None:
        self.file, self.recipe = file, recipe
        self.shards: dict[str, list[Shard]] = {}
        try:
            body = json.loads(file.read_bytes())
            if body["recipe"] == recipe:
                self.shards = {
                    split: [Shard(s["rows"], {name: ShardFile(**f) for name, f in s["files"].items()}) for s in shards]
                    for split, shards in body["shards"].items()
                }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return  # an attempt that was ended, or another recipe

    def add(self, split: str, number: int, shard: Shard) -> None:
        """Take note of a shard, if it is a new one."""
        shards = self.shards.setdefault(split, [])
        if number == len(shards):
            shards.append(shard)
            written = {name: [asdict(shard) for shard in each] for name, each in self.shards.items()}
            write_whole(self.file, json.dumps({"recipe": self.recipe, "shards": written}).encode())


class _Preparation:
    """One attempt to follow a recipe with an engine."""

    def __init__(
        self, recipe: Recipe, root: Path, engine: Engine, finished: FinishedShards, progress: Progress
    ) -> None:
        self.recipe, self.root, self.engine = recipe, root, engine
        self.finished, self.progress = finished, progress
        self.moments: dict[str, Moments] = {}

    def run(self) -> Manifest:
        # 1. Map: read, check, and set bad rows aside.
        sources = self.engine.read(self.progress)
        broken = self._write_rejected()
        counts = self.engine.kept()
        # 2. Reduce: count, number the words.
        read, rejected = sum(each.read for each in sources), sum(broken.values())
        account = Account(read, sum(counts.values()), broken, read - rejected - sum(counts.values()))
        if not account.kept:
            if not broken:
                raise DataError(f"no row is left of {read}: the files are empty")
            worst = max(broken, key=lambda rule: broken[rule])
            rows = self.root / "unfinished" / "rejected.parquet"
            raise DataError(f"no row is left of {read}: most broke the rule {worst!r}; {rows} holds them")
        words = {name: self.engine.words(name) for name, made in self.recipe.columns.items() if isinstance(made, Words)}
        # 3. Deal: write the rows in the order of their places.
        encoder, splits = Encoder(self.recipe.columns, words), dict[str, Split]()
        columns: dict[str, Column] = {}
        for name in self.recipe.splits:
            split_columns, splits[name] = self._deal(name, encoder)
            columns = columns or split_columns
        (self.root / "unfinished" / "rejected.parquet").replace(self.root / "rejected.parquet")
        columns = {
            name: replace(column, statistics=self.moments[name].statistics() if name in self.moments else None)
            for name, column in columns.items()
        }
        accounts = tuple(
            SourceAccount(source.kind, {str(p): p.stat().st_size for p in source.paths()}, each.read, each.rejected)
            for source, each in zip(self.recipe.all_sources, sources, strict=True)
        )
        described, sha256 = self.recipe.described(), self.finished.recipe
        return Manifest(columns, splits, account, accounts, self.recipe.shard_rows, self.recipe.seed, described, sha256)

    def _write_rejected(self) -> dict[str, int]:
        """Write the rows that were set aside, and return how many broke each rule."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        path, counted = self.root / "unfinished" / "rejected.parquet", Counter[str]()
        text = pa.string()
        schema = pa.schema([("file", text), ("line", pa.int64()), ("rule", text), ("record", text)])
        with pq.ParquetWriter(path, schema) as writer:
            for batch in self.engine.rejected():
                writer.write_batch(batch.cast(schema))
                for entry in pc.value_counts(batch.column("rule")).to_pylist():
                    counted[entry["values"]] += entry["counts"]
        return dict(counted.most_common())

    def _deal(self, split: str, encoder: Encoder) -> tuple[dict[str, Column], Split]:
        batches = transformed(self.recipe, self.engine.dealt(split, BATCH))
        first = next(batches, None)
        columns = encoder.described(first.schema) if first is not None else {}
        written = tuple(self.finished.shards.get(split, ()))
        writer = ShardWriter(self.root / split, columns, self.recipe.shard_rows, written)
        rows = 0
        for batch in itertools.chain([first] if first is not None else [], batches):
            encoded = encoder.rows(batch, columns)
            if split == next(iter(self.recipe.splits)):
                self._measure(columns, encoded)
            for shard in writer.add(encoded):
                self.finished.add(split, len(writer.shards) - 1, shard)
            rows += batch.num_rows
            self.progress(f"writing {split}", rows)
        for shard in writer.close():
            self.finished.add(split, len(writer.shards) - 1, shard)
        return columns, Split(rows, tuple(writer.shards))

    def _measure(self, columns: Mapping[str, Column], rows: Mapping[str, Rows]) -> None:
        for name, column in columns.items():
            values = rows[name]
            if not column.ragged and not column.vocabulary and isinstance(values, np.ndarray):
                expression = self.recipe.columns.get(name, name)
                positions = 1 if isinstance(expression, str | Words) else len(expression)
                self.moments.setdefault(name, Moments(positions)).add(values)
