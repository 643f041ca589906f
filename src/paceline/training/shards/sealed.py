"""The shards of a stream: a folder to which a writer adds shards while trainings read it.

    folder/
      stream.jsonl             what the stream is, then a line for each shard, written when its files are whole
      rows/00000.x.bin         the rows of a shard, as in any folder of shards
      rejected/00000.parquet   the rows that were left out of shard 0: file, line, rule, record
      reference.json           quantiles of the first shard, with which later ones are compared
      position.json            how many samples trainings have read or wait for

A line of stream.jsonl is an object with one key: `stream`, `columns`, `shard` or `note`. Nothing is ever changed but
the end of a file that an ended writer left: half a line is removed, and files that no line names are written over.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import DataError
from paceline.training.shards.drift import Drift
from paceline.training.shards.manifest import Account, Column, ShardFile, column_of, write_whole

FORMAT = "paceline-stream"
VERSION = 1
LOG = "stream.jsonl"


@dataclass(frozen=True)
class Sealed:
    """A shard of a stream, and what was read for it."""

    rows: int
    files: Mapping[str, ShardFile]
    read: int
    rejected: Mapping[str, int]  # by rule
    duplicates: int
    source: str  # where its rows came from
    position: int  # lines of the source that have been read with this shard
    drift: Mapping[str, Drift] = field(default_factory=dict)  # by column, against the first shard


@dataclass(frozen=True)
class Note:
    """What happened to a source, such as that it has stopped."""

    source: str
    what: str
    shards: int  # that were sealed before it


class SealedList:
    """What stream.jsonl says so far; `refresh` reads what came since."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.columns: dict[str, Column] = {}
        self.shards: list[Sealed] = []
        self.notes: list[Note] = []
        self.recipe: dict[str, Any] = {}
        #: The bytes of stream.jsonl that have been read, which end with a line.
        self._read = 0
        if not (folder / LOG).is_file():
            raise DataError(f"{folder} is no stream; `paceline ingest` makes one")
        self.refresh()

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def account(self) -> Account:
        """Where every row of all shards went."""
        rejected = Counter[str]()
        for shard in self.shards:
            rejected.update(shard.rejected)
        read, duplicates = (sum(getattr(s, name) for s in self.shards) for name in ("read", "duplicates"))
        return Account(read, self.rows, dict(rejected.most_common()), duplicates)

    @property
    def sources(self) -> list[str]:
        """The sources in the order in which they first brought a shard."""
        return list(dict.fromkeys(shard.source for shard in self.shards))

    def refresh(self) -> None:
        """Read the lines that were added; one that is not whole yet is left for the next time."""
        with open(self.folder / LOG, "rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                try:
                    ((kind, body),) = json.loads(line).items()
                    self._take(kind, body)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise DataError(f"{self.folder / LOG} is damaged at byte {self._read}: {error}") from error
                self._read += len(line)

    def _take(self, kind: str, body: dict[str, Any]) -> None:
        if kind == "stream":
            if body["format"] != FORMAT or body["version"] > VERSION:
                raise DataError(f"{self.folder} was made by a newer Paceline; upgrade this one")
            self.recipe = body["recipe"]
        elif kind == "columns":
            self.columns = {name: column_of(each) for name, each in body.items()}
        elif kind == "shard":
            files = {name: ShardFile(**each) for name, each in body.pop("files").items()}
            drift = {name: Drift(**each) for name, each in body.pop("drift").items()}
            self.shards.append(Sealed(**body, files=files, drift=drift))
        elif kind == "note":
            self.notes.append(Note(**body))


def is_stream(folder: Path) -> bool:
    return (folder / LOG).is_file()


def can_begin(folder: Path) -> bool:
    """Whether a folder is empty, but for what a writer left that was ended when it began."""
    return all(path.name == f"{LOG}.partial" for path in folder.iterdir())


def begin(folder: Path, recipe: Mapping[str, Any]) -> None:
    """Create the list of a stream that will be made by this recipe."""
    body = {"stream": {"format": FORMAT, "version": VERSION, "recipe": recipe}}
    write_whole(folder / LOG, (json.dumps(body) + "\n").encode())


def append(folder: Path, item: Sealed | Note | Mapping[str, Column]) -> None:
    """Add a line. A shard belongs to the stream from this moment on."""
    if isinstance(item, Mapping):
        body: dict[str, Any] = {"columns": {name: asdict(column) for name, column in item.items()}}
    else:
        body = {"shard" if isinstance(item, Sealed) else "note": asdict(item)}
    with open(folder / LOG, "ab") as file:
        file.write((json.dumps(body) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def mend(folder: Path) -> None:
    """Remove half a line that a writer left when it was ended."""
    raw = (folder / LOG).read_bytes()
    if not raw.endswith(b"\n"):
        os.truncate(folder / LOG, raw.rfind(b"\n") + 1)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keep other writers from the stream, or raise `DataError` if there is one."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DataError(f"another `paceline ingest` is adding to {folder}; give all inputs to one") from None
    try:
        yield
    finally:
        os.close(descriptor)


def has_writer(folder: Path) -> bool:
    """Whether a writer is adding to the stream."""
    try:
        with only_writer(folder):
            return False
    except DataError:
        return True


def note_position(folder: Path, samples: int) -> None:
    """Tell a writer that holds back how many samples a training has read or waits for."""
    if samples > position(folder):
        partial = folder / f"position.json.{os.getpid()}"
        partial.write_text(json.dumps({"samples": samples}))
        os.replace(partial, folder / "position.json")


def position(folder: Path) -> int:
    """Return how many samples the training that is furthest has read or waits for."""
    try:
        return int(json.loads((folder / "position.json").read_bytes())["samples"])
    except FileNotFoundError:
        return 0
