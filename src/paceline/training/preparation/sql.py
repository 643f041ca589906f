"""What a recipe says, as SQL that does not depend on the engine but for a few words of its `Dialect`.

    raw       a row as it was read: text fields, _file (the number of its file) and _row
    typed     its fields with their types; null where a field is missing or not of its type
    checked   and _rule, the first rule that it breaks, or null
    made      and its columns, its place (two numbers made of its identity and the seed), and _record: a row that
              broke a rule, as it was read

Everything in a place is text that any engine writes alike, so each gives a row the same place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol

from paceline.training.preparation.recipe import Expression, Recipe, Words
from paceline.training.preparation.sources import Csv, JsonLines

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
        return [name for each, made in self.recipe.columns.items() for name in output_names(each, made)]

    def made(self, raw: str) -> str:
        """Return a query for every row of `raw`: _file, _row, _rule, _record, _high, _low, _same and the columns."""
        quote = self.dialect.name
        checked = any(True for _ in self._rules())
        columns = [
            f"{f'CASE WHEN _rule IS NULL THEN {given} END' if checked else given} AS {quote(name)}"
            for each, made in self.recipe.columns.items()
            for name, given in zip(output_names(each, made), map(self.dialect.given, expressions(made)), strict=True)
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
        items += [f"r.{given} AS {read}" for given, read in zip(given_names, self._read(), strict=True)]
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
