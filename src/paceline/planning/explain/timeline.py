"""A plan's timeline as text, from a simulation in time only: which workers wait, and how old gradients are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from paceline.plans.methods.views import Timeline
from paceline.plans.plan import Plan

if TYPE_CHECKING:
    from paceline.runtime.runs.trace import Trace

BATCH = 100  # samples that one worker computes in one piece
COMPUTE, MOVE = 1e-5, 2e-5  # seconds: for a sample; for a gradient on its way, and for its update


def draw_timeline(plan: Plan, legend: Timeline) -> list[str]:
    """Draw the timeline of a plan with its legend."""
    shown = replace(plan, method=legend.fitting) if legend.fitting is not None else plan
    slowest, columns = (2, 2) if legend.own_steps else (3, 7)
    trace = _simulated(shown, legend.updates, slowest)
    notes = [legend.note] if legend.note else []
    if plan.workers > 1:
        notes.append(f"In this simulated cluster worker {plan.workers - 1} is {slowest} times slower than worker 0.")
    return [
        *_lines(shown, trace, columns, legend),
        "",
        *legend.signs,
        "",
        *legend.says,
        *(_staleness(trace) if legend.staleness else []),
        *notes,
    ]


def _staleness(trace: Trace) -> list[str]:
    stale = trace.staleness()
    if not len(stale):
        return ["Without locks there are no versions, so it is not known how old a gradient was."]
    return [
        f"Staleness: between a pull and its push came {stale.mean():.1f} versions on average, at most {stale.max()}."
    ]


def _simulated(plan: Plan, updates: int, slowest: float) -> Trace:
    """Simulate a world whose last worker is `slowest` times slower than the first, with the others in between."""
    from paceline.runtime.engines.virtual import World, simulate

    others = max(1, plan.workers - 1)
    speeds = tuple(1 - (1 - 1 / slowest) * worker / others for worker in range(plan.workers))
    move = 0.0 if plan.traits.synchronous else MOVE
    world = World(compute=COMPUTE, speeds=speeds, jitter=0.0, latency=move, update=move)
    size = BATCH * plan.parts
    return simulate(plan, plan.agenda(size * updates, size), world, 0)


class _Line:
    """The line of one worker, from left to right; a collective takes one column."""

    def __init__(self, column: float) -> None:
        #: Nanoseconds of a column; the text so far; the columns that collectives took.
        self.column, self.text, self.collectives = column, "", 0

    def until(self, end: int, sign: str) -> None:
        self.text += sign * (round(end / self.column) + self.collectives - len(self.text))

    def exchange(self) -> None:
        self.text, self.collectives = self.text + "M", self.collectives + 1


def _lines(plan: Plan, trace: Trace, columns: int, legend: Timeline) -> list[str]:
    """Return a line per worker; the fastest one computes a batch in so many columns."""
    from paceline.runtime.runs.trace import Kind

    lines = [_Line(BATCH * COMPUTE * 1e9 / columns) for _ in range(plan.workers)]
    for row in trace.rows:  # in the order in which things ended
        line = lines[row["worker"]]
        if row["kind"] == Kind.COMPUTE:
            line.until(row["start"], ".")
            line.until(row["end"], "-")
            line.text = line.text[:-1] + "o" if legend.own_steps else line.text
        elif row["kind"] == Kind.COLLECTIVE:
            line.until(row["end"], ".")
            line.exchange()
        elif row["kind"] == Kind.APPLY and not plan.traits.synchronous and row["shard"] == 0:
            line.text += str(row["version"]) if legend.versions else "*"
        elif row["kind"] == Kind.DROP:
            line.text += "/"
    return [f"worker {number:<2} {line.text}" for number, line in enumerate(lines)]
