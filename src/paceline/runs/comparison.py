"""What comparison.json holds: the table of `compare`, as records."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from paceline.runs.record import MachineRecord
from paceline.runs.schema import SCHEMA_VERSION, read_as


@dataclass(frozen=True)
class Step:
    """Where one worker's step goes: microseconds on average."""

    compute: float
    update: float
    communicate: float
    wait: float
    other: float  # between rows of the trace: taking a batch, Python, a snapshot

    @property
    def whole(self) -> float:
        """The whole step."""
        return self.compute + self.update + self.communicate + self.wait + self.other


@dataclass(frozen=True)
class Row:
    """One plan's line of the table."""

    plan: str
    workers: int
    samples_per_second: float  # median of the rounds
    spread: tuple[float, ...]  # the slowest and the fastest round
    speedup: float  # over the best single process
    efficiency: float  # speed-up per worker
    ceiling_share: float | None = None  # of the speed of as many workers that never communicate
    test_accuracy: float | None = None
    test_loss: float | None = None
    seconds_to_common_accuracy: float | None = None
    staleness: float = 0.0  # mean
    bytes_per_update: float = 0.0
    wait_fraction: float = 0.0
    step: Step | None = None  # None for ddp, whose trace does not show it
    verdict: str | None = None  # why these workers do not pay; None where they do
    run: str | None = None  # the folder of the plan's training


@dataclass(frozen=True)
class ComparisonRecord:
    """Everything that comparison.json says."""

    job: str
    best_single: str  # the best single process, such as "2 threads"
    best_single_samples_per_second: float
    rounds: int
    plans: tuple[Row, ...]
    common_accuracy: float | None = None  # the best test accuracy that every plan reached
    notes: tuple[str, ...] = ()
    path: str | None = None
    page: str | None = None
    machine: MachineRecord = field(default_factory=MachineRecord)
    schema_version: int = SCHEMA_VERSION

    def row_of(self, run: str) -> Row | None:
        """Return the line of the plan whose training has the folder of this name."""
        return next((row for row in self.plans if row.run and Path(row.run).name == run), None)


def read_comparison(folder: Path) -> ComparisonRecord | None:
    """Read a folder's comparison.json; None if it has none."""
    file = folder / "comparison.json"
    return read_as(ComparisonRecord, file) if file.exists() else None
