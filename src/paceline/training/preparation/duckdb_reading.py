"""Reads all sources of a recipe into DuckDB: `raw` has the rows, and `refused` the lines that cannot be parsed.

DuckDB does not say which lines its accepted rows come from, and where a quote is not closed it also refuses lines
behind it, or hides them. So where it refuses a quote, the file is read again without the lines whose quotes are not
closed, which `write_closed` finds.
"""

from __future__ import annotations

import itertools
import mmap
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.errors import DataError
from paceline.training.preparation import Progress, rule_of
from paceline.training.preparation.duckdb_database import Database, form, read_text_file
from paceline.training.preparation.recipe import Recipe, literal
from paceline.training.preparation.sources import Csv, JsonLines, Lines, Parquet, RowSource
from paceline.training.preparation.text import Ints, is_packed, is_utf8, line_with_return, lines_at, write_utf8

if TYPE_CHECKING:
    import pyarrow as pa


# Finds the lines of a CSV file in which a quote is not closed, whatever the lines behind them hold.
#
#     7,1.5,"a, b"       a record: each field is in quotes as a whole, or does not begin with one
#     8,"two
#     lines",c           a record of two lines
#     9,1.5,"a           no record begins here, so this line is set aside, and the next one is tried
#     10,1.5,"b",c
#
# A parser that reads on instead takes everything up to the next quote of the file for one field.

_BLOCK = 1 << 22


def record_pattern(delimiter: str, quote: str) -> re.Pattern[bytes]:
    """Return what a record looks like, to the end of its last line."""
    separator, mark = (re.escape(each.encode()) for each in (delimiter, quote))
    quoted = b"[ ]?%b[^%b]*(?:%b%b[^%b]*)*%b[ ]*" % ((mark,) * 6)
    plain = b"(?![ ]?%b)[^%b\n]*" % (mark, separator)
    field = b"(?:%b|%b)(?=%b|\r?\n|\\Z)" % (quoted, plain, separator)
    return re.compile(b"%b(?:%b%b)*(?:\r?\n|\\Z)" % (field, separator, field))


def write_closed(text: Path, closed: Path, delimiter: str, quote: str, header: bool) -> list[tuple[int, bytes]]:
    """Write a text without the lines in which a quote is not closed; return those with their numbers."""
    records, pattern = [], record_pattern(delimiter, quote)
    line, written = 1, 0
    with (
        open(text, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw,
        open(closed, "wb") as out,
    ):
        for begin, end in _unclosed(raw, pattern, quote.encode(), raw.find(b"\n") + 1 if header else 0):
            for first in range(written, begin, _BLOCK):
                block = raw[first : min(begin, first + _BLOCK)]
                line += block.count(b"\n")
                out.write(block)
            records.append((line, raw[begin:end]))
            line, written = line + 1, end
        for first in range(written, len(raw), _BLOCK):
            out.write(raw[first : first + _BLOCK])
    return records


def _unclosed(raw: mmap.mmap, pattern: re.Pattern[bytes], mark: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield from where to where the lines go at which no record begins."""
    while (quote := raw.find(mark, at)) >= 0:
        begin = max(raw.rfind(b"\n", at, quote) + 1, at)
        record = pattern.match(raw, begin)
        at = record.end() if record else raw.find(b"\n", begin) + 1 or len(raw)
        if record is None:
            yield begin, at


# Refuses a line with so many more fields than the schema that an account of it would not fit into memory.
#
# For each field too many DuckDB writes down the whole line: of one with a million fields, a million times a megabyte.

#: Bytes that DuckDB may write down of one line.
MOST = 1 << 28
#: Lines that are shorter cannot need more; where each has a line break, no other byte of a file is looked at.
SHORT = 1 << 14


def refuse_many_fields(path: Path, text: Path, delimiter: str, quote: str, fields: int) -> None:
    """Raise `DataError` with the line; `text` is what is parsed of `path`."""
    separator, mark = delimiter.encode(), re.escape(quote.encode())
    if not text.stat().st_size:  # an empty file cannot be mapped
        return
    with open(text, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        for begin, end in _long_lines(raw):
            line = raw[begin:end]
            outside = re.sub(b"%b[^%b]*%b" % (mark, mark, mark), b"", line) if mark else line
            field_count = outside.count(separator) + 1
            if (field_count - fields) * len(line) > MOST:
                number = 1 + sum(raw[at : min(begin, at + MOST)].count(b"\n") for at in range(0, begin, MOST))
                raise DataError(
                    f"{path}, line {number}: it has {field_count:,} fields, and the schema {fields}; remove it"
                )


def _long_lines(raw: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield where each line of more than twice `SHORT` bytes begins and ends, and perhaps some shorter ones."""
    at = 0
    while at < len(raw):
        if raw.find(b"\n", at, at + SHORT) >= 0 or at + SHORT >= len(raw):
            at += SHORT
            continue
        end = raw.find(b"\n", at)
        end = len(raw) if end < 0 else end
        yield raw.rfind(b"\n", 0, at) + 1, end
        at = end + 1


@dataclass(frozen=True)
class File:
    """A file whose rows are in `raw`, from number `first` on.

    `text` is what was parsed: the file, or what it holds unpacked and without the lines `removed`.
    """

    path: Path
    source: int
    first: int
    rows: int
    text: Path
    header: bool = False
    removed: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def line(self, numbers: Ints) -> Ints:
        """Return the lines of `path` for lines of `text`."""
        before = self.removed - np.arange(len(self.removed))
        lines: Ints = numbers + np.searchsorted(before, numbers, side="right")
        return lines


class RawReader:
    """Makes `raw` and `refused` in a database; `files` lists what the numbers of files in them stand for."""

    def __init__(self, database: Database, recipe: Recipe) -> None:
        self.database, self.recipe = database, recipe
        self.run, self.one = database.run, database.one
        self.files: list[File] = []
        columns = "_file INTEGER, line BIGINT, parsed BIGINT, span BIGINT, rule VARCHAR, record VARCHAR"
        self.run(f"CREATE TABLE refused ({columns})")  # `parsed` is the line's number in the text that was parsed

    def read(self, progress: Progress) -> None:
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

    # --- binary files -----------------------------------------------------------------------------------------------

    def _map_parquet(self) -> None:
        """Leave the rows where they are: Parquet knows the number of each."""
        paths = [(number, path) for number, source in enumerate(self.recipe.all_sources) for path in source.paths()]
        names, files = (
            f"[{', '.join(literal(each) for each in texts)}]"
            for texts in zip(*((str(path), escape(str(path))) for _, path in paths), strict=True)
        )
        with self.database.about("the Parquet files"):
            self.run(
                f"CREATE VIEW raw AS SELECT * EXCLUDE (filename, file_row_number), file_row_number AS _row, "
                f"(list_position({names}, filename) - 1)::INTEGER AS _file "
                f"FROM read_parquet({files}, filename=true, file_row_number=true, union_by_name=false, "
                "hive_partitioning=false)"
            )
        for number, path in paths:
            with self.database.about(path):
                rows = self.one(
                    f"SELECT sum(num_rows)::BIGINT FROM parquet_file_metadata({literal(escape(str(path)))})"
                )
            self.files.append(File(path, number, 0, rows, path))

    def _load_batches(self, number: int, source: RowSource) -> None:
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
        if (one := next(batches, None)) is None:
            raise DataError(f"{paths[0]} holds no rows")
        reader = pa.RecordBatchReader.from_batches(one.schema, itertools.chain([one], batches))
        what = paths[0] if len(paths) == 1 else f"{len(paths):,} files from {paths[0]} on"
        with self.database.given("_given", reader), self.database.about(what):
            self._store("SELECT * FROM _given")
        for path, rows in zip(paths, counts, strict=True):
            self.files.append(File(path, number, at, rows, path))
            at += rows

    # --- text -------------------------------------------------------------------------------------------------------

    def _load(self, number: int, source: Csv | JsonLines | Lines, path: Path) -> None:
        """Append a text's rows to the table below `raw`, and what is no row to `refused`."""
        schema, delimiter, quote, header = form(source)
        text = path
        if is_packed(path) or not is_utf8(source.encoding):
            text = self.database.folder / f"unpacked{len(self.files)}.txt"
            write_utf8(path, source.encoding, text)
        refuse_many_fields(path, text, delimiter, quote, len(schema))
        with self._transaction():
            refused = self._append(source, File(path, number, 0, 0, text, header))
            unquoted = rule_of("UNQUOTED VALUE", source.encoding)
            if not isinstance(source, Csv) or unquoted not in refused["rule"].to_pylist():
                self._keep(refused)
                return
            self.run("ROLLBACK")
            self.run("BEGIN")
            self.files.pop()
            closed = self.database.folder / f"closed{len(self.files)}.txt"
            unclosed = write_closed(text, closed, source.delimiter, source.quote, header)
            removed = np.array([line for line, _ in unclosed], np.int64)
            self._keep(self._append(source, File(path, number, 0, 0, closed, header, removed)))
            self._keep_unclosed(source.encoding, removed, [record.rstrip(b"\r\n") for _, record in unclosed])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.run("BEGIN")
        try:
            yield
        except BaseException:
            self.run("ROLLBACK")
            raise
        self.run("COMMIT")

    def _append(self, source: Csv | JsonLines | Lines, file: File) -> pa.Table:
        """Append the rows of a text, and return its lines that could not be parsed: those of `refused`."""
        before = self._rows()
        try:
            with self.database.about(file.path):
                self._store(f"SELECT *, {len(self.files)}::INTEGER AS _file FROM ({read_text_file(source, file.text)})")
        except DataError as error:
            if not (line := line_with_return(file.text)):
                raise
            raise DataError(
                f"{file.path}, line {line}: a carriage return stands inside it; `tr -d '\\r'` leaves such out"
            ) from error
        self.files.append(replace(file, first=before, rows=self.one("SELECT count(*) FROM stored") - before))
        return self._refusals(self.files[-1], source.encoding)

    def _rows(self) -> int:
        """The rows that are stored."""
        return self.files[-1].first + self.files[-1].rows if self.files else 0

    def _store(self, select: str) -> None:
        """Append rows, with the numbers of their files, in their order."""
        if self.files:
            self.run(f"INSERT INTO stored {select}")
        else:
            self.run(f"CREATE TABLE stored AS {select}")
            self.run("CREATE VIEW raw AS SELECT *, rowid AS _row FROM stored")

    def _refusals(self, file: File, encoding: str) -> pa.Table:
        """Return the lines that could not be parsed: where each begins, what it says and the rule that it breaks."""
        refusals = self.run(
            "SELECT line_byte_position AS start, any_value(csv_line), any_value(error_type) FROM reject_errors "
            "GROUP BY start ORDER BY start"
        )
        self.run("DROP TABLE reject_errors")
        self.run("DROP TABLE reject_scans")
        records = [record.lstrip("\r\n") for _, record, _ in refusals]  # a blank line may stand before it
        starts = [start + len(line) - len(record) for (start, line, _), record in zip(refusals, records, strict=True)]
        lines = lines_at(file.text, np.array(starts, np.int64))
        records = [record.rstrip("\r\n") for record in records]
        spans = [1 + record.count("\n") for record in records]
        rules = [rule_of(fault, encoding) for *_, fault in refusals]
        return self._refused(file.line(lines), lines, spans, rules, records)

    def _keep_unclosed(self, encoding: str, lines: Ints, records: list[bytes]) -> None:
        """Keep lines in which a quote is not closed, which are not in the text that was parsed."""
        texts = [record.decode("utf-8", "replace") for record in records]
        faults = [
            "UNQUOTED VALUE" if text.encode() == record else "INVALID ENCODING"
            for text, record in zip(texts, records, strict=True)
        ]
        rules = [rule_of(fault, encoding) for fault in faults]
        self._keep(self._refused(lines, [None] * len(lines), [1] * len(lines), rules, texts))

    def _refused(
        self, lines: Ints, parsed: Any, spans: Sequence[int], rules: Sequence[str], records: Sequence[str]
    ) -> pa.Table:
        """Return rows of `refused`: the lines of a file, and of the text that was parsed where they are in it."""
        import pyarrow as pa

        types = {"_file": pa.int32(), "line": pa.int64(), "parsed": pa.int64(), "span": pa.int64()}
        schema = pa.schema([*types.items(), ("rule", pa.string()), ("record", pa.string())])
        numbers = [len(self.files) - 1] * len(lines)
        return pa.table(
            [
                pa.array(each, kind)
                for each, kind in zip((numbers, lines, parsed, spans, rules, records), schema.types, strict=True)
            ],
            schema,
        )

    def _keep(self, refused: pa.Table) -> None:
        with self.database.given("_refused", refused):
            self.run("INSERT INTO refused SELECT * FROM _refused")
