"""Adds rows that keep coming to a stream: checked by a recipe, and sealed shard by shard.

    inputs ──in turn──▶ so many lines ──recipe──▶ rows ──▶ a sealed shard ──▶ any training
                                          │
                                          └──▶ rejected/

A shard is sealed when stream.jsonl names it. A writer that was ended left no half of one: the next writer goes on after
the last line that a sealed shard was made of.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.errors import DataError
from paceline.training.preparation import rule_of
from paceline.training.preparation.duckdb_engine import DuckDbEngine
from paceline.training.preparation.inputs import (
    STANDARD_INPUT,
    STANDARD_INPUT_SHOWN,
    Input,
    InputFault,
    InputPart,
    InputReader,
    Turns,
    as_bytes,
    input_of,
    wait_until,
)
from paceline.training.preparation.prepare import Encoder, transformed
from paceline.training.preparation.recipe import Recipe, Words
from paceline.training.preparation.sources import Csv, JsonLines, Lines
from paceline.training.shards.drift import Drift, Reference, as_lists, from_lists
from paceline.training.shards.manifest import Account, Shard, write_whole
from paceline.training.shards.sealed import (
    Note,
    Sealed,
    SealedList,
    append,
    begin,
    can_begin,
    is_stream,
    mend,
    only_writer,
    position,
)
from paceline.training.shards.writing import Rows, ShardWriter, refuse_links, room_in

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows that are turned into columns at a time.
BATCH = 65536
#: A source of which more than this share of a shard is rejected is named as noisy.
NOISY = 0.5
#: Called with each shard that was sealed, and each note about a source.
OnEvent = Callable[[Sealed | Note], None]


def ingest(
    recipe: Recipe,
    folder: str | Path,
    inputs: Iterable[str | Path] | Mapping[str, Input],
    rows: int = 8192,
    ahead: int | None = None,
    patience: float = 30.0,
    on_event: OnEvent | None = None,
) -> Account:
    """Add the rows of inputs to a stream until all inputs have ended, and return the account of the whole stream.

    Args:
        recipe: A recipe with one source of lines, whose own files are not read.
        folder: The stream; it is created if it does not exist.
        inputs: Files, http addresses and `-` for standard input, or `{name: lines}`. Lines are an iterable of bytes,
            text or, for `JsonLines`, dictionaries, all of which are new; or a function that is called with the number
            of lines that the stream has from it, and returns an iterable of those that follow.
        rows: Lines that are read for each shard.
        ahead: Rows that may be in the stream before any training has read or waits for them; at more, this function
            waits. Default: any number.
        patience: Seconds to wait for the lines of a shard. Then a shard is made of those that came, and an input that
            brought none is reported as stopped while the others continue.
        on_event: A function that is called with each sealed shard and each note about a source.
    """
    root = Path(folder)
    source = _one_source_of_lines(recipe)
    named_inputs, encoding = _inputs(inputs, source.encoding)
    refuse_links(root)
    root.mkdir(parents=True, exist_ok=True)
    if not can_begin(root) and not is_stream(root):
        raise DataError(f"{root} holds other files; choose a folder that is empty or does not exist")
    with only_writer(root), room_in(root):
        writer = _Writer(recipe, source, root, on_event or (lambda event: None))
        readers = [
            InputReader(name, partial(_opened, each, writer.taken(name), encoding), rows)
            for name, each in named_inputs.items()
        ]
        try:
            failed = writer.follow(Turns(readers, patience, writer.last), ahead)
        finally:
            for reader in readers:
                reader.close()
    if failed:
        raise DataError("; ".join(failed) + ". What came before is sealed; the same command goes on from there")
    return writer.sealed.account


def _inputs(inputs: Iterable[str | Path] | Mapping[str, Input], encoding: str) -> tuple[Mapping[str, Input], str]:
    """Return inputs by name, and the encoding of the bytes that they bring."""
    if isinstance(inputs, Mapping):
        return inputs, encoding
    names = {STANDARD_INPUT_SHOWN if str(name) == STANDARD_INPUT else str(name): str(name) for name in inputs}
    return {shown: input_of(name, encoding) for shown, name in names.items()}, "utf-8"


def _opened(source: Input, offset: int, encoding: str) -> Iterator[bytes]:
    return (as_bytes(line, encoding) for line in (source(offset) if callable(source) else source))


def _one_source_of_lines(recipe: Recipe) -> Csv | JsonLines | Lines:
    source = recipe.all_sources[0]
    if len(recipe.all_sources) != 1 or not isinstance(source, Csv | JsonLines | Lines):
        raise DataError("a stream is made of one source of lines: Csv, JsonLines or Lines")
    if any(isinstance(made, Words) for made in recipe.columns.values()):
        raise DataError("the words of a stream are not known beforehand; make numbers of them in SQL instead of Words")
    return source


@dataclass
class _Read:
    """What the recipe made of some lines."""

    account: Account
    rows: dict[str, Rows]  # empty where no row is left
    rejected: pa.Table | None


class _Writer:
    """Seals shards at the end of a stream."""

    def __init__(self, recipe: Recipe, source: Csv | JsonLines | Lines, root: Path, on_event: OnEvent) -> None:
        self.root, self.spool, self.on_event = root, root / "spool", on_event
        self.given = source
        lines = replace(source, files=self.spool / "lines.txt", encoding="utf-8")
        lines = replace(lines, header=False) if isinstance(lines, Csv) else lines
        self.recipe = replace(recipe, sources=lines, splits={"rows": 1.0})
        described = replace(recipe, sources=replace(source, files="-")).described()
        if is_stream(root):
            mend(root)
        else:
            begin(root, described)
        self.sealed = SealedList(root)
        if self.sealed.recipe != json.loads(json.dumps(described)):
            raise DataError(f"{root} was begun with another recipe; choose another folder")
        self.positions = {shard.source: shard.position for shard in self.sealed.shards}
        self.references = _references_of(root)

    @property
    def last(self) -> str:
        """The source of the newest shard."""
        return self.sealed.shards[-1].source if self.sealed.shards else ""

    def taken(self, source: str) -> int:
        """Return how many lines of a source are in the stream."""
        return self.positions.get(source, 0)

    def follow(self, turns: Turns, ahead: int | None) -> list[str]:
        """Seal what comes; return what is to be said about inputs that failed."""
        failed = []
        for turn in turns:
            if isinstance(turn, InputPart):
                wait_until(lambda: ahead is None or self.sealed.rows <= ahead + position(self.root))
                if (fault := self._fault_of_header(turn)) is not None:
                    turns.drop(turn.source)
                    turn = InputFault(turn.source, fault, failed=True)
                else:
                    self._seal(turn)
            if isinstance(turn, InputFault):
                self._note(turn.source, turn.what)
                failed += [f"{turn.source} {turn.what}"] if turn.failed else []
        return failed

    def _seal(self, part: InputPart) -> None:
        before, number = self.taken(part.source), len(self.sealed.shards)
        begins = self._has_header(part)
        read = self._read(part.lines[begins:], part.source, before + begins)
        if read.rejected is not None:
            _write_table(self.root / "rejected" / f"{number:05d}.parquet", read.rejected)
        shard = self._write(number, read.rows)
        sealed = Sealed(
            shard.rows,
            shard.files,
            read.account.read,
            read.account.rejected,
            read.account.duplicates,
            part.source,
            before + len(part.lines),
            self._drift(read.rows),
        )
        append(self.root, sealed)
        self.sealed.refresh()
        self.positions[part.source] = sealed.position
        self.on_event(sealed)
        rejected = sum(sealed.rejected.values())
        if rejected > NOISY * sealed.read:
            worst = max(sealed.rejected, key=lambda rule: sealed.rejected[rule])
            self._note(part.source, f"is noisy: {rejected:,} of {sealed.read:,} rows are rejected, most as {worst!r}")

    def _has_header(self, part: InputPart) -> bool:
        """Whether the lines begin with the names of the fields, as a file does, or a pipe that is begun again."""
        if not part.begins or not isinstance(self.given, Csv) or not self.given.header:
            return False
        return not self.taken(part.source) or self.given.names_in(part.lines[0]) == list(self.given.schema)

    def _fault_of_header(self, part: InputPart) -> str | None:
        if not self._has_header(part) or not isinstance(self.given, Csv):
            return None
        return self.given.fault_of_header(part.lines[0])

    def _read(self, lines: list[bytes], source: str, before: int) -> _Read:
        """Check lines by the recipe, in a folder of their own."""
        shutil.rmtree(self.spool, ignore_errors=True)
        self.spool.mkdir(parents=True)
        (self.spool / "lines.txt").write_bytes(b"".join(line + b"\n" for line in lines))
        engine = DuckDbEngine(self.recipe, self.spool, threads=1)
        try:
            (read,) = engine.read(lambda step, rows: None)
            rejected = self._rejected(engine, source, before)
            accepted = engine.kept()["rows"]
            rows = self._encoded(engine) if accepted else {}
        except DataError as error:
            raise DataError(f"{source}, in the lines from {before + 1} on: {error}") from error
        finally:
            engine.close()
            shutil.rmtree(self.spool)
        rules = dict(Counter(rejected["rule"].to_pylist()).most_common()) if rejected is not None else {}
        return _Read(Account(read.read, accepted, rules, read.read - read.rejected - accepted), rows, rejected)

    def _rejected(self, engine: DuckDbEngine, source: str, before: int) -> pa.Table | None:
        """Return the rows that were set aside, with their lines in the source."""
        import pyarrow as pa
        import pyarrow.compute as pc

        batches = list(engine.rejected())
        if not sum(batch.num_rows for batch in batches):
            return None
        table = pa.Table.from_batches(batches)
        table = table.set_column(0, "file", pa.array([source] * table.num_rows))
        table = table.set_column(1, "line", pc.add(table["line"], before))
        utf8, declared = (rule_of("INVALID ENCODING", encoding) for encoding in ("utf-8", self.given.encoding))
        rules = pc.if_else(pc.equal(table["rule"], utf8), declared, table["rule"])  # lines were made UTF-8 before
        return table.set_column(2, "rule", rules)

    def _encoded(self, engine: DuckDbEngine) -> dict[str, Rows]:
        import pyarrow as pa

        table = pa.Table.from_batches(transformed(self.recipe, engine.dealt("rows", BATCH)))
        encoder = Encoder(self.recipe.columns, {})
        columns = encoder.described(table.schema)
        if not self.sealed.columns:
            append(self.root, columns)
            self.sealed.refresh()
        elif columns != self.sealed.columns:
            raise DataError(f"the columns of {self.root} were made with other types: {columns}")
        return encoder.rows(table, columns)

    def _write(self, number: int, rows: dict[str, Rows]) -> Shard:
        if not rows:
            return Shard(0, {})
        writer = ShardWriter(self.root / "rows", self.sealed.columns, 1 << 62, first=number)
        shards = [*writer.add(rows), *writer.close()]
        return shards[0]

    def _drift(self, rows: dict[str, Rows]) -> dict[str, Drift]:
        """Compare the numbers of this shard with those of the first one."""
        numbers = {name: each for name, each in rows.items() if isinstance(each, np.ndarray) and each.size}
        if numbers and not self.references:
            self.references = {name: Reference.of(each) for name, each in numbers.items()}
            write_whole(self.root / "reference.json", json.dumps(as_lists(self.references)).encode())
        return {name: self.references[name].drift(each) for name, each in numbers.items() if name in self.references}

    def _note(self, source: str, what: str) -> None:
        note = Note(source, what, len(self.sealed.shards))
        append(self.root, note)
        self.sealed.refresh()
        self.on_event(note)


def _write_table(path: Path, table: pa.Table) -> None:
    import pyarrow.parquet as pq

    path.parent.mkdir(exist_ok=True)
    partial_file = path.with_suffix(".partial")
    pq.write_table(table, partial_file)
    partial_file.replace(path)


def _references_of(root: Path) -> dict[str, Reference]:
    try:
        return from_lists(json.loads((root / "reference.json").read_bytes()))
    except FileNotFoundError:
        return {}
