"""The manifest of a folder of shards: its columns, its files and the account of every row that came in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from paceline.errors import DataError, suggest

# --- The rows that were set aside, as examples ------------------------------------------------------------------------


class Example(NamedTuple):
    """A row that was set aside."""

    file: str
    line: int
    record: str


def examples(files: Iterable[Path], most: int = 3) -> dict[str, list[Example]]:
    """Return the first rows that broke each rule, from Parquet files of rejected rows, of which some may be gone."""
    import pyarrow.parquet as pq

    by_rule: dict[str, list[Example]] = {}
    for path in files:
        if not path.is_file():
            continue
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(10_000):
                for row in batch.to_pylist():
                    rule_examples = by_rule.setdefault(row["rule"], [])
                    if len(rule_examples) < most:
                        rule_examples.append(Example(row["file"], row["line"], row["record"] or ""))
    return by_rule


FORMAT = "paceline-shards"
VERSION = 1
#: A shard holds a multiple of so many rows, so that every file but the last fills whole pages, whatever a row's size.
PAGE_ROWS = 4096


@dataclass(frozen=True)
class Statistics:
    """Figures of a fixed numeric column over the first split, by which it may be normalized when it is read."""

    count: int
    mean: float
    std: float
    least: float
    greatest: float
    positions: tuple[tuple[float, float], ...] = ()  # mean and std of each place of a vector of several expressions


@dataclass(frozen=True)
class Column:
    """What a row of a column is."""

    dtype: str  # as NumPy names it
    shape: tuple[int, ...] = ()  # of one row; not used where rows are ragged
    ragged: bool = False  # rows differ in length
    text: bool = False  # the values of a row are the bytes of a string in UTF-8
    vocabulary: tuple[str, ...] = ()  # value i + 1 stands for word i, and 0 for a word that is not among them
    statistics: Statistics | None = None


@dataclass(frozen=True)
class ShardFile:
    """One file of a shard."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Shard:
    """Rows that lie in files of their own."""

    rows: int
    files: Mapping[str, ShardFile]  # by the name of the file within the split's folder


@dataclass(frozen=True)
class Split:
    """A part of the rows, such as `train`."""

    rows: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Account:
    """Where every row went: `read` = `kept` + the sum of `rejected` + `duplicates`."""

    read: int
    kept: int
    rejected: Mapping[str, int]  # by rule
    duplicates: int = 0

    @property
    def balanced(self) -> bool:
        return self.read == self.kept + sum(self.rejected.values()) + self.duplicates


@dataclass(frozen=True)
class SourceAccount:
    """What one source brought."""

    kind: str
    files: Mapping[str, int]  # path -> size in bytes
    read: int
    rejected: int


@dataclass(frozen=True)
class Manifest:
    """Everything about a folder of shards but the samples."""

    columns: Mapping[str, Column]
    splits: Mapping[str, Split]
    account: Account
    sources: tuple[SourceAccount, ...]
    shard_rows: int
    seed: int
    recipe: Mapping[str, Any] = field(default_factory=dict)  # as text, for people
    recipe_sha256: str = ""

    def split(self, name: str) -> Split:
        """Return a split, or raise `DataError` with the names that there are."""
        if name not in self.splits:
            raise DataError(f"there is no split {name!r}; {suggest(name, self.splits)}")
        return self.splits[name]

    def write(self, folder: Path) -> None:
        """Write manifest.json. The folder is complete from this moment on, and not before."""
        body = {"format": FORMAT, "version": VERSION, **asdict(self)}
        write_whole(folder / "manifest.json", (json.dumps(body, indent=1) + "\n").encode())


def read_manifest(folder: str | Path) -> Manifest:
    """Read manifest.json, or raise `DataError` with what is wrong with the folder."""
    path = Path(folder) / "manifest.json"
    if not path.is_file():
        raise DataError(_no_manifest(Path(folder)))
    try:
        body = json.loads(path.read_bytes())
        if body["format"] != FORMAT:
            raise DataError(f"{path} is not the manifest of a folder of shards")
        if body["version"] > VERSION:
            raise DataError(f"{path} has version {body['version']}; this Paceline reads up to {VERSION}: upgrade it")
        return _manifest(body)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({type(error).__name__}: {error}); prepare the folder again") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is seen whole or not at all, also after a crash."""
    partial = path.with_name(f"{path.name}.partial")
    with open(partial, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def _no_manifest(folder: Path) -> str:
    if not folder.exists():
        return f"there is no folder {folder}"
    if (folder / "unfinished").is_dir():
        return f"{folder} was not finished; run `paceline prepare` again, which continues where it stopped"
    return f"{folder} holds no manifest.json, so it is no folder of shards; `paceline prepare` makes one"


def _manifest(body: dict[str, Any]) -> Manifest:
    return Manifest(
        columns={name: column_of(column) for name, column in body["columns"].items()},
        splits={
            name: Split(split["rows"], tuple(_shard(shard) for shard in split["shards"]))
            for name, split in body["splits"].items()
        },
        account=Account(**body["account"]),
        sources=tuple(SourceAccount(**source) for source in body["sources"]),
        shard_rows=body["shard_rows"],
        seed=body["seed"],
        recipe=body["recipe"],
        recipe_sha256=body["recipe_sha256"],
    )


def column_of(body: Mapping[str, Any]) -> Column:
    """Return a column from what a file says of it."""
    figures = body["statistics"]
    positions = tuple((mean, std) for mean, std in figures.get("positions", ())) if figures else ()
    statistics = Statistics(**{**figures, "positions": positions}) if figures else None
    return Column(
        body["dtype"], tuple(body["shape"]), body["ragged"], body["text"], tuple(body["vocabulary"]), statistics
    )


def _shard(body: dict[str, Any]) -> Shard:
    return Shard(body["rows"], {name: ShardFile(**file) for name, file in body["files"].items()})
