"""A database of DuckDB, whose errors are sentences about a file, the recipe, the disk or the memory."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import DataError, MachineError, PacelineError, RunFailed, UsageError
from paceline.training.preparation.recipe import literal
from paceline.training.preparation.sources import Csv, JsonLines, Lines
from paceline.training.preparation.text import LONGEST_LINE

if TYPE_CHECKING:
    import pyarrow as pa


# What is particular to DuckDB's SQL: its dialect, and how it reads the lines of a text file.

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


#: Files below the database's folder.
DATABASE, SPILLED = "work.duckdb", "spilled"
#: Tables lie in memory if it is so many times as large as the files that are read; they cost a third less time there.
ROOM = 16
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class Database:
    """The database; what does not fit its memory lies below `folder`, and nothing of it stays after `close`.

    `size` are the bytes of the files that will be read.
    """

    def __init__(self, folder: Path, size: int, threads: int | None = None, memory: str | None = None) -> None:
        try:
            import duckdb
        except ModuleNotFoundError:
            raise MachineError("duckdb is not installed: `pip install 'paceline[data]'`") from None
        self.duckdb, self.folder = duckdb, folder
        self._remove_files()
        self.connection = duckdb.connect()
        self.run(f"SET temp_directory = {literal(str(folder / SPILLED))}")
        self.run("SET force_compression = 'uncompressed'")  # the tables are read once or twice
        query = (
            "SELECT name FROM duckdb_settings() WHERE name IN ('ieee_floating_point_ops', 'error_on_division_by_zero')"
        )
        for (name,) in self.run(query):  # a division by zero is null, as in Spark
            self.run(f"SET {name} = false")
        if threads:
            self.run(f"SET threads = {threads}")
        if memory:
            self._limit(memory)
        self.memory = self.run("SELECT current_setting('memory_limit')")[0][0]
        amount, unit = self.memory.split()
        if ROOM * size > float(amount) * UNITS[unit]:
            self.run(f"ATTACH {literal(str(folder / DATABASE))} AS stored; USE stored")

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self.connection.execute(sql).fetchall()
        return rows

    def one(self, sql: str) -> int:
        return int(self.run(sql)[0][0] or 0)

    def batches(self, sql: str, rows: int) -> Iterator[pa.RecordBatch]:
        yield from self.connection.sql(sql).to_arrow_reader(rows)

    @contextmanager
    def given(self, name: str, rows: Any) -> Iterator[None]:
        """Let queries of the block read rows of Arrow under a name."""
        self.connection.register(name, rows)
        try:
            yield
        finally:
            self.connection.unregister(name)

    @contextmanager
    def during(self, step: str) -> Iterator[None]:
        """Turn what DuckDB says when memory or disk run out during a step into one sentence."""
        try:
            yield
        except Exception as error:  # readers of batches raise errors of Arrow and of Python
            if (short := self._short(step, str(error))) is not None:
                raise short from error
            raise

    @contextmanager
    def about(self, what: object) -> Iterator[None]:
        """Turn an error of DuckDB into one about a file or the recipe."""
        try:
            yield
        except self.duckdb.Error as error:
            if self._short("", str(error)) is not None:
                raise
            raise DataError(f"{what}: {_first_line(error)}") from error

    def close(self) -> None:
        self.connection.close()
        self._remove_files()

    def _limit(self, memory: str) -> None:
        try:
            self.run(f"SET memory_limit = {literal(memory)}")
        except self.duckdb.Error as error:
            raise UsageError(f"--memory {memory}: {_first_line(error)}") from error

    def _short(self, step: str, message: str) -> PacelineError | None:
        if "No space left" in message:
            return MachineError(f"the disk of {self.folder} is full; free some space and run this again")
        if "Out of Memory" not in message:
            return None
        size, unit = self.memory.split()
        return RunFailed(
            f"DuckDB has used up its {size} {unit} of memory while {step}; run this again with "
            f"--memory {max(1, round(2 * float(size)))}{unit} or more, or with --threads 1"
        )

    def _remove_files(self) -> None:
        texts = itertools.chain(self.folder.glob("closed*.txt"), self.folder.glob("unpacked*.txt"))
        for path in (self.folder / DATABASE, self.folder / f"{DATABASE}.wal", *texts):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.folder / SPILLED, ignore_errors=True)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].strip()
