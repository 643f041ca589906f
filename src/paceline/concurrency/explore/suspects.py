"""What `paceline check` suspects, as an oracle: a run in which its story comes true confirms it.

The story of a race is that one thread reads, another one changes what was read, and the first acts on what it has read,
each at a line that the finding names. A loop that reads again, or a second test under a lock, is no such story.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from paceline.concurrency.explore.finding import Finding
from paceline.concurrency.explore.operation import Operation
from paceline.concurrency.explore.strategies import Executed

if TYPE_CHECKING:
    from paceline.concurrency.explore.scheduler import Run

LOOKS = 200  # changes of one run that are looked at


class Suspect(NamedTuple):
    """The lines of a finding."""

    file: str
    lines: tuple[int, ...]
    is_race: bool  # so that the story itself is the oracle

    def has(self, operation: Operation) -> bool:
        return operation.place.line in self.lines and operation.place.file == self.file

    @property
    def target(self) -> frozenset[tuple[str, int]]:
        return frozenset((self.file, line) for line in self.lines)


def confirmed(suspects: Iterable[Suspect], run: Run) -> tuple[Suspect, Finding] | None:
    """Return the first suspicion that a run confirms, and what it did."""
    for suspect in (each for each in suspects if each.is_race):
        changes = [at for at, step in enumerate(run.trace) if suspect.has(step.operation)][:LOOKS]
        for at in changes:
            for thread in {each.option.thread for each in run.trace} - {run.trace[at].option.thread}:
                if three := _around(run.trace, at, thread, suspect):
                    return suspect, _finding(three, run)
    return None


def _around(trace: Sequence[Executed], at: int, thread: int, suspect: Suspect) -> tuple[Executed, ...]:
    """Return a read, the change at a step, and the act on what was read; nothing if the thread does something else."""
    change = trace[at]
    before = _next_of(thread, change.operation, reversed(trace[:at]))
    if before is None or before.operation.touches[0].mode != "read" or not suspect.has(before.operation):
        return ()
    after = _next_of(thread, change.operation, trace[at + 1 :])
    if after is None or not suspect.has(after.operation):
        return ()
    again = (after.operation.place, after.operation.verb) == (before.operation.place, before.operation.verb)
    return () if again else (before, change, after)


def _next_of(thread: int, change: Operation, steps: Iterable[Executed]) -> Executed | None:
    return next((each for each in steps if each.option.thread == thread and each.operation.conflicts(change)), None)


def _finding(three: Sequence[Executed], run: Run) -> Finding:
    scenes = [
        (run.tasks[each.option.thread].name, f"{each.operation.verb} {each.operation.subject}", each.operation.place)
        for each in three
    ]
    message = f"{scenes[1][0]} comes between two steps of {scenes[0][0]}, as `paceline check` suspects"
    return Finding(
        "suspected race", message, tuple(scenes), "hold one lock over both steps, or make them one", scenes[-1][2]
    )
