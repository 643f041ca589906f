"""Executes a recipe in DuckDB, in this process; what does not fit its memory lies in a file.

Line numbers are worked out, since DuckDB does not keep them for rows that it accepts: a row's line follows from its
place among the accepted rows, the lines that were refused before it, and the line breaks inside its fields.
"""

from __future__ import annotations

import gzip
import itertools
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.errors import DataError, MachineError
from paceline.preparation import REFUSALS, Progress, SourceRows
from paceline.preparation.line_numbers import Ints, Skipped, blank_lines, count_lines, lines_at, lines_of
from paceline.preparation.recipe import Recipe
from paceline.preparation.sources import Csv, JsonLines, Lines, Parquet, Source, open_text
from paceline.preparation.sql import Query, literal

if TYPE_CHECKING:
    import pyarrow as pa

#: Files below the engine's folder.
DATABASE, SPILLED = "work.duckdb", "spilled"
#: What DuckDB calls a quote that is not closed.
UNCLOSED = "UNQUOTED VALUE"


class DuckDbDialect:
    """DuckDB's SQL."""

    def name(self, field: str) -> str:
        return '"' + field.replace('"', '""') + '"'

    def matches(self, text: str, pattern: str) -> str:
        return f"regexp_full_match({text}, {literal(pattern)})"

    def high(self, text: str) -> str:
        return f"md5_number_upper({text})"

    def low(self, text: str) -> str:
        return f"md5_number_lower({text})"

    def bound(self, share: float) -> str:
        return f"{int(share * 2**64)}::UBIGINT"


@dataclass(frozen=True)
class File:
    """A file whose rows are in `raw`, from number `first` on.

    `text` is the file that was parsed, and `lines` the lines of `path` that it consists of, if it holds only some.
    """

    path: Path
    source: int
    first: int
    rows: int
    text: Path
    header: bool = False
    lines: Ints | None = None

    def line(self, numbers: Ints) -> Ints:
        """Return the lines of `path` for lines of `text`."""
        return numbers if self.lines is None else self.lines[numbers - 1]


class DuckDbEngine:
    """Reads, checks and deals rows with DuckDB, in a database file below `folder`."""

    def __init__(self, folder: Path, threads: int | None = None, memory: str | None = None) -> None:
        try:
            import duckdb
        except ModuleNotFoundError:
            raise MachineError("duckdb is not installed: `pip install 'paceline[data]'`") from None
        self.duckdb, self.folder = duckdb, folder
        self._remove_files()
        self.connection = duckdb.connect(str(folder / DATABASE))
        self._run(f"SET temp_directory = {literal(str(folder / SPILLED))}")
        if threads:
            self._run(f"SET threads = {threads}")
        if memory:
            self._run(f"SET memory_limit = {literal(memory)}")
        self.files: list[File] = []

    def read(self, recipe: Recipe, progress: Progress) -> list[SourceRows]:
        self.recipe = recipe
        self._run("CREATE TABLE refused (_file INTEGER, line BIGINT, span BIGINT, rule VARCHAR, record VARCHAR)")
        if isinstance(recipe.all_sources[0], Parquet):
            self._map_parquet()
        else:
            for number, source in enumerate(recipe.all_sources):
                for path in source.paths():
                    self._load(number, source, path)
                    progress("reading", sum(file.rows for file in self.files))
        columns = [name for (name, *_) in self._run("DESCRIBE raw") if not name.startswith("_")]
        self.query = Query(recipe, DuckDbDialect(), columns)
        progress("checking", self._one("SELECT count(*) FROM raw"))
        self._check()
        return self._accounts()

    def rejected(self) -> Iterator[pa.RecordBatch]:
        yield from self._batches("SELECT file, line, rule, record FROM rejected ORDER BY _file, line, record", 10_000)

    def kept(self) -> dict[str, int]:
        return {
            name: self._one(f"SELECT count(*) FROM kept WHERE {self.query.split(name)}") for name in self.recipe.splits
        }

    def words(self, column: str) -> list[str]:
        name, train = self.query.dialect.name(column), self.query.split(next(iter(self.recipe.splits)))
        return sorted(word for (word,) in self._run(f"SELECT DISTINCT {name} FROM kept WHERE {train}"))

    def dealt(self, split: str, rows: int) -> Iterator[pa.RecordBatch]:
        outputs = ", ".join(self.query.dialect.name(name) for name in self.query.outputs)
        condition = self.query.split(split)
        yield from self._batches(f"SELECT {outputs} FROM kept WHERE {condition} ORDER BY _high, _low, _same", rows)

    def close(self) -> None:
        self.connection.close()
        self._remove_files()

    # --- reading ----------------------------------------------------------------------------------------------------

    def _map_parquet(self) -> None:
        """Leave the rows where they are: Parquet knows the number of each."""
        paths = [(number, path) for number, source in enumerate(self.recipe.all_sources) for path in source.paths()]
        names = "[" + ", ".join(literal(str(path)) for _, path in paths) + "]"
        with self._about("the Parquet files"):
            self._run(
                f"CREATE VIEW raw AS SELECT * EXCLUDE (filename, file_row_number), file_row_number AS _row, "
                f"(list_position({names}, filename) - 1)::INTEGER AS _file "
                f"FROM read_parquet({names}, filename=true, file_row_number=true, union_by_name=false)"
            )
        for number, path in paths:
            with self._about(path):
                rows = self._one(f"SELECT sum(num_rows)::BIGINT FROM parquet_file_metadata({literal(str(path))})")
            self.files.append(File(path, number, 0, rows, path))

    def _load(self, number: int, source: Source, path: Path) -> None:
        """Append a file's rows to the table below `raw`."""
        if isinstance(source, Csv | JsonLines | Lines):
            header = isinstance(source, Csv) and source.header
            text = self._unpacked(path) if path.suffix == ".gz" else path
            swallowed = self._load_text(number, source, File(path, number, 0, 0, text, header))
            while swallowed.lines is not None and len(swallowed.lines):
                swallowed = self._load_text(number, source, swallowed)
            return
        import pyarrow as pa

        batches = source.batches(path)  # type: ignore[attr-defined]
        first = next(batches)
        reader = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))
        self.connection.register("_given", reader)
        self._append(File(path, number, 0, 0, path), "SELECT * FROM _given")

    def _unpacked(self, path: Path) -> Path:
        """Unpack a file, so that the lines of what is wrong in it can be counted."""
        text = self.folder / f"unpacked{len(self.files)}.txt"
        try:
            with open_text(path) as packed, open(text, "wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{path} is damaged or was not written to its end: {error}") from error
        return text

    def _load_text(self, number: int, source: Csv | JsonLines | Lines, file: File) -> File:
        """Append the rows of a text; return the lines that an unclosed quote has swallowed, as a text of their own."""
        parsed = replace(source, header=file.header) if isinstance(source, Csv) else source
        self._append(file, _select(parsed, file.text))
        refused = self._refusals(file.text)
        lines, records, rules = lines_at(file.text, refused[0]), refused[1], refused[2]
        spans = [1 + record.rstrip("\r\n").count("\n") for record in records]
        again: list[tuple[int, str]] = []
        for at, record in enumerate(records):
            if rules[at] == REFUSALS[UNCLOSED] and "\n" in record.rstrip("\r\n"):
                first, *rest = record.splitlines()
                records[at] = first
                again += [(int(lines[at]) + 1 + below, line) for below, line in enumerate(rest)]
        self._keep_refused(lines, spans, records, rules)
        text = self.folder / f"swallowed{len(self.files)}.txt"
        text.write_text("".join(f"{line}\n" for _, line in again), encoding="utf-8")
        return File(file.path, number, 0, 0, text, False, file.line(np.array([at for at, _ in again], np.int64)))

    def _append(self, file: File, select: str) -> None:
        before, number = self.files[-1].first + self.files[-1].rows if self.files else 0, len(self.files)
        with self._about(file.path):
            if not number:
                self._run(f"CREATE TABLE stored AS SELECT *, 0::INTEGER AS _file FROM ({select}) LIMIT 0")
                self._run("CREATE VIEW raw AS SELECT *, rowid AS _row FROM stored")
            self._run(f"INSERT INTO stored SELECT *, {number}::INTEGER FROM ({select})")
        self.files.append(replace(file, first=before, rows=self._one("SELECT count(*) FROM stored") - before))

    def _refusals(self, text: Path) -> tuple[Ints, list[str], list[str]]:
        """Return the lines that could not be parsed: where each begins, what it says and the rule that it breaks."""
        found = self._run(
            "SELECT line_byte_position AS start, any_value(csv_line), any_value(error_type) FROM reject_errors "
            "GROUP BY start ORDER BY start"
        )
        self._run("DROP TABLE reject_errors")
        self._run("DROP TABLE reject_scans")
        records = [record.lstrip("\r\n") for _, record, _ in found]  # a blank line may stand before it
        starts = [start + len(whole) - len(record) for (start, whole, _), record in zip(found, records, strict=True)]
        return np.array(starts, np.int64), records, [REFUSALS.get(kind, kind.lower()) for _, _, kind in found]

    def _keep_refused(self, lines: Ints, spans: list[int], records: list[str], rules: list[str]) -> None:
        import pyarrow as pa

        columns = {
            "file": pa.array([len(self.files) - 1] * len(lines), pa.int32()),
            "line": lines,
            "span": pa.array(spans, pa.int64()),
            "rule": pa.array(rules, pa.string()),
            "record": pa.array([record.rstrip("\r\n") for record in records], pa.string()),
        }
        self.connection.register("_refused", pa.table(columns))
        self._run("INSERT INTO refused SELECT * FROM _refused")
        self.connection.unregister("_refused")

    # --- checking ---------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Make `rejected` and `kept` of what was read."""
        with self._about("the recipe"):
            self._run(f"CREATE TABLE made AS {self.query.made('raw')}")
        self._run("CREATE TABLE rejected (_file INTEGER, file VARCHAR, line BIGINT, rule VARCHAR, record VARCHAR)")
        for number, file in enumerate(self.files):
            self._set_aside(number, file)
        if not isinstance(self.recipe.all_sources[0], Parquet):
            self._run("DROP VIEW raw")
            self._run("DROP TABLE stored")  # its space is used again
        self._run("CREATE VIEW kept AS SELECT * FROM made WHERE _rule IS NULL")
        if self.recipe.key:
            again = "row_number() OVER (PARTITION BY _high, _low ORDER BY _same, _file, _row) > 1"
            self._run(f"CREATE TABLE duplicates AS SELECT _file, _row FROM kept QUALIFY {again}")
            first = "NOT EXISTS (FROM duplicates AS d WHERE d._file = made._file AND d._row = made._row)"
            self._run(f"CREATE OR REPLACE VIEW kept AS SELECT * FROM made WHERE _rule IS NULL AND {first}")

    def _set_aside(self, number: int, file: File) -> None:
        """Add a file's refused lines, and its rows that break a rule, to `rejected`."""
        name, source = literal(str(file.path)), self.recipe.all_sources[file.source]
        record = _record(source, self.query.names)
        broken = self.connection.sql(
            f"SELECT m._row - {file.first} AS row, m._rule AS rule, {record} AS record FROM made AS m "
            f"JOIN raw AS r ON r._row = m._row AND r._file = m._file WHERE m._file = {number} AND m._rule IS NOT NULL "
            "ORDER BY row"
        ).to_arrow_table()
        refused = self.connection.sql(
            f"SELECT line, span, rule, record FROM refused WHERE _file = {number} ORDER BY line"
        ).to_arrow_table()
        rows = broken["row"].to_numpy().astype(np.int64)
        lines = self._lines(number, file, rows, refused) if isinstance(source, Csv | JsonLines | Lines) else rows + 1
        for found, at in ((broken, lines), (refused, refused["line"].to_numpy())):
            if len(at):
                self.connection.register("_found", found.append_column("_line", [file.line(at)]))
                self._run(f"INSERT INTO rejected SELECT {number}, {name}, _line, rule, record FROM _found")
                self.connection.unregister("_found")

    def _lines(self, number: int, file: File, rows: Ints, refused: pa.Table) -> Ints:
        """Return the lines of a text in which these rows of it begin."""
        source = self.recipe.all_sources[file.source]
        breaks = np.zeros(len(rows), np.int64)
        if isinstance(source, Csv):
            fields = ", ".join(self.query.dialect.name(name) for name in self.query.names)
            text = f"concat({fields})"
            found = self.connection.sql(
                f"SELECT _row - {file.first}, length({text}) - length(replace({text}, chr(10), '')) FROM raw "
                f"WHERE _file = {number} AND contains({text}, chr(10)) ORDER BY _row"
            ).fetchnumpy()
            at, count = (values.astype(np.int64) for values in found.values())
            breaks = np.concatenate([[0], np.cumsum(count)])[np.searchsorted(at, rows)]
            inside = int(count.sum())
        else:
            inside = 0
        lines, spans = refused["line"].to_numpy(), refused["span"].to_numpy()
        if count_lines(file.text) != int(file.header) + file.rows + inside + int(spans.sum()):
            blank = blank_lines(file.text)
            lines, spans = np.concatenate([lines, blank]), np.concatenate([spans, np.ones(len(blank), np.int64)])
            order = np.argsort(lines, kind="stable")
            lines, spans = lines[order], spans[order]
        return lines_of(rows, breaks, file.header, Skipped(lines, spans))

    def _accounts(self) -> list[SourceRows]:
        accounts = [SourceRows() for _ in self.recipe.all_sources]
        counted = dict(self._run("SELECT _file, count(*) FROM rejected GROUP BY _file"))
        refused = dict(self._run("SELECT _file, count(*) FROM refused GROUP BY _file"))
        for number, file in enumerate(self.files):
            accounts[file.source].read += file.rows + refused.get(number, 0)
            accounts[file.source].rejected += counted.get(number, 0)
        return accounts

    # --- DuckDB -----------------------------------------------------------------------------------------------------

    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self.connection.execute(sql).fetchall()
        return rows

    def _one(self, sql: str) -> int:
        return int(self._run(sql)[0][0] or 0)

    def _batches(self, sql: str, rows: int) -> Iterator[pa.RecordBatch]:
        yield from self.connection.sql(sql).to_arrow_reader(rows)

    @contextmanager
    def _about(self, what: object) -> Iterator[None]:
        """Turn an error of DuckDB into one about a file or the recipe."""
        try:
            yield
        except self.duckdb.Error as error:
            message = str(error).splitlines()[0].strip()
            if "No space left" in str(error):
                raise MachineError(f"the disk of {self.folder} is full; free some space and run this again") from error
            raise DataError(f"{what}: {message}") from error

    def _remove_files(self) -> None:
        texts = itertools.chain(self.folder.glob("swallowed*.txt"), self.folder.glob("unpacked*.txt"))
        for path in (self.folder / DATABASE, self.folder / f"{DATABASE}.wal", *texts):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.folder / SPILLED, ignore_errors=True)


def _select(source: Csv | JsonLines | Lines, path: Path) -> str:
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
    schema, delimiter, quote, header = {"line": "text"}, chr(0x1E), "", False
    if isinstance(source, Csv):
        schema, delimiter, quote, header = dict(source.schema), source.delimiter, source.quote, source.header
    columns = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in schema)
    return (
        f"read_csv({literal(str(path))}, auto_detect=false, columns={{{columns}}}, delim={literal(delimiter)}, "
        f"quote={literal(quote)}, escape={literal(quote)}, header={str(header).lower()}, nullstr={literal(chr(0x1D))}, "
        "strict_mode=true, null_padding=false, store_rejects=true, rejects_limit=0, max_line_size=16777216)"
    )


def _json_path(name: str) -> str:
    return '$."' + name.replace('"', '\\"') + '"'


def _record(source: Source, names: Sequence[str]) -> str:
    """Return an expression for a row as it was read."""
    if isinstance(source, JsonLines):
        return "r._line"
    fields = [f"r.{DuckDbDialect().name(name)}" for name in names]
    if isinstance(source, Csv | Lines):
        delimiter = source.delimiter if isinstance(source, Csv) else ""
        return f"concat_ws({literal(delimiter)}, {', '.join(fields)})"
    return f"left(CAST(row({', '.join(fields)}) AS VARCHAR), 1000)"
