"""Run folders as a report reads them: what is there, and what is not.

A folder may be of an older version, of a run that failed, or of one that still goes on: what a page cannot show is said
on it. Nothing is unpickled, so a folder from elsewhere may be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from paceline.errors import RunFolderError
from paceline.runs.run import read_json, read_record
from paceline.runs.trace import Trace


@dataclass(frozen=True)
class Reading:
    """One run's folder."""

    path: Path
    record: dict[str, Any]  # what run.json holds
    trace: Trace
    timed: dict[str, Any]  # its row of the comparison that it is part of; else empty
    missing: tuple[str, ...]  # what the folder lacks, in sentences
    name: str = ""  # unique among the runs of a page

    @property
    def plan(self) -> str:
        return str(self.record.get("plan", "?"))

    @property
    def method(self) -> str:
        return self.plan.partition(":")[0]

    @property
    def short(self) -> str:
        """The plan as it is said in a table: downpour ×2 shards=2"""
        options = [option for option in self.plan.partition(":")[2].split(",") if option]
        rest = [option for option in options if not option.startswith("workers=")]
        return " ".join([self.method, *[f"×{self.workers}"] * (self.workers > 1), *rest])

    @property
    def workers(self) -> int:
        return int(self.record.get("workers", 1))

    @property
    def job(self) -> dict[str, Any]:
        return dict(self.record.get("job") or {})

    @property
    def summary(self) -> dict[str, Any]:
        """Empty unless the run is done."""
        return dict(self.record.get("summary") or {})

    @property
    def history(self) -> list[dict[str, Any]]:
        return list(self.record.get("history") or [])

    @property
    def status(self) -> str:
        return str(self.record.get("status", "unknown"))

    @property
    def seconds(self) -> float:
        """How long it trained, or as long as the trace tells of."""
        rows = self.trace.rows
        return float(self.summary.get("seconds") or (rows["end"].max() / 1e9 if len(rows) else 0.0))

    @property
    def started(self) -> float:
        """Seconds since 1970; of a folder that does not say, when it was made."""
        try:
            return datetime.fromisoformat(str(self.record.get("started"))).timestamp()
        except ValueError:
            return self.path.stat().st_mtime


def open_all(paths: Sequence[Path]) -> list[Reading]:
    """The runs in these folders: each a run's, or one with runs' folders somewhere below it, as they began."""
    readings: list[Reading] = []
    for path in paths:
        if not path.is_dir():
            raise RunFolderError(f"{path} is not a folder; give a run's folder, or one that holds some, such as runs")
        found = [path] if (path / "run.json").exists() else [file.parent for file in path.rglob("run.json")]
        if not found:
            raise RunFolderError(f"{path} is not a run's folder and holds none: there is no run.json in or below it")
        known = {reading.path for reading in readings}
        opened = [_open(folder) for folder in found if folder not in known]
        readings += sorted(opened, key=lambda reading: (reading.started, reading.path.name))
    return _named(readings)


def _open(folder: Path) -> Reading:
    record, missing = read_record(folder), []
    trace = Trace.of([])
    try:
        trace = Trace.open(folder / "trace.arrow")
    except (OSError, ValueError, KeyError) as error:  # pyarrow's own errors are ValueErrors
        missing.append(f"Its trace cannot be read ({_first_line(error)}), so there is no timeline and no staleness.")
    if not record.get("model"):
        missing.append("It was recorded without the model's outline.")
    if record.get("status") == "running":
        missing.append("It had not ended when this page was made, or ended without a word.")
    timed, sibling = {}, folder.resolve().parent / "comparison.json"
    if sibling.exists():
        timed = _row_of(read_json(sibling), folder.resolve().name)
    return Reading(folder, record, trace, timed, tuple(missing))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:120] or type(error).__name__


def _row_of(comparison: dict[str, Any], name: str) -> dict[str, Any]:
    for row in comparison.get("plans") or []:
        if row.get("run") and Path(row["run"]).name == name:
            shared = ("best_single", "best_single_samples_per_second", "common_accuracy", "rounds")
            return {**row, **{key: comparison.get(key) for key in shared}}
    return {}


def _named(readings: list[Reading]) -> list[Reading]:
    """Each by its plan; where several have the same, numbered in order."""
    plans = [reading.short for reading in readings]
    seen: dict[str, int] = {}
    result = []
    for reading in readings:
        seen[reading.short] = number = seen.get(reading.short, 0) + 1
        several = f" #{number}" if plans.count(reading.short) > 1 else ""
        result.append(replace(reading, name=reading.short + several))
    return result
