"""The shards of a stream: a folder to which a writer adds shards while trainings read it, and the drift of its values.

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
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import DataError
from paceline.training.shards.manifest import Account, Column, ShardFile, Statistics, column_of, write_whole

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


# How far the values of a column have moved from those that came first.

# Figures of columns, merged from batch to batch.

#: Numbers that are converted at a time, so that they stay in a core's cache.
CACHED = 1 << 17


class Moments:
    """Count, mean and sum of squares of a column, merged batch after batch (Chan, Golub and LeVeque 1979).

    With `positions`, those of each of so many places of a row; the figures of the whole column follow from them.
    """

    def __init__(self, positions: int = 1) -> None:
        self.rows, self.positions = 0, positions
        self.mean, self.squares = np.zeros(positions), np.zeros(positions)
        self.least, self.greatest = math.inf, -math.inf

    def add(self, values: NDArray[np.generic]) -> None:
        if not values.size:
            return
        each = values.reshape(-1, self.positions)
        step = max(1, CACHED // self.positions)
        with np.errstate(invalid="ignore"):  # of infinite numbers
            for first in range(0, len(each), step):
                self._merge(each[first : first + step].T.astype(np.float64, order="C"))
        self.least, self.greatest = min(self.least, float(values.min())), max(self.greatest, float(values.max()))

    def _merge(self, wide: NDArray[np.float64]) -> None:
        rows, mean = wide.shape[1], wide.mean(axis=1)
        wide -= mean[:, None]
        squares = np.einsum("ij,ij->i", wide, wide)
        total, apart = self.rows + rows, mean - self.mean
        self.squares += squares + apart * apart * self.rows * rows / total
        self.mean += apart * rows / total
        self.rows = total

    def statistics(self) -> Statistics | None:
        """Return the figures; None without any value."""
        if not self.rows:
            return None
        mean = float(self.mean.mean())
        with np.errstate(invalid="ignore"):
            squares = float(self.squares.sum() + self.rows * ((self.mean - mean) ** 2).sum())
        count, stds = self.rows * self.positions, np.sqrt(self.squares / self.rows)
        positions = tuple(zip(self.mean.tolist(), stds.tolist(), strict=True)) if self.positions > 1 else ()
        return Statistics(count, mean, math.sqrt(squares / count), self.least, self.greatest, positions)


Floats = NDArray[np.float64]
#: Values of the first shard that are kept of each column: its quantiles, evenly spaced.
QUANTILES = 1000
BINS = 10
#: Wider rows, such as images, are compared as a whole and not place by place.
MOST_PLACES = 64
#: A population stability index above this one is commonly called a major change.
MOVED = 0.25
#: Of shards that have not moved, the share whose distance is taken for more than chance.
FALSE_ALARMS = 0.01


@dataclass(frozen=True)
class Drift:
    """How a shard's column differs from that of the first shard; of a vector, at the place that differs most."""

    population_stability: float
    kolmogorov_smirnov: float
    chance: float = 0.0  # the Kolmogorov-Smirnov distance that shards of so many rows may have by chance

    @property
    def moved(self) -> bool:
        """Whether the column has changed much, and by more than few rows do by chance."""
        return self.population_stability > MOVED and self.kolmogorov_smirnov > self.chance


@dataclass(frozen=True)
class Reference:
    """The first shard's values of each place of a column, as sorted quantiles: one row per place."""

    quantiles: Floats

    @classmethod
    def of(cls, rows: NDArray[np.generic]) -> Reference:
        shares = np.linspace(0, 1, min(QUANTILES, len(rows)))
        return cls(np.quantile(_places(rows), shares, axis=1, method="nearest").T)

    def drift(self, rows: NDArray[np.generic]) -> Drift:
        """Compare the rows of another shard with the first one."""
        pairs = list(zip(self.quantiles, _places(rows), strict=True))
        return Drift(
            max(population_stability(first, now) for first, now in pairs),
            max(kolmogorov_smirnov(first, now) for first, now in pairs),
            chance(self.quantiles.shape[1], len(pairs[0][1]), len(pairs)),
        )


def population_stability(first: Floats, now: Floats) -> float:
    """Return the population stability index of `now` against `first`, which is sorted, in bins of equal count.

    It is the sum of (q - p) log(q / p) over the bins, with half a value added to each, so that none is empty.
    """
    edges = np.unique(np.quantile(first, np.linspace(0, 1, BINS + 1)[1:-1]))
    p, q = (_shares(values, edges) for values in (first, now))
    return float(np.sum((q - p) * np.log(q / p)))


def kolmogorov_smirnov(first: Floats, now: Floats) -> float:
    """Return the greatest distance between two distribution functions; `first` is sorted."""
    now = np.sort(now)
    points = np.concatenate([first, now])
    before = np.searchsorted(first, points, side="right") / len(first)
    return float(np.abs(before - np.searchsorted(now, points, side="right") / len(now)).max())


def chance(first: int, now: int, places: int) -> float:
    """Return the distance that the worst of several places exceeds in `FALSE_ALARMS` of cases if nothing has moved.

    It is the asymptotic bound of the two-sample test, with the error divided among the places.
    """
    return math.sqrt(-math.log(FALSE_ALARMS / places / 2) / 2 * (1 / first + 1 / now))


def as_lists(references: Mapping[str, Reference]) -> dict[str, list[list[float]]]:
    """Return references as data, for a file."""
    return {name: reference.quantiles.tolist() for name, reference in references.items()}


def from_lists(body: Mapping[str, list[list[float]]]) -> dict[str, Reference]:
    return {name: Reference(np.array(quantiles, np.float64)) for name, quantiles in body.items()}


def _places(rows: NDArray[np.generic]) -> Floats:
    """Return the values of each place of the rows, or all values as one place."""
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    return flat.T if flat.shape[1] <= MOST_PLACES else flat.reshape(1, -1)


def _shares(values: Floats, edges: Floats) -> Floats:
    counts = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1) + 0.5
    shares: Floats = counts / counts.sum()
    return shares
