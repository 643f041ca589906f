"""Run folders as a report reads them: what they hold, and what they lack.

A folder may be of an older version, of a run that failed, or of one that still goes on: the page says what it cannot
show. Nothing is unpickled, so it is safe to read a folder from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from paceline.errors import RunFolderError
from paceline.runtime.runs.comparison import ComparisonRecord, Row, read_comparison
from paceline.runtime.runs.events import Event, read_events
from paceline.runtime.runs.live import read_hang
from paceline.runtime.runs.record import RunRecord, Status, read_record
from paceline.runtime.runs.trace import Trace


@dataclass(frozen=True)
class Timed:
    """The place of a run in the comparison that it is part of."""

    row: Row
    comparison: ComparisonRecord


@dataclass(frozen=True)
class Reading:
    """A run folder as it was read."""

    path: Path
    record: RunRecord  # what run.json holds
    trace: Trace
    timed: Timed | None  # None: the run is not part of a comparison
    missing: tuple[str, ...]  # what the folder lacks, in sentences
    events: tuple[Event, ...] = ()  # of a run on a cluster
    hang: str = ""  # what `paceline watch` found
    name: str = ""  # unique among the runs of a page

    @property
    def plan(self) -> str:
        return self.record.plan

    @property
    def method(self) -> str:
        """The plan's name."""
        return self.plan.partition(":")[0]

    @property
    def unsettled(self) -> bool:
        """Whether the rounds of its comparison disagree, so that a ratio says less than its interval."""
        return self.timed is not None and self.timed.comparison.disagreement is not None

    @property
    def divided(self) -> bool:
        """Whether the trace tells computing from communicating and waiting; what PyTorch's DDP does is not in it."""
        return self.method != "ddp"

    @property
    def short(self) -> str:
        """The plan as a table shows it: downpour ×2 shards=2"""
        options = [option for option in self.plan.partition(":")[2].split(",") if option]
        rest = [option for option in options if not option.startswith("workers=")]
        return " ".join([self.method, *[f"×{self.workers}"] * (self.workers > 1), *rest])

    @property
    def workers(self) -> int:
        return self.record.workers

    @property
    def seconds(self) -> float:
        """Seconds of training; those that the trace covers, if the run has no summary."""
        rows, summary = self.trace.rows, self.record.summary
        if summary is not None and summary.seconds:
            return summary.seconds
        return float(rows["end"].max() / 1e9) if len(rows) else 0.0

    @property
    def started(self) -> float:
        """When the run began, in seconds since 1970; when the folder was made, if the record does not say."""
        try:
            return datetime.fromisoformat(self.record.started).timestamp()
        except ValueError:
            return self.path.stat().st_mtime


def open_all(paths: Sequence[Path]) -> list[Reading]:
    """Read the runs in these folders, ordered by their start: each is a run's folder, or has some below it."""
    readings: list[Reading] = []
    for path in paths:
        visited = {reading.path for reading in readings}
        opened = [_open(folder) for folder in run_folders(path) if folder not in visited]
        readings += sorted(opened, key=lambda reading: (reading.started, reading.path.name))
    return _named(readings)


def run_folders(path: Path) -> list[Path]:
    """Return the folder itself if it is a run's, or all run folders below it; RunFolderError if there is none."""
    if not path.is_dir():
        raise RunFolderError(f"{path} is not a folder; give a run folder, or a folder that contains some, such as runs")
    folders = [path] if (path / "run.json").exists() else [file.parent for file in path.rglob("run.json")]
    if not folders:
        raise RunFolderError(
            f"{path} is not a run folder and contains no run folder: there is no run.json in or below it"
        )
    return folders


def _open(folder: Path) -> Reading:
    record, missing = read_record(folder), []
    trace = Trace.of([])
    try:
        trace = Trace.open(folder / "trace.arrow")
    except (OSError, ValueError, KeyError) as error:  # pyarrow's own errors are ValueErrors
        missing.append(f"Its trace cannot be read ({_first_line(error)}), so there is no timeline and no staleness.")
    if not record.model:
        missing.append("It was recorded without the model's outline.")
    if record.status == Status.RUNNING:
        missing.append("It had not ended when this page was made, or was killed.")
    timed, events = _timed(folder.resolve()), tuple(read_events(folder))
    return Reading(folder, record, trace, timed, tuple(missing), events=events, hang=read_hang(folder))


def _timed(folder: Path) -> Timed | None:
    comparison = read_comparison(folder.parent)
    row = comparison.row_of(folder.name) if comparison else None
    return Timed(row, comparison) if comparison and row else None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:120] or type(error).__name__


def _named(readings: list[Reading]) -> list[Reading]:
    """Name each run by its plan, with a number where several have the same one."""
    plans = [reading.short for reading in readings]
    counts: dict[str, int] = {}
    result = []
    for reading in readings:
        counts[reading.short] = number = counts.get(reading.short, 0) + 1
        several = f" #{number}" if plans.count(reading.short) > 1 else ""
        result.append(replace(reading, name=reading.short + several))
    return result
