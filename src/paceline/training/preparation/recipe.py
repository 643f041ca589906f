"""The recipe: what comes in, what is a good row, and which columns a training reads."""

from __future__ import annotations

import hashlib
import json
import math
import runpy
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import DataError, PacelineError
from paceline.training.preparation.sources import RowSource, described
from paceline.training.shards.manifest import PAGE_ROWS


@dataclass(frozen=True)
class Words:
    """A column of numbers that stand for words, such as names of carriers; for an embedding.

    The distinct values over the first split are numbered from 1 in the order of their bytes; 0 stands for any other.
    """

    expression: str


#: What a column is made of: an SQL expression; several, which become one vector of float32; or words.
Expression = str | Sequence[str] | Words


@dataclass(frozen=True)
class Recipe:
    """Describes how raw files become a folder of shards.

    Args:
        sources: Where rows come from: `Csv`, `JsonLines`, `Parquet`, `Arrow`, `Lines`, `Images` or `Idx`. All have the
            same fields.
        columns: `{name: expression}` of what a training reads, in the order in which it gets them. An expression is SQL
            over the fields, a list of such expressions (a vector), or `Words`.
        rules: `{name: predicate}`. Rows for which a predicate is not true are rejected under its name.
        key: The field, or fields, that identify a row. One of several rows with the same key is kept. Without a key,
            equal rows are all kept.
        splits: `{name: share}` of the rows. A row's split depends on its key and the seed alone.
        seed: Seeds the places of the rows.
        shard_rows: Rows per shard, a multiple of 4,096.
        transform: A function from a `pyarrow.Table` with `columns` to one with as many rows, which may have further
            columns and leave some out. It is called with parts of the rows, so it must treat each row independently.
    """

    sources: RowSource | Sequence[RowSource]
    columns: Mapping[str, Expression]
    rules: Mapping[str, str] = field(default_factory=dict)
    key: str | Sequence[str] = ()
    splits: Mapping[str, float] = field(default_factory=lambda: {"train": 1.0})
    seed: int = 0
    shard_rows: int = 65536
    transform: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.sources, Sequence) and not isinstance(self.sources, str):
            object.__setattr__(self, "sources", tuple(self.sources))
        else:
            object.__setattr__(self, "sources", (self.sources,))
        if isinstance(self.key, str):
            object.__setattr__(self, "key", (self.key,))
        faults = list(self._faults())
        if faults:
            raise DataError("this recipe cannot be followed:\n" + "\n".join(f"  - {fault}" for fault in faults))

    @property
    def all_sources(self) -> tuple[RowSource, ...]:
        assert isinstance(self.sources, tuple)
        return self.sources

    @property
    def fields(self) -> dict[str, str]:
        """The fields of a row with their types."""
        return dict(self.all_sources[0].fields)

    def described(self) -> dict[str, Any]:
        """Return the recipe as data, for the manifest and for comparing two recipes."""
        return {
            "sources": [described(source) for source in self.all_sources],
            "columns": {name: _shown(expression) for name, expression in self.columns.items()},
            "rules": dict(self.rules),
            "key": list(self.key),
            "splits": dict(self.splits),
            "seed": self.seed,
            "shard_rows": self.shard_rows,
            "transform": getattr(self.transform, "__qualname__", None),
        }

    def sha256(self, sizes: Mapping[str, int]) -> str:
        """Return a digest of the recipe and of what it is applied to: files with their sizes."""
        code = getattr(self.transform, "__code__", None)
        body = [self.described(), dict(sizes), code.co_code.hex() if code else ""]
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

    def _faults(self) -> Iterator[str]:
        if not self.all_sources or any(not hasattr(source, "fields") for source in self.all_sources):
            yield f"sources={self.sources!r:.80} holds no sources such as paceline.Csv('rows.csv', schema={{...}})"
            return
        if len({source.kind for source in self.all_sources}) > 1:
            yield "its sources are of different kinds; prepare a folder from each, and train on a Mix of them"
        if len({tuple(getattr(source, "missing", ())) for source in self.all_sources}) > 1:
            yield "its sources have different missing=; give each all words that stand for a missing field"
        if len({tuple(source.fields.items()) for source in self.all_sources}) > 1:
            yield "its sources have different fields; give each the same schema, or prepare a folder from each"
        if not self.columns:
            yield "columns= is empty: name what the training reads, such as {'x': ['a', 'b'], 'y': 'label'}"
        for name in [*self.columns, *self.fields]:
            if not name or name.startswith("_") or "/" in name:
                yield f"{name!r} cannot name a column: names that begin with _ or hold a / are taken"
        fields = self.fields
        for name in self.key:
            if fields and name not in fields:
                yield f"key names {name!r}, which is no field; there are {', '.join(fields)}"
        if len({name.lower() for name in self.fields}) < len(self.fields):
            yield "two of its fields differ in capitals alone, which SQL does not distinguish; rename one in the schema"
        for name in self.splits:
            if not name or name.startswith(".") or "/" in name or name == "unfinished":
                yield f"{name!r} cannot name a split, which becomes a folder"
        shares = list(self.splits.values())
        if not shares or any(not 0 < share <= 1 for share in shares) or not math.isclose(sum(shares), 1):
            yield f"splits={dict(self.splits)} are not shares that sum to 1"
        if self.shard_rows < PAGE_ROWS or self.shard_rows % PAGE_ROWS:
            yield f"shard_rows={self.shard_rows} is not a multiple of {PAGE_ROWS}"
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            yield f"seed={self.seed!r} is not a whole number from 0 to 2**63 - 1"


def _shown(expression: Expression) -> Any:
    if isinstance(expression, Words):
        return {"words": expression.expression}
    return expression if isinstance(expression, str) else list(expression)


# --- Find the recipe that the command line names, in a Python file ----------------------------------------------------


def load_recipe(where: str) -> Recipe:
    """Load RECIPE as the command line names it: `file.py`, whose recipe is called `recipe`, or `file.py:name`."""
    path, _, name = where.partition(":")
    if not Path(path).is_file():
        near = f"; did you mean {path}.py?" if Path(f"{path}.py").is_file() else ""
        raise DataError(f"there is no file {path}{near}")
    try:
        namespace = runpy.run_path(path)
    except PacelineError:
        raise
    except SyntaxError as error:
        raise DataError(f"{path} does not parse: line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        where = f" in line {lines[-1]}" if lines else ""
        raise DataError(f"{path} fails when it is read{where}: {type(error).__name__}: {error}") from error
    recipe = namespace.get(name or "recipe")
    if not isinstance(recipe, Recipe):
        others = ", ".join(key for key, value in namespace.items() if isinstance(value, Recipe)) or "none"
        raise DataError(f"{path} has no Recipe called {name or 'recipe'!r}; it has {others}")
    return recipe
