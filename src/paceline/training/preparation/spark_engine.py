"""Executes a recipe in Spark: on this machine, or on the cluster of the active session or of spark-submit.

    text files ──lines──▶ fields, or refused ──Query──▶ made/ ──▶ kept ──sort──▶ dealt/
                                                          └────▶ rejected

A row of text is a line, so its line number is known from where its block of the file begins. What is between the steps
lies in Parquet files below `folder`, which all machines must see.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import DataError, MachineError
from paceline.training.preparation import REFUSALS, Progress, SourceRows, rule_of
from paceline.training.preparation.recipe import Query, Recipe, literal
from paceline.training.preparation.sources import Csv, JsonLines, Lines, Parquet, RowSource
from paceline.training.preparation.text import is_packed, is_utf8, write_utf8

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

#: Without ANSI a wrong cast or a division by zero is null, as in DuckDB; times have no zone; text is taken as it is.
SETTINGS = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.json.enableExactStringParsing": "true",
}


def refuse_sources(recipe: Recipe) -> None:
    """Refuse sources that Spark does not read."""
    for source in recipe.all_sources:
        if not isinstance(source, Csv | JsonLines | Lines | Parquet):
            raise DataError(f"the engine spark reads no {type(source).__name__}; use --engine duckdb")


class SparkDialect:
    """Spark's SQL. A number of 64 bits is written as 16 hexadecimal digits, which sort alike."""

    def name(self, field: str) -> str:
        return "`" + field.replace("`", "``") + "`"

    def given(self, expression: str) -> str:
        return expression

    def matches(self, text: str, pattern: str) -> str:
        return f"regexp_like({text}, {literal(f'^(?:{pattern})$')})"

    def high(self, text: str) -> str:
        return self._half(text, 0)

    def low(self, text: str) -> str:
        return self._half(text, 16)

    def shown(self, fields: Sequence[str]) -> str:
        texts = ", ".join(f"CAST({field} AS STRING)" for field in fields)
        return f"left(concat('(', concat_ws(', ', {texts}), ')'), 1000)"

    def bound(self, share: float) -> str:
        return literal(f"{int(share * 2**64):016x}")

    def _half(self, text: str, first: int) -> str:
        """Half of the MD5 as a little-endian number, as DuckDB has it."""
        digits = (f"substr(md5({text}), {at}, 2)" for at in range(first + 15, first, -2))
        return f"concat({', '.join(digits)})"


class SparkEngine:
    """Reads, checks and deals rows with Spark, with its files below `folder`."""

    def __init__(self, recipe: Recipe, folder: Path, threads: int | None = None, memory: str | None = None) -> None:
        refuse_sources(recipe)
        self.recipe, self.folder, self.dialect = recipe, folder.resolve() / "spark", SparkDialect()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.session, self.ours = _session(threads, memory)
        for name, value in SETTINGS.items():
            self.session.conf.set(name, value)
        #: Every file with the number of its source; its place is the number of the file.
        self.paths: list[tuple[int, Path]] = []
        #: What is read of each: the file, or what it holds unpacked and in UTF-8.
        self.texts: list[Path] = []

    def read(self, progress: Progress) -> list[SourceRows]:
        recipe, sources = self.recipe, enumerate(self.recipe.all_sources)
        self.paths = [(number, path) for number, source in sources for path in source.paths()]
        self.texts = [self._text(at, recipe.all_sources[number], path) for at, (number, path) in enumerate(self.paths)]
        raw = self._raw()
        raw.createOrReplaceTempView("raw_all")
        fields = [name for name in raw.columns if not name.startswith("_")]
        self._sql("SELECT * FROM raw_all WHERE _refused IS NULL").createOrReplaceTempView("raw")
        line_column = "_value" if isinstance(recipe.all_sources[0], JsonLines | Lines) else ""
        self.query = Query(recipe, self.dialect, fields, line_column)
        self.outputs = [f"c{at}" for at in range(len(self.query.outputs))]
        progress("checking", 0)
        with self._about("the recipe"):
            table = self._sql(self.query.made("raw")).toDF(
                "_file", "_row", "_rule", "_record", "_high", "_low", "_same", *self.outputs
            )
            self._keep("made", table)
        self._set_aside()
        self._drop_duplicates()
        return self._accounts()

    def rejected(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        names = pa.array([str(path) for _, path in self.paths])
        ordered = self._sql("SELECT _file, line, rule, record FROM rejected ORDER BY _file, line, record")
        for batch in self._batches("rejected-ordered", ordered, 10_000):
            files = names.take(batch.column("_file"))
            columns = [batch.column(name) for name in ("line", "rule", "record")]
            yield pa.record_batch([files, *columns], ["file", "line", "rule", "record"])

    def kept(self) -> dict[str, int]:
        return {
            name: self._one(f"SELECT count(*) FROM kept WHERE {self.query.split(name)}") for name in self.recipe.splits
        }

    def words(self, expression: str) -> list[str]:
        column = self.outputs[self.query.outputs.index(expression)]
        train = self.query.split(next(iter(self.recipe.splits)))
        return sorted(word for (word,) in self._sql(f"SELECT DISTINCT {column} FROM kept WHERE {train}").collect())

    def dealt(self, split: str, rows: int) -> Iterator[pa.RecordBatch]:
        condition = self.query.split(split)
        ordered = self._sql(f"SELECT {', '.join(self.outputs)} FROM kept WHERE {condition} ORDER BY _high, _low")
        for batch in self._batches(f"dealt-{split}", ordered, rows):
            yield batch.rename_columns(self.query.outputs)

    def close(self) -> None:
        if self.ours:
            self.session.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- reading ----------------------------------------------------------------------------------------------------

    def _raw(self) -> DataFrame:
        """Return every row: its fields, _file, _row, _value (as it was read) and _refused (why it cannot be parsed)."""
        if isinstance(self.recipe.all_sources[0], Parquet):
            return self._raw_parquet()
        with self._about("the files"):
            self._lines().createOrReplaceTempView("lines")
        return self._sql(" UNION ALL ".join(itertools.starmap(self._parsed, enumerate(self.recipe.all_sources))))

    def _parsed(self, number: int, source: RowSource) -> str:
        """Return a query for the rows of a source of text."""
        files = ", ".join(str(at) for at, (each, _) in enumerate(self.paths) if each == number)
        lines = f"(SELECT * FROM lines WHERE _file IN ({files}))"
        if isinstance(source, Csv):
            return self._csv(source, lines)
        assert isinstance(source, JsonLines | Lines)
        valid = f"CASE WHEN NOT _valid THEN {literal(rule_of('INVALID ENCODING', source.encoding))} END AS _refused"
        if isinstance(source, Lines):
            return f"SELECT _value AS line, _file, _row, _value, {valid} FROM {lines}"
        schema = ", ".join(f"{self.dialect.name(name)} STRING" for name in [*source.schema, "_corrupt"])
        parsed = f"from_json(_value, {literal(schema)}, map('columnNameOfCorruptRecord', '_corrupt'))"
        good = "startswith(ltrim(_value), '{') AND _json._corrupt IS NULL AS _object"
        fields = ", ".join(f"_json.{self.dialect.name(name)}" for name in source.schema)
        return f"SELECT {fields}, {good}, _file, _row, _value, {valid} FROM (SELECT *, {parsed} AS _json FROM {lines})"

    def _text(self, at: int, source: RowSource, path: Path) -> Path:
        """Return a file that Spark reads, in parts where it is not packed."""
        if not isinstance(source, Csv | JsonLines | Lines) or (is_utf8(source.encoding) and not is_packed(path)):
            return path
        self.folder.mkdir(exist_ok=True)
        text = self.folder / f"unpacked{at}.txt"
        write_utf8(path, source.encoding, text)
        return text

    def _raw_parquet(self) -> DataFrame:
        with self._about("the Parquet files"):
            frame: DataFrame = self.session.read.parquet(*map(str, self.texts)).selectExpr(
                "*",
                f"{self._file_number('_metadata.file_path')} AS _file",
                "_metadata.row_index AS _row",
                "CAST(NULL AS STRING) AS _value",
                "CAST(NULL AS STRING) AS _refused",
            )
            return frame

    def _lines(self) -> DataFrame:
        """Return the lines of all files that are not empty, with the number of each, from 0."""
        from pyspark.sql import functions as f

        read = (
            self.session.read.option("lineSep", "\n")
            .text(list(map(str, self.texts)))
            .select(
                f.regexp_replace("value", "\r$", "").alias("_value"),
                f.is_valid_utf8("value").alias("_valid"),  # of the bytes, which Java's text does not keep
                f.expr(self._file_number("_metadata.file_path")).alias("_file"),
                f.col("_metadata.file_block_start").alias("_block"),
                f.monotonically_increasing_id().alias("_id"),
            )
        )
        read.createOrReplaceTempView("read_lines")
        # Lines of a block have ids one after another; a block begins with as many lines as all before it have.
        self._keep(
            "blocks", self._sql("SELECT _file, _block, min(_id) AS first, count(*) AS n FROM read_lines GROUP BY 1, 2")
        )
        before = "coalesce(sum(n) OVER (PARTITION BY _file ORDER BY _block ROWS UNBOUNDED PRECEDING) - n, 0)"
        return self._sql(
            f"SELECT _value, _valid, l._file, l._id - b.first + b.before AS _row FROM read_lines AS l JOIN "
            f"(SELECT *, {before} AS before FROM blocks) AS b ON l._file = b._file AND l._block = b._block "
            "WHERE _value <> ''"
        )

    def _csv(self, source: Csv, lines: str) -> str:
        """Return a query for the fields of lines, and for what is wrong with those that do not have them.

        As for [duckdb_reading.py](duckdb_reading.py), a field is in quotes as a whole or does not begin with one.
        """
        separator, quote = (re.escape(mark) for mark in (source.delimiter, source.quote))
        quoted = f"[ ]?{quote}[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+{quote}[ ]*+" if quote else "(?!)"
        plain = f"(?![ ]?{quote})[^{separator}]*+" if quote else f"[^{separator}]*+"
        pattern = f"{separator}({quoted}|{plain})(?={separator}|\\z)"
        fields_sql = f"regexp_extract_all(concat({literal(source.delimiter)}, _value), {literal(pattern)}, 1)"
        covers_line = "length(array_join(_fields, '')) + size(_fields) = length(_value) + 1"
        fields = ", ".join(
            f"{self._unquoted(f'_fields[{at}]', source.quote)} AS {self.dialect.name(name)}"
            for at, name in enumerate(source.schema)
        )
        refused = (
            f"CASE WHEN NOT _valid THEN {literal(rule_of('INVALID ENCODING', source.encoding))} "
            f"WHEN NOT ({covers_line}) THEN {literal(REFUSALS['UNQUOTED VALUE'])} "
            f"WHEN size(_fields) < {len(source.schema)} THEN {literal(REFUSALS['MISSING COLUMNS'])} "
            f"WHEN size(_fields) > {len(source.schema)} THEN {literal(REFUSALS['TOO MANY COLUMNS'])} END"
        )
        cut = f"SELECT *, {fields_sql} AS _fields FROM {lines} WHERE _row >= {int(source.header)}"
        return f"SELECT {fields}, _file, _row, _value, {refused} AS _refused FROM ({cut})"

    def _unquoted(self, field: str, quote: str) -> str:
        if not quote:
            return field
        bare = f"trim({field})"
        inner = f"replace(substr({bare}, 2, length({bare}) - 2), {literal(quote * 2)}, {literal(quote)})"
        quoted = f"startswith({field}, {literal(quote)}) OR startswith({field}, {literal(' ' + quote)})"
        return f"CASE WHEN {quoted} THEN {inner} ELSE {field} END"

    def _file_number(self, column: str) -> str:
        names = [path.resolve().as_uri().removeprefix("file://") for path in self.texts]
        cases = " ".join(f"WHEN {literal(name)} THEN {number}" for number, name in enumerate(names))
        return f"CASE regexp_replace({column}, '^file:/+', '/') {cases} END"  # text has file:/, Parquet file:///

    # --- checking ---------------------------------------------------------------------------------------------------

    def _set_aside(self) -> None:
        """Make `rejected` of lines that could not be parsed and rows that broke a rule."""
        self._keep(
            "rejected",
            self._sql(
                "SELECT _file, _row + 1 AS line, _rule AS rule, _record AS record FROM made WHERE _rule IS NOT NULL "
                "UNION ALL SELECT _file, _row + 1, _refused, _value FROM raw_all WHERE _refused IS NOT NULL"
            ),
        )

    def _drop_duplicates(self) -> None:
        rows = self._sql("SELECT * FROM made WHERE _rule IS NULL")
        if self.recipe.key:
            rows.createOrReplaceTempView("good")
            again = "row_number() OVER (PARTITION BY _high, _low ORDER BY _same, _file, _row)"
            rows = self._sql(f"SELECT * FROM (SELECT *, {again} AS _again FROM good) WHERE _again = 1")
        rows.createOrReplaceTempView("kept")

    def _accounts(self) -> list[SourceRows]:
        accounts = [SourceRows() for _ in self.recipe.all_sources]
        for file, rows in self._sql("SELECT _file, count(*) FROM raw_all GROUP BY 1").collect():
            accounts[self.paths[file][0]].read += rows
        for file, rows in self._sql("SELECT _file, count(*) FROM rejected GROUP BY 1").collect():
            accounts[self.paths[file][0]].rejected += rows
        return accounts

    # --- Spark ------------------------------------------------------------------------------------------------------

    def _sql(self, query: str) -> DataFrame:
        frame: DataFrame = self.session.sql(query)
        return frame

    def _one(self, query: str) -> int:
        return int(self._sql(query).collect()[0][0])

    def _keep(self, name: str, frame: DataFrame) -> None:
        """Write rows into files, and call them by a name from then on."""
        with self._about(name):
            frame.write.parquet(str(self.folder / name))
        self.session.read.schema(frame.schema).parquet(str(self.folder / name)).createOrReplaceTempView(name)

    def _batches(self, name: str, ordered: DataFrame, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a sorted result: its files follow one another in the order of their names."""
        import pyarrow.parquet as pq

        with self._about(name):
            ordered.write.parquet(str(self.folder / name))
        for path in sorted((self.folder / name).glob("part-*.parquet")):
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(rows)

    @contextmanager
    def _about(self, what: object) -> Iterator[None]:
        """Turn an error of Spark into one about a file or the recipe."""
        from pyspark.errors import PySparkException

        try:
            yield
        except (PySparkException, _py4j_error()) as error:
            message = str(error)
            if "No space left" in message:
                raise MachineError(f"the disk of {self.folder} is full; free some space and run this again") from error
            raise DataError(f"{what}: {message.strip().splitlines()[0]}") from error


def _py4j_error() -> type[Exception]:
    from py4j.protocol import Py4JError

    error_type: type[Exception] = Py4JError
    return error_type


def _session(threads: int | None, memory: str | None) -> tuple[Any, bool]:
    """Return the active session, or one of our own and True."""
    try:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise MachineError("pyspark is not installed: `pip install 'paceline[spark]'`") from None
    if (active := SparkSession.getActiveSession()) is not None:
        return active, False
    home = os.environ.get("JAVA_HOME")
    if not (home and (Path(home) / "bin" / "java").exists()) and shutil.which("java") is None:
        raise MachineError("Spark needs Java 17 or newer, and there is no java on the PATH and no JAVA_HOME")
    builder = SparkSession.builder.appName("paceline prepare").config("spark.ui.enabled", "false")
    if not SparkConf().contains("spark.master"):
        builder = builder.master(f"local[{threads or '*'}]").config("spark.sql.shuffle.partitions", threads or 8)
    if memory:
        builder = builder.config("spark.driver.memory", memory.lower())
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session, True
