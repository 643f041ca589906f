"""Executes a recipe in DuckDB, in this process; what does not fit its memory lies in a file.

Line numbers are worked out, since DuckDB does not keep them for rows that it accepts: a row's line follows from its
place among the accepted rows, the lines that were refused before it, and the line breaks inside its fields.
"""

from __future__ import annotations

import gzip
import itertools
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.errors import DataError, MachineError, PacelineError, RunFailed, UsageError
from paceline.preparation import REFUSALS, Progress, SourceRows
from paceline.preparation.duckdb_sql import DuckDbDialect, read_text_file
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
        self._run("SET force_compression = 'uncompressed'")  # the tables are read once or twice
        if threads:
            self._run(f"SET threads = {threads}")
        if memory:
            self._limit(memory)
        self.files: list[File] = []

    def read(self, recipe: Recipe, progress: Progress) -> list[SourceRows]:
        self.recipe = recipe
        self._run("CREATE TABLE refused (_file INTEGER, line BIGINT, span BIGINT, rule VARCHAR, record VARCHAR)")
        with self._during("reading the sources"):
            self._read(progress)
        columns = [name for (name, *_) in self._run("DESCRIBE raw") if not name.startswith("_")]
        whole = "_line" if isinstance(recipe.all_sources[0], JsonLines) else ""
        self.query = Query(recipe, DuckDbDialect(), columns, whole)
        progress("checking", self._one("SELECT count(*) FROM raw"))
        with self._during("checking the rows"):
            self._check()
        return self._accounts()

    def rejected(self) -> Iterator[pa.RecordBatch]:
        yield from self._batches("SELECT file, line, rule, record FROM rejected ORDER BY _file, line, record", 10_000)

    def kept(self) -> dict[str, int]:
        count = "SELECT count(*) FROM kept WHERE"
        with self._during("counting the rows"):
            return {name: self._one(f"{count} {self.query.split(name)}") for name in self.recipe.splits}

    def words(self, column: str) -> list[str]:
        name, train = self.query.dialect.name(column), self.query.split(next(iter(self.recipe.splits)))
        with self._during(f"numbering the words of {column}"):
            return sorted(word for (word,) in self._run(f"SELECT DISTINCT {name} FROM kept WHERE {train}"))

    def dealt(self, split: str, rows: int) -> Iterator[pa.RecordBatch]:
        outputs = ", ".join(self.query.dialect.name(name) for name in self.query.outputs)
        condition = self.query.split(split)
        with self._during(f"ordering the rows of {split}"):
            yield from self._batches(f"SELECT {outputs} FROM kept WHERE {condition} ORDER BY _high, _low", rows)

    def close(self) -> None:
        self.connection.close()
        self._remove_files()

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self, progress: Progress) -> None:
        """Make `raw` of all sources."""
        if isinstance(self.recipe.all_sources[0], Parquet):
            self._map_parquet()
            return
        for number, source in enumerate(self.recipe.all_sources):
            if not isinstance(source, Csv | JsonLines | Lines):
                self._load_batches(number, source)
                continue
            for path in source.paths():
                self._load(number, source, path)
                progress("reading", sum(file.rows for file in self.files))

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

    def _load(self, number: int, source: Csv | JsonLines | Lines, path: Path) -> None:
        """Append a text's rows to the table below `raw`."""
        header = isinstance(source, Csv) and source.header
        text = self._unpacked(path) if path.suffix == ".gz" else path
        swallowed = self._load_text(number, source, File(path, number, 0, 0, text, header))
        while swallowed.lines is not None and len(swallowed.lines):
            swallowed = self._load_text(number, source, swallowed)

    def _load_batches(self, number: int, source: Source) -> None:
        """Append the rows of all files of a source that reads them itself, as one query: there may be many files."""
        import pyarrow as pa

        paths, first, at = source.paths(), len(self.files), self._rows()
        counts = [0] * len(paths)

        def numbered() -> Iterator[pa.RecordBatch]:
            for place, path in enumerate(paths):
                for batch in source.batches(path):  # type: ignore[attr-defined]
                    counts[place] += batch.num_rows
                    yield batch.append_column("_file", pa.array([first + place] * batch.num_rows, pa.int32()))

        batches = numbered()
        one = next(batches)
        reader = pa.RecordBatchReader.from_batches(one.schema, itertools.chain([one], batches))
        self.connection.register("_given", reader)
        with self._about(paths[0] if len(paths) == 1 else f"{len(paths):,} files from {paths[0]} on"):
            self._store("SELECT * FROM _given")
        self.connection.unregister("_given")
        for path, rows in zip(paths, counts, strict=True):
            self.files.append(File(path, number, at, rows, path))
            at += rows

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
        self._append(file, read_text_file(parsed, file.text))
        refused = self._refusals(file.text)
        lines, records, rules = lines_at(file.text, refused[0]), refused[1], refused[2]
        spans = [1 + record.rstrip("\r\n").count("\n") for record in records]
        again: list[tuple[int, str]] = []
        for at, record in enumerate(records):
            if rules[at] == REFUSALS[UNCLOSED] and "\n" in record.rstrip("\r\n"):
                first, *rest = record.splitlines()
                records[at] = first
                again += [(int(lines[at]) + 1 + below, line) for below, line in enumerate(rest)]
        if REFUSALS[UNCLOSED] in rules:
            self._refuse_lost(file, sum(spans))
        self._keep_refused(lines, spans, records, rules)
        text = self.folder / f"swallowed{len(self.files)}.txt"
        text.write_text("".join(f"{line}\n" for _, line in again), encoding="utf-8")
        return File(file.path, number, 0, 0, text, False, file.line(np.array([at for at, _ in again], np.int64)))

    def _refuse_lost(self, file: File, refused: int) -> None:
        """Stop where a quote that is not closed has hidden lines that DuckDB gives neither as rows nor as refused."""
        number, source = len(self.files) - 1, self.recipe.all_sources[file.source]
        text = f"concat({', '.join(map(DuckDbDialect().name, source.fields))})"
        breaks = f"length({text}) - length(replace({text}, chr(10), ''))"
        rows, inside = self._run(f"SELECT count(*), sum({breaks}) FROM stored WHERE _file = {number}")[0]
        known = int(file.header) + rows + int(inside or 0) + refused + len(blank_lines(file.text))
        if (lost := count_lines(file.text) - known) > 0:
            raise DataError(
                f"{file.path}: quotes that are not closed hide {lost:,} lines or more; close them, or use Csv(quote='')"
            )

    def _append(self, file: File, select: str) -> None:
        before = self._rows()
        with self._about(file.path):
            self._store(f"SELECT *, {len(self.files)}::INTEGER AS _file FROM ({select})")
        self.files.append(replace(file, first=before, rows=self._one("SELECT count(*) FROM stored") - before))

    def _rows(self) -> int:
        """The rows that are stored."""
        return self.files[-1].first + self.files[-1].rows if self.files else 0

    def _store(self, select: str) -> None:
        """Append rows, with the numbers of their files, in their order."""
        if self.files:
            self._run(f"INSERT INTO stored {select}")
        else:
            self._run(f"CREATE TABLE stored AS {select}")
            self._run("CREATE VIEW raw AS SELECT *, rowid AS _row FROM stored")

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
        broken = "SELECT _file FROM made WHERE _rule IS NOT NULL UNION SELECT _file FROM refused ORDER BY _file"
        for (number,) in self._run(broken):
            self._set_aside(number, self.files[number])
        if not isinstance(self.recipe.all_sources[0], Parquet):
            self._run("DROP VIEW raw")
            self._run("DROP TABLE stored")  # its space is used again
        self._run("CREATE VIEW good AS SELECT *, rowid AS _at FROM made WHERE _rule IS NULL")
        if self.recipe.key:
            with self._during("dropping duplicates"):
                self._drop_duplicates()
        else:
            self._run("CREATE VIEW kept AS FROM good")

    def _drop_duplicates(self) -> None:
        """Of rows with one place keep the first by content. Counting finds the few that a window then puts in order.

        The others are listed and not deleted: DuckDB keeps 8 bytes in memory for each row near one that was deleted.
        """
        self._run("CREATE TEMP TABLE several AS SELECT _high, _low FROM good GROUP BY ALL HAVING count(*) > 1")
        rank = "row_number() OVER (PARTITION BY _high, _low ORDER BY _same, _file, _row)"
        several = "(_high, _low) IN (FROM several)"
        self._run(f"CREATE TABLE again AS SELECT _at FROM good WHERE {several} QUALIFY {rank} > 1")
        self._run("CREATE VIEW kept AS SELECT good.* FROM good ANTI JOIN again USING (_at)")

    def _set_aside(self, number: int, file: File) -> None:
        """Add a file's refused lines, and its rows that break a rule, to `rejected`."""
        name, source = literal(str(file.path)), self.recipe.all_sources[file.source]
        broken = self.connection.sql(
            f"SELECT _row - {file.first} AS row, _rule AS rule, _record AS record FROM made "
            f"WHERE _file = {number} AND _rule IS NOT NULL ORDER BY row"
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

    def _limit(self, memory: str) -> None:
        try:
            self._run(f"SET memory_limit = {literal(memory)}")
        except self.duckdb.Error as error:
            raise UsageError(f"--memory {memory}: {_first_line(error)}") from error

    @contextmanager
    def _during(self, step: str) -> Iterator[None]:
        """Turn what DuckDB says when memory or disk run out during a step into one sentence."""
        try:
            yield
        except Exception as error:  # readers of batches raise errors of Arrow and of Python
            if (short := self._short(step, str(error))) is not None:
                raise short from error
            raise

    def _short(self, step: str, message: str) -> PacelineError | None:
        if "No space left" in message:
            return MachineError(f"the disk of {self.folder} is full; free some space and run this again")
        if "Out of Memory" not in message:
            return None
        size, unit = self._run("SELECT current_setting('memory_limit')")[0][0].split()
        return RunFailed(
            f"DuckDB has used up its {size} {unit} of memory while {step}; run this again with "
            f"--memory {max(1, round(2 * float(size)))}{unit} or more, or with --threads 1"
        )

    @contextmanager
    def _about(self, what: object) -> Iterator[None]:
        """Turn an error of DuckDB into one about a file or the recipe."""
        try:
            yield
        except self.duckdb.Error as error:
            if self._short("", str(error)) is not None:
                raise
            raise DataError(f"{what}: {_first_line(error)}") from error

    def _remove_files(self) -> None:
        texts = itertools.chain(self.folder.glob("swallowed*.txt"), self.folder.glob("unpacked*.txt"))
        for path in (self.folder / DATABASE, self.folder / f"{DATABASE}.wal", *texts):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.folder / SPILLED, ignore_errors=True)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].strip()
