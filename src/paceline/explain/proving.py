"""What can be proved of a plan before anything runs: what `paceline prove` says.

a collective    its table: nobody waits for ever, nothing is read while it is changed, the sum is the sum
a pipeline      its timetable: messages, versions of weights, updates; under the bounds of the real buffers
a programme     the same of the table by which its workers meet; its commands are rehearsed
a gate          every interleaving of a small world, with a death at every point
anything else   nobody waits for anybody: there is nothing to prove
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.core.collectives import Collective, Shards
from paceline.core.collectives.neighbours import Neighbours
from paceline.core.collectives.proof import prove, prove_mixing, table_seconds
from paceline.core.coordinators import Coordinator
from paceline.core.coordinators.rehearsal import rehearse
from paceline.core.schedules.proof import prove_table
from paceline.core.server.gates import Gate
from paceline.errors import PlanError
from paceline.plans.plan import Plan, make_again

if TYPE_CHECKING:
    from paceline.core.state import State

LINKS = ((1e-5, 1e9), (1e-3, 1e9), (1e-7, 1e8), (0.0, 1e9))  # latency in seconds, bytes per second
NO_CIRCLE = "no waiting circle: every offer has its taker in the same step"
REHEARSED = 8  # updates
ENDLESS = 50  # updates of a pipeline that is never flushed: what follows repeats itself
MOST_WORKERS, BATCHES, MOST_SHARDS = 3, 3, 2  # of a world that is walked whole in seconds


@dataclass(frozen=True)
class Proved:
    plan: str
    holds: bool | None  # None: there was nothing to prove
    says: list[str]
    figures: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        verdict = {True: "proved", False: "NOT TRUE", None: "nothing to prove"}[self.holds]
        return "\n".join([f"{self.plan}: {verdict}", *(f"  {line}" for line in self.says)])

    def as_dict(self) -> dict[str, Any]:
        return {"plan": self.plan, "holds": self.holds, "says": self.says, **self.figures}


def prove_plan(plan: Plan) -> Proved:
    """Prove what there is to prove. What is wrong with a pipeline's table is told, that of a collective is raised."""
    if plan.gate is not None:
        return _gate(plan)
    if plan.schedule is not None:
        return _pipeline(plan)
    if plan.native:
        return Proved(str(plan), None, ["Its meeting is PyTorch's own code, not a table of Paceline's."])
    if plan.meeting is None or isinstance(plan.meeting, Shards):
        return Proved(str(plan), None, ["Its workers never meet: nobody waits, and nothing is exchanged."])
    return _mixing(plan, plan.meeting) if isinstance(plan.meeting, Neighbours) else _collective(plan, plan.meeting)


def _pipeline(plan: Plan) -> Proved:
    counts = (plan.chunks,) * (plan.schedule.span or ENDLESS)  # type: ignore[union-attr]
    table = plan.table(counts)
    try:
        found = prove_table(table)
    except PlanError as wrong:
        return Proved(str(plan), False, str(wrong).splitlines())
    updates = f"{len(counts)} updates" if len(counts) > 1 else "an update"
    says = [
        f"{_many(table.stages, 'stage')} at {_many(table.workers, 'worker')}: {found.works} pieces of work and "
        f"{_many(found.messages, 'message')} make {updates} of {plan.chunks} "
        f"micro-batch{'es' * (plan.chunks > 1)}{' each' * (len(counts) > 1)}",
        f"no circle of waits, with room for {table.slots} messages between two stages each way; none is left lying",
        "every micro-batch goes once forward and once backward through every stage, on what its neighbours made of it",
        "no version of weights is read before it is made or after it is dropped; forward and backward read "
        + ("as the prediction wants: the newest" if table.predicts else "the same one"),
        "every gradient is in exactly one update, and all stages make the same updates",
        f"in ticks: {found.ticks}, of which {found.bubble:.1%} idle",
        f"activations kept, in micro-batches per stage: {', '.join(map(str, found.in_flight))}",
        f"versions of weights held, per stage: {', '.join(map(str, found.versions))}",
        f"staleness: at most {found.staleness}",
    ]
    figures = {"workers": table.workers, "stages": table.stages, "ticks": found.ticks, "messages": found.messages}
    return Proved(str(plan), True, says, {**figures, "staleness": found.staleness, "bubble": found.bubble})


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _collective(plan: Plan, meeting: Collective) -> Proved:
    workers = plan.workers
    steps = prove(meeting, workers)
    says = [
        f"{type(meeting).__name__} of {workers} workers: {steps} steps over {meeting.segments(workers)} segments",
        NO_CIRCLE,
        "nothing is overwritten while somebody may still be reading it",
        f"every worker ends with one contribution of each of the {workers}",
    ]
    equal = all(
        math.isclose(meeting.seconds(workers, 1e6, *link), table_seconds(meeting, workers, 1e6, *link), rel_tol=1e-12)
        for link in LINKS
    )
    says.append(f"its closed form {'is' if equal else 'IS NOT'} the table's time, over {len(LINKS)} kinds of link")
    if plan.averaging is not None:
        says.append("how replicas that have met move on is arithmetic: tests hold it to its equation")
    if plan.coordinator is not None:
        says += _rehearsed(plan.coordinator)
    return Proved(str(plan), equal, says, {"workers": workers, "steps": steps})


def _rehearsed(coordinator: Coordinator) -> list[str]:
    updates, loss = rehearse(coordinator, REHEARSED)
    commands = sum(map(len, updates))
    return [
        f"rehearsed for {REHEARSED} updates on a small quadratic: {commands} commands brought its loss to {loss:.0e}",
        "in the rehearsal no vector was read before it was written, and none was used that is not named",
        "that every worker decides the same needs no proof: all run one coordinator on the bits of one sum",
    ]


def _mixing(plan: Plan, meeting: Neighbours) -> Proved:
    workers = plan.workers
    steps = prove_mixing(meeting, workers)
    says = [
        f"{type(meeting).__name__} of {workers} workers: {steps} exchanges of the whole vector",
        NO_CIRCLE,
        "everyone mixes what it was sent, by weights that leave the mean of all where it is",
        "what one worker says reaches every other in the end",
    ]
    return Proved(str(plan), True, says, {"workers": workers, "steps": steps})


class _Watched:
    """A gate, and how often it was found closed."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.closed = gate, 0
        self.ints: Callable[[int], int] = gate.ints
        self.init, self.finished, self.died = gate.init, gate.finished, gate.died

    def open(self, state: State, at: int, worker: int) -> bool:
        answer = self.gate.open(state, at, worker)
        self.closed += not answer
        return answer


def _gate(plan: Plan) -> Proved:
    from paceline.engines.virtual import explore

    workers, shards = min(plan.workers, MOST_WORKERS), min(plan.shards, MOST_SHARDS)
    if plan.gathers:  # all the backups, and one more at least
        workers = min(plan.workers, max(MOST_WORKERS, plan.workers - plan.gathers + 1))
        plan = make_again(plan, workers)
    gathers, batches = plan.gathers, 2 * plan.gathers or BATCHES
    assert plan.gate is not None
    deaths, watched = int(workers > 1), _Watched(plan.gate)
    found = explore(workers, batches, shards, deaths, watched, gathers=gathers)
    world = f"{workers} workers, {batches} batches, {shards} shard{'s' * (shards > 1)}, up to {deaths} death"
    figures = {"workers": workers, "states": found.states, "moves": found.moves, "closed": watched.closed}
    says = [f"every interleaving of a small world ({world}): {found.states:,} states, {found.moves:,} moves"]
    if found.story is not None:
        return Proved(str(plan), False, [*says, *found.story.splitlines()], figures)
    says += ["nobody waits for ever, whoever dies at whatever point", "no batch is with two living workers at once"]
    if gathers:
        says.append(
            f"every version is made of {gathers} gradient{'s' * (gathers > 1)}, computed from the version before"
        )
    if plan.locked:
        says.append("every shard takes every batch exactly once, also that of a worker who died half-way")
    if plan.locked and not gathers:
        says.append("the staleness of all pushes sums to what their order says")
    if not plan.locked:
        says.append("without locks no more than that: what two writers leave behind is left to chance")
    closed = f"was found closed {watched.closed:,} times" if watched.closed else "never closed in so small a world"
    return Proved(str(plan), True, [*says, f"the gate {closed}"], figures)
