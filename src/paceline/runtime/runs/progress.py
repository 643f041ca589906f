"""What an engine reports while workers train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.runtime.runs.trace import Columns


@dataclass(frozen=True)
class Progress:
    """The state of a run, passed to `progress=` about ten times a second.

    `rows` are those of the trace that were written since the last report, one array per worker and one row per event
    (see `paceline.runtime.runs.trace`). Everything else is the state at the moment of the report.
    """

    #: Updates made so far, by earlier lives of a resumed run, too.
    updates: int
    #: Updates of the whole run.
    total_updates: int
    #: Training samples seen so far.
    samples: int
    #: Seconds of training so far, by earlier lives, too.
    seconds: float
    #: Mean over the workers of their latest loss; None if no worker computed one since the last report.
    loss: float | None
    #: Number of workers that the run was started with.
    workers: int
    #: Workers that have finished all of their work.
    finished: tuple[int, ...]
    #: Workers whose process died while the others went on.
    dead: tuple[int, ...]
    #: Workers that sleep at this moment, until another one rings.
    asleep: tuple[int, ...]
    #: Per worker, the steps of collectives that it has made so far.
    collective_steps: tuple[int, ...]
    #: Whether no worker can be more than an update ahead of another, since the plan has no gate.
    in_step: bool
    #: Updates that earlier lives of a resumed run had made.
    resumed_updates: int
    #: Seconds of training in earlier lives of a resumed run.
    resumed_seconds: float
    #: Whether a signal has asked the run to stop after the next checkpoint.
    stopping: bool
    #: Rows of the trace since the last report, per worker, and those of deaths.
    rows: tuple[Columns, ...]


ProgressCallback = Callable[[Progress], None]


class Follower(Protocol):
    """What follows a run while it goes on: it is told of progress, reads snapshots, and may end the run."""

    def __call__(self, report: Progress) -> None:
        """Take a report, about ten times a second; what it raises ends the run."""

    def connect(self, snapshot: Callable[[int], Any] | None, stop: Callable[[], None] | None) -> None:
        """Take what reads the snapshot of so many updates, and what ends the run after a checkpoint; or None each."""
