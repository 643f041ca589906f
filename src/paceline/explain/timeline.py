"""A plan's timeline as text, from a simulation in time only: which workers wait, and how old gradients are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.core.collectives.neighbours import Neighbours
from paceline.plans.methods.local_steps import Gossip, LocalSteps
from paceline.plans.methods.server import CentreServer, GatheringServer, Hogwild, PairwiseGossip, ParameterServer
from paceline.plans.plan import Plan

if TYPE_CHECKING:
    from paceline.runs.trace import Trace

BATCH = 100  # samples that one worker computes in one piece
COMPUTE, MOVE = 1e-5, 2e-5  # seconds: for a sample; for a gradient on its way, and for its update
SHOWN = 10  # local steps between two collectives that fit on a page


@dataclass(frozen=True)
class Legend:
    """The style and the legend of a method's timeline."""

    #: Updates that are drawn.
    updates: int
    #: Lines that explain the signs.
    signs: tuple[str, ...]
    #: What the trace shows, in a sentence or two.
    says: Callable[[Trace], list[str]]
    #: Workers step their own parameters, rather than a server's.
    own_steps: bool = True
    #: A push is drawn as the number of the version that it makes.
    versions: bool = True
    #: Local steps are fewer than the plan's own; a note says so.
    note: str = ""


OWN_STEP, BATCHES, WAITS = "  -o  a step of its own parameters", "  -   computes a batch", "  .   waits"


def draw_timeline(plan: Plan) -> list[str]:
    """Draw the timeline of a plan with its legend."""
    shown, legend = _legend(plan)
    slowest, columns = (2, 2) if legend.own_steps else (3, 7)
    trace = _simulated(shown, legend.updates, slowest)
    notes = [legend.note] if legend.note else []
    if plan.workers > 1:
        notes.append(f"In this simulated cluster worker {plan.workers - 1} is {slowest} times slower than worker 0.")
    return [*_lines(shown, trace, columns, legend), "", *legend.signs, "", *legend.says(trace), *notes]


def _legend(plan: Plan) -> tuple[Plan, Legend]:
    """Return the plan as it is drawn, with fewer local steps if its own do not fit on a page, and its legend."""
    match plan.method:
        case LocalSteps(collective, averaging) as method:
            note, every = _fitting(averaging.every)
            fits = replace(averaging, every=every) if note else averaging  # type: ignore[type-var]
            table = type(collective).__name__
            meets = f"Replicas are averaged by an all-reduce among all workers, by the table of {table}."
            updates = max(6, 2 * every) if every else SHOWN  # two averages; or one, at the end
            return replace(plan, method=replace(method, averaging=fits)), Legend(
                updates, (OWN_STEP, "  M   averages its replica with the others'", WAITS), lambda _: [meets], note=note
            )
        case Gossip(graph):
            mixes = _neighbours_of_0(graph, plan.workers)
            return plan, Legend(6, (OWN_STEP, "  M   mixes with its neighbours", WAITS), lambda _: [mixes])
        case CentreServer(exchange) as method if exchange.parts:
            sign = "  3   has trained on a part of the data, the third that is done; the next begins from the start"
            mean = "The result is the mean of one model for each part."
            updates = 3 * exchange.parts * exchange.every
            return plan, Legend(updates, (OWN_STEP, sign, WAITS), lambda _: [mean])
        case CentreServer(exchange) as method:
            note, every = _fitting(exchange.every)
            fitting = replace(exchange, every=every) if note else exchange  # type: ignore[type-var]
            sign = "  3   exchanges with the centre, whose version 3 that makes"
            return replace(plan, method=replace(method, exchange=fitting)), Legend(
                3 * plan.workers * every, (OWN_STEP, sign, WAITS), _staleness, note=note
            )
        case PairwiseGossip():
            sign = "  3   averages with one of its neighbours and makes its step: the third of all such exchanges"
            return plan, Legend(5 * plan.workers, (BATCHES, sign, WAITS), _staleness, own_steps=False)
        case GatheringServer():
            signs = (
                "  3   pushes its gradient, which is held for version 3",
                "  /   arrives too late: computes it again",
            )
            return plan, Legend(5, (BATCHES, *signs, WAITS), _staleness, own_steps=False)
        case ParameterServer(shards=shards):
            sign = f"  3   pushes its gradient, which makes version 3{' of shard 0' if shards > 1 else ''}"
            return plan, Legend(5 * plan.workers, (BATCHES, sign, WAITS), _staleness, own_steps=False)
        case Hogwild():
            shown = (BATCHES, "  *   pushes", WAITS)
            return plan, Legend(5 * plan.workers, shown, _staleness, own_steps=False, versions=False)
        case _:
            return plan, Legend(SHOWN * plan.workers, (OWN_STEP,), lambda _: [])


def _fitting(every: int) -> tuple[str, int]:
    """Return (a note, local steps that fit on a page); the note is empty if the plan's own do."""
    if every <= SHOWN:
        return "", every
    return f"Drawn with every={SHOWN} instead of {every}, to fit on a page.", SHOWN


def _neighbours_of_0(graph: Neighbours, workers: int) -> str:
    others = sorted(other for other, _ in graph.weights(0, workers)[1:])
    if not others:
        return "Worker 0 has no neighbour to mix with."
    return f"Worker 0 mixes its parameters with those of worker{'s' * (len(others) > 1)} {', '.join(map(str, others))}."


def _staleness(trace: Trace) -> list[str]:
    stale = trace.staleness()
    if not len(stale):
        return ["Without locks there are no versions, so it is not known how old a gradient was."]
    return [
        f"Staleness: between a pull and its push came {stale.mean():.1f} versions on average, at most {stale.max()}."
    ]


def _simulated(plan: Plan, updates: int, slowest: float) -> Trace:
    """Simulate a world whose last worker is `slowest` times slower than the first, with the others in between."""
    from paceline.engines.virtual import World, simulate

    others = max(1, plan.workers - 1)
    speeds = tuple(1 - (1 - 1 / slowest) * worker / others for worker in range(plan.workers))
    move = 0.0 if plan.traits.keeps_step else MOVE
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


def _lines(plan: Plan, trace: Trace, columns: int, legend: Legend) -> list[str]:
    """Return a line per worker; the fastest one computes a batch in so many columns."""
    from paceline.runs.trace import Kind

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
        elif row["kind"] == Kind.APPLY and not plan.traits.keeps_step and row["shard"] == 0:
            line.text += str(row["version"]) if legend.versions else "*"
        elif row["kind"] == Kind.DROP:
            line.text += "/"
    return [f"worker {number:<2} {line.text}" for number, line in enumerate(lines)]
