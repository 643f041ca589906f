"""Executes a recipe in DuckDB, in this process; what does not fit its memory lies in a file.

Line numbers are worked out, since DuckDB does not keep them for rows that it accepts: a row's line follows from its
place among the accepted rows, the lines that were refused before it, and the line breaks inside its fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.training.preparation import Progress, SourceRows
from paceline.training.preparation.duckdb_database import Database, DuckDbDialect
from paceline.training.preparation.duckdb_reading import File, RawReader
from paceline.training.preparation.recipe import Query, Recipe, literal
from paceline.training.preparation.sources import Csv, JsonLines, Lines, Parquet
from paceline.training.preparation.text import Ints, Skipped, blank_lines, count_lines, lines_of

if TYPE_CHECKING:
    import pyarrow as pa


class DuckDbEngine:
    """Reads, checks and deals rows with DuckDB; what does not fit its memory lies below `folder`."""

    def __init__(self, recipe: Recipe, folder: Path, threads: int | None = None, memory: str | None = None) -> None:
        size = sum(path.stat().st_size for source in recipe.all_sources for path in source.paths())
        self.recipe, self.database = recipe, Database(folder, size, threads, memory)
        self.run, self.one = self.database.run, self.database.one

    def read(self, progress: Progress) -> list[SourceRows]:
        recipe, reader = self.recipe, RawReader(self.database, self.recipe)
        with self.database.during("reading the sources"):
            reader.read(progress)
        self.files = reader.files
        columns = [name for (name, *_) in self.run("DESCRIBE raw") if not name.startswith("_")]
        line_column = "_line" if isinstance(recipe.all_sources[0], JsonLines) else ""
        self.query = Query(recipe, DuckDbDialect(), columns, line_column)
        progress("checking", self.one("SELECT count(*) FROM raw"))
        with self.database.during("checking the rows"):
            self._check()
        return self._accounts()

    def rejected(self) -> Iterator[pa.RecordBatch]:
        yield from self.database.batches(
            "SELECT file, line, rule, record FROM rejected ORDER BY _file, line, record", 10_000
        )

    def kept(self) -> dict[str, int]:
        count = "SELECT count(*) FROM kept WHERE"
        with self.database.during("counting the rows"):
            return {name: self.one(f"{count} {self.query.split(name)}") for name in self.recipe.splits}

    def words(self, column: str) -> list[str]:
        name, train = self.query.dialect.name(column), self.query.split(next(iter(self.recipe.splits)))
        with self.database.during(f"numbering the words of {column}"):
            return sorted(word for (word,) in self.run(f"SELECT DISTINCT {name} FROM kept WHERE {train}"))

    def dealt(self, split: str, rows: int) -> Iterator[pa.RecordBatch]:
        outputs = ", ".join(self.query.dialect.name(name) for name in self.query.outputs)
        condition = self.query.split(split)
        with self.database.during(f"ordering the rows of {split}"):
            yield from self.database.batches(f"SELECT {outputs} FROM kept WHERE {condition} ORDER BY _high, _low", rows)

    def close(self) -> None:
        self.database.close()

    # --- checking ---------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Make `rejected` and `kept` of what was read."""
        with self.database.about("the recipe"):
            self.run("SET preserve_insertion_order = false")
            self.run(f"CREATE TABLE made AS {self.query.made('raw')}")
            self.run("SET preserve_insertion_order = true")
        self.run("CREATE TABLE rejected (_file INTEGER, file VARCHAR, line BIGINT, rule VARCHAR, record VARCHAR)")
        broken = "SELECT _file FROM made WHERE _rule IS NOT NULL UNION SELECT _file FROM refused ORDER BY _file"
        for (number,) in self.run(broken):
            self._set_aside(number, self.files[number])
        if not isinstance(self.recipe.all_sources[0], Parquet):
            self.run("DROP VIEW raw")
            self.run("DROP TABLE stored")  # its space is used again
        self.run("CREATE VIEW good AS SELECT *, rowid AS _at FROM made WHERE _rule IS NULL")
        if self.recipe.key:
            with self.database.during("dropping duplicates"):
                self._drop_duplicates()
        else:
            self.run("CREATE VIEW kept AS FROM good")

    def _drop_duplicates(self) -> None:
        """Keep, of rows with one place, the first by content. Counting finds the few that a window then puts in order.

        The others are listed and not deleted: DuckDB keeps 8 bytes in memory for each row near one that was deleted.
        """
        self.run("CREATE TEMP TABLE several AS SELECT _high, _low FROM good GROUP BY ALL HAVING count(*) > 1")
        rank = "row_number() OVER (PARTITION BY _high, _low ORDER BY _same, _file, _row)"
        several = "(_high, _low) IN (FROM several)"
        self.run(f"CREATE TABLE again AS SELECT _at FROM good WHERE {several} QUALIFY {rank} > 1")
        self.run("CREATE VIEW kept AS SELECT good.* FROM good ANTI JOIN again USING (_at)")

    def _set_aside(self, number: int, file: File) -> None:
        """Add a file's refused lines, and its rows that break a rule, to `rejected`."""
        name, source = literal(str(file.path)), self.recipe.all_sources[file.source]
        broken = self.database.connection.sql(
            f"SELECT _row - {file.first} AS row, _rule AS rule, _record AS record FROM made "
            f"WHERE _file = {number} AND _rule IS NOT NULL ORDER BY row"
        ).to_arrow_table()
        rows = broken["row"].to_numpy().astype(np.int64)
        lines = file.line(self._lines(number, file, rows)) if isinstance(source, Csv | JsonLines | Lines) else rows + 1
        with self.database.given("_found", broken.append_column("_line", [lines])):
            self.run(f"INSERT INTO rejected SELECT {number}, {name}, _line, rule, record FROM _found")
        refused = f"SELECT {number}, {name}, line, rule, record FROM refused WHERE _file = {number}"
        self.run(f"INSERT INTO rejected {refused}")

    def _lines(self, number: int, file: File, rows: Ints) -> Ints:
        """Return the lines of a text in which these rows of it begin."""
        source = self.recipe.all_sources[file.source]
        breaks = np.zeros(len(rows), np.int64)
        if isinstance(source, Csv):
            fields = ", ".join(self.query.dialect.name(name) for name in self.query.names)
            text = f"concat({fields})"
            columns = self.database.connection.sql(
                f"SELECT _row - {file.first}, length({text}) - length(replace({text}, chr(10), '')) FROM raw "
                f"WHERE _file = {number} AND contains({text}, chr(10)) ORDER BY _row"
            ).fetchnumpy()
            at, count = (values.astype(np.int64) for values in columns.values())
            breaks = np.concatenate([[0], np.cumsum(count)])[np.searchsorted(at, rows)]
            inside = int(count.sum())
        else:
            inside = 0
        refused = self.database.connection.sql(
            f"SELECT parsed, span FROM refused WHERE _file = {number} AND parsed IS NOT NULL ORDER BY parsed"
        ).fetchnumpy()
        lines, spans = (np.asarray(each, np.int64) for each in refused.values())
        if count_lines(file.text) != int(file.header) + file.rows + inside + int(spans.sum()):
            blank = blank_lines(file.text)
            lines, spans = np.concatenate([lines, blank]), np.concatenate([spans, np.ones(len(blank), np.int64)])
            order = np.argsort(lines, kind="stable")
            lines, spans = lines[order], spans[order]
        return lines_of(rows, breaks, file.header, Skipped(lines, spans))

    def _accounts(self) -> list[SourceRows]:
        accounts = [SourceRows() for _ in self.recipe.all_sources]
        counted = dict(self.run("SELECT _file, count(*) FROM rejected GROUP BY _file"))
        refused = dict(self.run("SELECT _file, count(*) FROM refused GROUP BY _file"))
        for number, file in enumerate(self.files):
            accounts[file.source].read += file.rows + refused.get(number, 0)
            accounts[file.source].rejected += counted.get(number, 0)
        return accounts
