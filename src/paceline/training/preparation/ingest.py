"""Adds rows that keep coming to a stream: read from its inputs, checked by a recipe, and sealed shard by shard.

    inputs ──in turn──▶ so many lines ──recipe──▶ rows ──▶ a sealed shard ──▶ any training
                                          │
                                          └──▶ rejected/

A shard is sealed when stream.jsonl names it. A writer that was ended left no half of one: the next writer goes on after
the last line that a sealed shard was made of.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.errors import DataError
from paceline.training.preparation import rule_of
from paceline.training.preparation.duckdb_engine import DuckDbEngine
from paceline.training.preparation.prepare import Encoder, transformed
from paceline.training.preparation.recipe import Recipe, Words
from paceline.training.preparation.sources import Csv, JsonLines, Lines
from paceline.training.preparation.text import BLOCK, blocks_of, lines_of_blocks, utf8
from paceline.training.shards.manifest import Account, Shard, write_whole
from paceline.training.shards.sealed import (
    Drift,
    Note,
    Reference,
    Sealed,
    SealedList,
    append,
    as_lists,
    begin,
    can_begin,
    from_lists,
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
    if any(isinstance(column, Words) for column in recipe.columns.values()):
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


# The inputs of a stream: each is read by a thread of its own, and they take turns.
#
# a ──▶ lines, at most 2 x rows ──┐
# b ──▶ ...                       ├──▶ `Turns`: so many lines of a, of b, of c, of a, ...
# c ──▶ (stopped)                 ┘    an input that brings nothing in time is passed over until it does

#: A row of an input: a line of text, or an object that becomes a line of JSON.
Line = bytes | str | Mapping[str, Any]
#: What brings lines: an iterable, all of whose lines are new, or a function that is called with how many of its lines
#: are in the stream already and returns those that come after them.
Input = Iterable[Line] | Callable[[int], Iterable[Line]]
STANDARD_INPUT, STANDARD_INPUT_SHOWN = "-", "standard input"
#: Bytes of lines of which a shard is made even if there are fewer rows: lines may be long.
PART_BYTES = 1 << 26
#: Seconds after which an address that does not answer counts as failed.
HTTP_TIMEOUT = 60.0


@dataclass(frozen=True)
class InputPart:
    """Some lines of an input, one after another."""

    source: str
    lines: list[bytes]
    begins: bool  # whether these are the first lines that the input brought, among them a header


@dataclass(frozen=True)
class InputFault:
    """An input that brings no lines: for now, or because it failed."""

    source: str
    what: str
    failed: bool


def input_of(name: str, encoding: str) -> Input:
    """Return the lines, in UTF-8, of a file (packed or not), an http or https address, or standard input for `-`."""
    if name == STANDARD_INPUT:
        # Without Python's buffer of standard input, whose lock a thread would hold when the process ends.
        return lines_of_blocks(utf8(iter(lambda: os.read(0, BLOCK), b""), encoding))
    blocks = _blocks_of_address if name.startswith(("http://", "https://")) else lambda name: blocks_of(Path(name))
    if blocks is not _blocks_of_address and not Path(name).exists():
        raise DataError(f"there is no file {name}; an input is a file, an http address or - for standard input")
    return lambda taken: itertools.islice(lines_of_blocks(utf8(blocks(name), encoding)), taken, None)


def _blocks_of_address(address: str) -> Iterator[bytes]:
    with urllib.request.urlopen(address, timeout=HTTP_TIMEOUT) as answer:
        yield from iter(lambda: answer.read1(BLOCK), b"")


class InputReader:
    """Reads one input in a thread, so far ahead as two parts."""

    def __init__(self, name: str, lines: Callable[[], Iterable[bytes]], rows: int) -> None:
        self.name, self.rows = name, rows
        self.stopped = False  # whether nothing came when it was last waited for
        self._lines = lines
        self._changed = threading.Condition()
        self._buffer: deque[bytes] = deque()
        self._size = 0  # bytes of the buffer
        self._ended = self._closed = False
        self._taken = False  # whether any line has been taken
        self.error: str | None = None
        self._thread = threading.Thread(target=self._read, name=f"reads {name}", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether every line has been taken."""
        with self._changed:
            return self._ended and not self._buffer

    def take(self, patience: float) -> InputPart | None:
        """Return so many lines, or those that came within `patience` seconds; None without any."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._holds(1), patience)
            lines = [self._buffer.popleft() for _ in range(min(self.rows, len(self._buffer)))]
            self._size -= sum(map(len, lines))
            self._changed.notify_all()
        if not lines:
            return None
        begins, self._taken = not self._taken, True
        return InputPart(self.name, lines, begins)

    def close(self) -> None:
        """Let the thread end at its next line."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _holds(self, parts: int) -> bool:
        """Whether so many parts are there: of so many rows, or of so many bytes."""
        return len(self._buffer) >= parts * self.rows or self._size >= parts * PART_BYTES

    def _read(self) -> None:
        try:
            for line in self._lines():
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or not self._holds(2))
                    if self._closed:
                        return
                    self._buffer.append(line)
                    self._size += len(line)
                    if self._holds(1):
                        self._changed.notify_all()
        except (OSError, HTTPException, DataError) as error:
            self.error = f"cannot be read: {error}"
        except Exception as error:  # of an iterator of the user's own
            self.error = f"failed: {type(error).__name__}: {error}"
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()


class Turns:
    """Parts of all inputs, round robin, until every input has ended."""

    def __init__(self, readers: list[InputReader], patience: float, last: str = "") -> None:
        names = [reader.name for reader in readers]
        at = names.index(last) + 1 if last in names else 0
        self.readers, self.patience = deque(readers[at:] + readers[:at]), patience

    def __iter__(self) -> Iterator[InputPart | InputFault]:
        while self.readers:
            reader = self.readers.popleft()
            part = reader.take(self._seconds(reader))
            over = reader.over
            if not over:
                self.readers.append(reader)
            if part is not None:
                reader.stopped = False
                yield part
            elif not over and not reader.stopped:
                reader.stopped = True
                yield InputFault(reader.name, f"has brought nothing for {self.patience:g} s", failed=False)
            if over and reader.error is not None:
                yield InputFault(reader.name, reader.error, failed=True)

    def drop(self, name: str) -> None:
        """Take no further part of an input."""
        for reader in [reader for reader in self.readers if reader.name == name]:
            reader.close()
            self.readers.remove(reader)

    def _seconds(self, reader: InputReader) -> float:
        """Return how long to wait for an input: one that has stopped keeps no other one waiting."""
        if reader.stopped and not all(other.stopped for other in self.readers):
            return 0.0
        return self.patience


def as_bytes(line: Line, encoding: str) -> bytes:
    """Return a line as it stands in a file of UTF-8, without its end; `encoding` is that of bytes."""
    if isinstance(line, Mapping):
        line = json.dumps(line)
    raw = line.encode() if isinstance(line, str) else line
    if not isinstance(raw, bytes):
        raise TypeError(f"it brought {line!r:.60}, and not bytes, text or a dictionary")
    if raw is line:
        raw = b"".join(utf8([raw], encoding))
    return raw.rstrip(b"\r\n")


def wait_until(done: Callable[[], bool]) -> None:
    """Wait for another process, which tells by a file."""
    while not done():
        time.sleep(0.02)
