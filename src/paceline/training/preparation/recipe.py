"""The recipe: what comes in, what is a good row, which columns a training reads; and the same as SQL."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import runpy
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from paceline.errors import DataError, PacelineError
from paceline.training.preparation.sources import Csv, JsonLines, RowSource, described
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


# Find the recipe that the command line names, in a Python file.


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


# What a recipe says, as SQL that does not depend on the engine but for a few words of its `Dialect`.
#
#     raw       a row as it was read: text fields, _file (the number of its file) and _row
#     typed     its fields with their types; null where a field is missing or not of its type
#     checked   and _rule, the first rule that it breaks, or null
#     made      and its columns, its place (two numbers made of its identity and the seed), and _record: a row that
#               broke a rule, as it was read
#
# Everything in a place is text that any engine writes alike, so each gives a row the same place.

#: What the text of a field must look like before it is cast. Engines agree on casts of such text only.
PATTERNS = {
    "int": r"[+-]?[0-9]{1,19}",
    "float": r"[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]{1,3})?",
    "bool": r"[tT]rue|[fF]alse|TRUE|FALSE|0|1",
    "date": r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "timestamp": r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T]([01][0-9]|2[0-3]):[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?",
}
CASTS = {"int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN", "date": "DATE", "timestamp": "TIMESTAMP"}
ARTICLES = {"int": "an int"}
#: Between the parts of an identity: a control character that text files do not use.
SEPARATOR = "\x1f"


class Dialect(Protocol):
    """The few words in which engines differ."""

    def name(self, field: str) -> str:
        """Quote a name."""

    def given(self, expression: str) -> str:
        """An expression of a recipe, in which a cast that fails is null."""

    def matches(self, text: str, pattern: str) -> str:
        """Whether a text as a whole matches a regular expression."""

    def high(self, text: str) -> str:
        """The first 64 bits of the MD5 of a text, as a number."""

    def low(self, text: str) -> str:
        """The last 64 bits."""

    def shown(self, fields: Sequence[str]) -> str:
        """The beginning of a row of fields of any type, as text."""

    def bound(self, share: float) -> str:
        """The number below which this share of `low` lies."""


def literal(text: str) -> str:
    """Write a text in SQL."""
    return "'" + text.replace("'", "''") + "'"


def output_names(name: str, expression: Expression) -> list[str]:
    """Return the names that a column's expressions have in the result: one, or one for each place of a vector."""
    return [name] if isinstance(expression, str | Words) else [f"{name}/{at}" for at in range(len(expression))]


def expressions(expression: Expression) -> Sequence[str]:
    if isinstance(expression, Words):
        return [f"CAST({expression.expression} AS STRING)"]
    return [expression] if isinstance(expression, str) else [f"CAST({each} AS FLOAT)" for each in expression]


class Query:
    """The SQL of a recipe in a dialect.

    `fields` are those of `raw`, where files say them themselves, and `whole` names one that holds rows as they were
    read.
    """

    def __init__(self, recipe: Recipe, dialect: Dialect, fields: Sequence[str], line_column: str = "") -> None:
        self.recipe, self.dialect, self.names, self.whole = recipe, dialect, list(fields), line_column
        source = recipe.all_sources[0]
        self.types = {name: kind for name, kind in source.fields.items() if kind}
        self.missing = source.missing if isinstance(source, Csv) else ()

    @property
    def outputs(self) -> list[str]:
        """The names of the columns in the result of `made`."""
        return [name for each, column in self.recipe.columns.items() for name in output_names(each, column)]

    def made(self, raw: str) -> str:
        """Return a query for every row of `raw`: _file, _row, _rule, _record, _high, _low, _same and the columns."""
        quote = self.dialect.name
        checked = any(True for _ in self._rules())
        columns = [
            f"{f'CASE WHEN _rule IS NULL THEN {expression} END' if checked else expression} AS {quote(name)}"
            for each, column in self.recipe.columns.items()
            for name, expression in zip(
                output_names(each, column), map(self.dialect.given, expressions(column)), strict=True
            )
        ]
        outputs = [quote(name) for name in self.outputs]
        missing = " ".join(
            f"WHEN {quote(name)} IS NULL THEN {literal(f'column {name.partition(chr(47))[0]} is missing')}"
            for name in self.outputs
        )
        passed = ", ".join(["_file", "_row", "_rule", "_identity", "_content", *self._read()])
        inner = f"SELECT {passed}, {', '.join(columns)} FROM ({self._checked(raw)}) AS c"
        rule = f"coalesce(_rule, CASE {missing} END)"
        place = f"concat(_identity, {literal(SEPARATOR + str(self.recipe.seed))})"
        # Decides between rows with one key, before their file and number, which are all that binary files identify.
        same = self.dialect.high("_content") if self.recipe.key and self.types else "NULL"
        return (
            f"SELECT _file, _row, {rule} AS _rule, CASE WHEN {rule} IS NOT NULL THEN {self._record()} END AS _record, "
            f"{self.dialect.high(place)} AS _high, {self.dialect.low(place)} AS _low, "
            f"{same} AS _same, {', '.join(outputs)} FROM ({inner}) AS m"
        )

    def split(self, name: str) -> str:
        """Return the condition for rows of this split."""
        shares = list(itertools.accumulate(self.recipe.splits.values()))
        at = list(self.recipe.splits).index(name)
        conditions = []
        if at:
            conditions.append(f"_low >= {self.dialect.bound(shares[at - 1])}")
        if at < len(shares) - 1:
            conditions.append(f"_low < {self.dialect.bound(shares[at])}")
        return " AND ".join(conditions) or "TRUE"

    def _read(self) -> list[str]:
        """The names, from `typed` on, of what a row was when it was read."""
        return [self.whole] if self.whole else [self.dialect.name(f"_read_{name}") for name in self.names]

    def _record(self) -> str:
        """A row as it was read, where it is text; else its fields."""
        if self.whole:
            return self.whole
        source, fields = self.recipe.all_sources[0], self._read()
        if self.types:
            return f"concat_ws({literal(source.delimiter if isinstance(source, Csv) else '')}, {', '.join(fields)})"
        return self.dialect.shown(fields)

    def _typed(self, raw: str) -> str:
        """Each field with its type, whether its text was good, and the texts that identify the row."""
        items = ["_file", "_row"]
        given_names = [self.whole] if self.whole else [self.dialect.name(name) for name in self.names]
        items += [f"r.{field} AS {read}" for field, read in zip(given_names, self._read(), strict=True)]
        if isinstance(self.recipe.all_sources[0], JsonLines):
            items.append("_object")
        for name in self.names:
            column, text = self.dialect.name(name), self._text(name)
            kind = self.types.get(name, "").removesuffix("?")
            good = self.dialect.name(f"_good_{name}")
            if kind in CASTS:
                cast = f"TRY_CAST({text} AS {CASTS[kind]})"
                if kind == "float":  # not infinite, as 1e999 would be
                    cast = f"CASE WHEN abs({cast}) <= 1.7976931348623157E308 THEN {cast} END"
                matches = self.dialect.matches(text, PATTERNS[kind])
                items += [f"CASE WHEN {matches} THEN {cast} END AS {column}", f"{text} IS NOT NULL AS {good}"]
            else:
                items += [f"{text} AS {column}", f"{text} IS NOT NULL AS {good}"]
        items += [f"{self._identity()} AS _identity", f"{self._content()} AS _content"]
        return f"SELECT {', '.join(items)} FROM {raw} AS r"

    def _checked(self, raw: str) -> str:
        cases = " ".join(f"WHEN NOT ({good}) THEN {literal(rule)}" for rule, good in self._rules())
        rule = f"CASE {cases} END" if cases else "CAST(NULL AS STRING)"
        return f"SELECT *, {rule} AS _rule FROM ({self._typed(raw)}) AS t"

    def _rules(self) -> Iterator[tuple[str, str]]:
        """Yield each rule's name and what is true of a good row."""
        if isinstance(self.recipe.all_sources[0], JsonLines):
            yield "not a JSON object", "_object"
        for name, kind in self.types.items():
            column, good = self.dialect.name(name), self.dialect.name(f"_good_{name}")
            if not kind.endswith("?"):
                yield f"{name} is missing", good
            plain = kind.removesuffix("?")
            if plain in CASTS:
                yield f"{name} is not {ARTICLES.get(plain, 'a ' + plain)}", f"{column} IS NOT NULL OR NOT {good}"
        for rule, predicate in self.recipe.rules.items():
            yield rule, f"coalesce({self.dialect.given(f'CAST(({predicate}) AS BOOLEAN)')}, FALSE)"

    def _text(self, name: str) -> str:
        """A field as it was read, or null where it is missing."""
        text = self.dialect.name(name)
        for word in self.missing if name in self.types else ():
            text = f"NULLIF({text}, {literal(word)})"
        return text

    def _identity(self) -> str:
        """The text that a row's place is made of: its key, or the whole row, or its number."""
        if self.recipe.key:
            return self._texts(self.recipe.key)
        return self._content()

    def _content(self) -> str:
        """A text that differs between rows that differ."""
        return self._texts(list(self.types)) if self.types else self._texts(["_file", "_row"])

    def _texts(self, names: Sequence[str]) -> str:
        quoted = (f"coalesce(CAST({self.dialect.name(name)} AS STRING), {literal(chr(30))})" for name in names)
        return f"concat_ws({literal(SEPARATOR)}, {', '.join(quoted)})"
