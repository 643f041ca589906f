"""What is particular to DuckDB's SQL: its dialect, and how it reads the lines of a text file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path

from paceline.training.preparation.sources import Csv, JsonLines, Lines
from paceline.training.preparation.sql import literal
from paceline.training.preparation.text import LONGEST_LINE

#: A text or a quoted name, which stay as they are, or a cast.
_CAST = re.compile(r"""('[^']*'|"[^"]*")|\bCAST\s*\(""", re.IGNORECASE)


class DuckDbDialect:
    """DuckDB's SQL."""

    def name(self, field: str) -> str:
        return '"' + field.replace('"', '""') + '"'

    def given(self, expression: str) -> str:
        return _CAST.sub(lambda found: found[1] or "TRY_CAST(", expression)

    def matches(self, text: str, pattern: str) -> str:
        return f"regexp_full_match({text}, {literal(pattern)})"

    def high(self, text: str) -> str:
        # DuckDB computes md5_number once for both halves; md5_number_upper alone takes four times as long.
        return f"(md5_number({text}) & 18446744073709551615::UHUGEINT)::UBIGINT"

    def low(self, text: str) -> str:
        return f"(md5_number({text}) >> 64)::UBIGINT"

    def shown(self, fields: Sequence[str]) -> str:
        return f"left(CAST(row({', '.join(fields)}) AS VARCHAR), 1000)"

    def bound(self, share: float) -> str:
        return f"{int(share * 2**64)}::UBIGINT"


def form(source: Csv | JsonLines | Lines) -> tuple[Mapping[str, str], str, str, bool]:
    """Return a text's fields, delimiter, quote and whether it has a header; a line of JSON is one field."""
    if isinstance(source, Csv):
        return source.schema, source.delimiter, source.quote, source.header
    return {"line": "text"}, chr(0x1E), "", False


def read_text_file(source: Csv | JsonLines | Lines, path: Path) -> str:
    """Return a query for a text file's rows, with text fields."""
    read = _read_csv(source, path)
    if not isinstance(source, JsonLines):
        return f"SELECT * FROM {read}"
    fields = ", ".join(
        f"CASE WHEN json_valid(line) THEN json_extract_string(line, {literal(_json_path(name))}) END "
        f"AS {DuckDbDialect().name(name)}"
        for name in source.schema
    )
    good = "coalesce(CASE WHEN json_valid(line) THEN json_type(line) = 'OBJECT' END, FALSE)"
    return f"SELECT {fields}, line AS _line, {good} AS _object FROM {read}"


def _read_csv(source: Csv | JsonLines | Lines, path: Path) -> str:
    """Return the call that reads a file's lines; no field is ever null, and what cannot be parsed is kept apart."""
    schema, delimiter, quote, header = form(source)
    columns = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in schema)
    return (
        f"read_csv({literal(escape(str(path)))}, auto_detect=false, columns={{{columns}}}, delim={literal(delimiter)}, "
        f"quote={literal(quote)}, escape={literal(quote)}, header={str(header).lower()}, nullstr={literal(chr(0x1D))}, "
        f"strict_mode=true, null_padding=false, store_rejects=true, rejects_limit=0, max_line_size={LONGEST_LINE}, "
        "hive_partitioning=false)"
    )


def _json_path(name: str) -> str:
    return '$."' + name.replace('"', '\\"') + '"'
