"""Follows a recipe: read and check, encode and deal the rows into shards, then write the manifest.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.errors import DataError, UsageError, suggest
from paceline.training.preparation import Engine, Progress
from paceline.training.preparation.recipe import Expression, Recipe, Words, output_names
from paceline.training.preparation.sources import check_headers
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
from paceline.training.shards.sealed import Moments
from paceline.training.shards.writing import Ragged, Rows, ShardWriter, refuse_links, room_in

if TYPE_CHECKING:
    import pyarrow as pa

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
        words = {
            name: self.engine.words(name) for name, column in self.recipe.columns.items() if isinstance(column, Words)
        }
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


# From the columns of an engine's result to the rows that shards hold.

#: Floating-point columns are stored as float32, which is what models compute in.
FLOATS = {"double": "<f4", "float": "<f4", "halffloat": "<f2"}


def transformed(recipe: Recipe, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches as the recipe's `transform` makes them."""
    if recipe.transform is None:
        yield from batches
        return
    import pyarrow as pa

    for batch in batches:
        table = _called(recipe.transform, pa.Table.from_batches([batch]))
        if not isinstance(table, pa.Table) or table.num_rows != batch.num_rows:
            got = f"{table.num_rows} rows for {batch.num_rows}" if isinstance(table, pa.Table) else repr(type(table))
            raise DataError(f"transform= returned {got}; it must return a pyarrow.Table with as many rows")
        yield from table.combine_chunks().to_batches()


def _called(transform: Callable[[Any], Any], rows: pa.Table) -> Any:
    """Return what a transform makes of rows, or raise `DataError` with the first row at which it fails."""
    try:
        return transform(rows)
    except Exception as error:
        first, last, fault = 0, rows.num_rows, error
        while last - first > 1:
            middle = (first + last) // 2
            try:
                transform(rows.slice(first, middle - first))
                first = middle
            except Exception as smaller:
                last, fault = middle, smaller
        row = ", ".join(f"{name}={value!r:.60}" for name, value in rows.slice(first, 1).to_pylist()[0].items())
        reason = f"{type(fault).__name__}: {fault}".partition("\n")[0]
        raise DataError(
            f"transform= fails at the row {row}: {reason}; reject such rows by a rule, or return a value for them"
        ) from error


class Encoder:
    """Turns batches of an engine into rows of shards. `words` are the vocabularies of `Words` columns."""

    def __init__(self, columns: Mapping[str, Expression], words: Mapping[str, Sequence[str]]) -> None:
        self.columns, self.words = columns, words

    def described(self, schema: pa.Schema) -> dict[str, Column]:
        """Return what the rows of each column are, from the schema of the result; `transform` may add and omit some."""
        outputs = {name: output_names(name, column) for name, column in self.columns.items()}
        covered = {each for names in outputs.values() for each in names}
        present = {name: self.columns[name] for name, names in outputs.items() if set(names) <= set(schema.names)}
        columns = present | {name: name for name in schema.names if name not in covered}
        return {name: self._column(name, each, schema) for name, each in columns.items()}

    def rows(self, table: pa.Table | pa.RecordBatch, columns: Mapping[str, Column]) -> dict[str, Rows]:
        """Return the rows of a batch."""
        return {name: self._rows(name, column, table) for name, column in columns.items()}

    def _column(self, name: str, expression: Expression, schema: pa.Schema) -> Column:
        if isinstance(expression, Words):
            return Column("<i8", vocabulary=tuple(self.words[name]))
        if not isinstance(expression, str):
            return Column("<f4", (len(expression),))
        return column_of(name, schema.field(name).type)

    def _rows(self, name: str, column: Column, table: Any) -> Rows:
        expression = self.columns.get(name, name)
        if not isinstance(expression, str | Words):
            parts = [_flat(table.column(each)) for each in output_names(name, expression)]
            return _interleaved([part.to_numpy(zero_copy_only=False) for part in parts], column.dtype)
        array = _flat(table.column(name))
        if isinstance(expression, Words):
            import pyarrow as pa
            import pyarrow.compute as pc

            positions = pc.index_in(array, value_set=pa.array(column.vocabulary, array.type))
            return np.asarray(pc.add(pc.fill_null(positions, -1), 1).to_numpy(zero_copy_only=False), np.int64)
        return ragged_rows(array, column) if column.ragged else fixed_rows(array, column)


def column_of(name: str, kind: pa.DataType) -> Column:
    """Return how a column of an Arrow type is stored, or raise `DataError`."""
    import pyarrow as pa

    t = pa.types
    if t.is_fixed_size_list(kind):
        inner = column_of(name, kind.value_type)
        return Column(inner.dtype, (kind.list_size, *inner.shape))
    if t.is_list(kind) or t.is_large_list(kind):  # of numbers
        inner = column_of(name, kind.value_type)
        if not inner.ragged and not inner.shape:
            return Column(inner.dtype, ragged=True)
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return Column("|u1", ragged=True, text=True)
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind):
        return Column("|u1", ragged=True)
    if t.is_floating(kind):
        return Column(FLOATS[str(kind)])
    if t.is_integer(kind):
        return Column(np.dtype(kind.to_pandas_dtype()).newbyteorder("<").str)
    if t.is_boolean(kind):
        return Column("|b1")
    raise DataError(
        f"the column {name!r} is of type {kind}, which cannot be stored; cast it in the recipe, "
        "for example with CAST(... AS DOUBLE) or epoch(...)"
    )


def fixed_rows(array: pa.Array, column: Column) -> Rows:
    while column.shape and hasattr(array, "flatten") and not _is_number(array):
        array = array.flatten()
    values = array.to_numpy(zero_copy_only=False)
    return np.asarray(values, column.dtype).reshape(-1, *column.shape)


def ragged_rows(array: pa.Array, column: Column) -> Ragged:
    import pyarrow as pa

    if pa.types.is_list(array.type) and array.flatten().null_count:
        raise DataError("a list of a row has a null inside, for which shards have no number; filter it in the recipe")
    if column.text or pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        array = array.cast(pa.large_binary())
        offsets = np.frombuffer(array.buffers()[1], "<i8")[array.offset : array.offset + len(array) + 1]
        data = array.buffers()[2]
        values = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    else:
        array = array.cast(pa.large_list(array.type.value_type))
        offsets = np.asarray(array.offsets)
        values = array.values.to_numpy(zero_copy_only=False)
    return Ragged(np.asarray(values[offsets[0] : offsets[-1]], column.dtype), np.diff(offsets).astype(np.int64))


def _interleaved(parts: Sequence[np.ndarray[Any, Any]], dtype: str) -> np.ndarray[Any, Any]:
    """Return vectors of which each part is a place; some thousand rows at a time stay in a core's cache."""
    interleaved = np.empty((len(parts[0]), len(parts)), dtype)
    for first in range(0, len(interleaved), 4096):
        some = slice(first, first + 4096)
        np.stack([part[some] for part in parts], axis=1, out=interleaved[some], casting="unsafe")
    return interleaved


def _flat(column: Any) -> Any:
    """Return one array of a column, which may come in chunks."""
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def _is_number(array: pa.Array) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_primitive(array.type))


if TYPE_CHECKING:
    pass
