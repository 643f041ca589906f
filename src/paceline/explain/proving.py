"""Proofs about a plan before it runs, which `paceline prove` prints.

a collective    its table: no worker waits for ever, no segment is read while it is changed, the sum is complete
a pipeline      its timetable: messages, versions of weights, updates, within the bounds of the real buffers; and its
                workers in every interleaving of a small world, with a death at every point
split layers    their program: movements meet, summands are summed once, gradients come back once
operators       every order in which the messages of a small world can arrive
a coordinator   the table by which its workers add vectors up; its commands are rehearsed
a gate          every interleaving of a small world, with a death at every point
a program       what workers that keep step do, in every interleaving of a small world, with a death at every point
anything else   no worker waits for another: there is nothing to prove
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.core.collectives import Collective
from paceline.core.collectives.neighbours import Neighbours
from paceline.core.collectives.proof import has_its_rounds, prove, prove_mixing, table_seconds
from paceline.core.coordinators import Coordinator
from paceline.core.coordinators.rehearsal import rehearse
from paceline.core.dataflow.example import example_graph
from paceline.core.dataflow.proof import explore as explore_messages
from paceline.core.schedules.explore import explore_stages
from paceline.core.schedules.proof import prove_table
from paceline.core.server.explore import explore
from paceline.core.server.explore_replicas import explore_replicas
from paceline.core.server.gates import Gate
from paceline.core.splits.example import example_program
from paceline.core.splits.proof import prove_program
from paceline.engines.explorer import explore_program
from paceline.errors import PlanError
from paceline.plans.methods import Synchronous
from paceline.plans.methods.all_reduce import AllReduce
from paceline.plans.methods.coordinated import Coordinated
from paceline.plans.methods.dataflow import Dataflow
from paceline.plans.methods.local_steps import Gossip, LocalSteps
from paceline.plans.methods.native import NativeDdp
from paceline.plans.methods.pipeline import LAYERS, Pipeline
from paceline.plans.methods.server import Server
from paceline.plans.methods.split_layers import INSIDE, SplitLayers
from paceline.plans.plan import Plan, make_again

if TYPE_CHECKING:
    from paceline.core.state import State

LINKS = ((1e-5, 1e9), (1e-3, 1e9), (1e-7, 1e8), (0.0, 1e9))  # latency in seconds, bytes per second
NO_CIRCLE = "no waiting circle: every offer has its taker in the same step"
REHEARSED = 8  # updates
MOST_PROVED = 128  # workers of a table, which take seconds
ENDLESS = 50  # updates of a pipeline that is never flushed: what follows repeats itself
ARITHMETIC = "what becomes of averaged replicas is arithmetic, which tests compare with its equation"
INSTANCES = 3  # trees of a world whose messages are walked in a second
MOST_WORKERS, BATCHES, MOST_SHARDS, UPDATES = 3, 3, 2, 3  # of a world that is walked whole in seconds


@dataclass(frozen=True)
class Proved:
    """The result of a proof."""

    plan: str
    #: None if there was nothing to prove.
    holds: bool | None
    says: list[str]
    figures: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        verdict = {True: "proved", False: "NOT TRUE", None: "nothing to prove"}[self.holds]
        return "\n".join([f"{self.plan}: {verdict}", *(f"  {line}" for line in self.says)])

    def as_dict(self) -> dict[str, Any]:
        return {"plan": self.plan, "holds": self.holds, "says": self.says, **self.figures}


def prove_plan(plan: Plan) -> Proved:
    """Prove what there is to prove.

    A fault in a pipeline's table is in the result; a wrong table of a collective raises `PlanError`.
    """
    if isinstance(plan.method, Server):
        return _gate(plan, plan.method)
    if plan.workers > MOST_PROVED:
        raise PlanError(
            f"a table of {plan.workers} workers is not proved: the time grows with the cube of their number. Prove at "
            f"most {MOST_PROVED}, as the table is made in the same way for any number"
        )
    match plan.method:
        case AllReduce(collective):
            return _collective(plan, collective, [])
        case LocalSteps(collective):
            return _collective(plan, collective, [ARITHMETIC])
        case Coordinated(collective, coordinator):
            return _collective(plan, collective, _rehearsed(coordinator))
        case Gossip(graph):
            return _mixing(plan, graph)
        case Pipeline() as pipeline:
            return _pipeline(plan, pipeline)
        case SplitLayers() as split:
            return _split(plan, split)
        case Dataflow() as dataflow:
            return _dataflow(plan, dataflow)
        case NativeDdp():
            return Proved(str(plan), None, ["Its all-reduce is PyTorch's own code, not a table of Paceline's."])
        case _:
            return Proved(str(plan), None, ["Its workers exchange nothing, so no worker waits."])


def _pipeline(plan: Plan, pipeline: Pipeline) -> Proved:
    """Prove the timetable of a pipeline."""
    micro_batches = pipeline.micro_batches
    counts = (micro_batches,) * (pipeline.schedule.span or ENDLESS)
    table = pipeline.table(plan.workers, counts)
    try:
        found = prove_table(table)
    except PlanError as wrong:
        return Proved(str(plan), False, str(wrong).splitlines())
    updates = f"{len(counts)} updates" if len(counts) > 1 else "an update"
    says = [
        f"{_many(table.stages, 'stage')} at {_many(table.workers, 'worker')}: {found.works} pieces of work and "
        f"{_many(found.messages, 'message')} make {updates} of {micro_batches} "
        f"micro-batch{'es' * (micro_batches > 1)}{' each' * (len(counts) > 1)}",
        f"no circle of waits, with {table.slots} slots for messages between two stages each way; none is left unread",
        "every micro-batch goes once forward and once backward through every stage, on what its neighbours made of it",
        "no version of weights is read before it is made or after it is dropped; forward and backward read "
        + ("as the prediction wants: the newest" if table.predicts else "the same one"),
        "every gradient is in exactly one update, and all stages make the same updates",
        f"in ticks: {found.ticks}, of which {found.bubble:.1%} idle",
        f"activations kept, in micro-batches per stage: {', '.join(map(str, found.in_flight))}",
        f"versions of weights held, per stage: {', '.join(map(str, found.versions))}",
        f"staleness: at most {found.staleness}",
    ]
    walked = _stages(plan, pipeline)
    says += [*walked.says, *_on_mesh(plan, pipeline)]
    figures = {"workers": plan.workers, "stages": table.stages, "ticks": found.ticks, "messages": found.messages}
    more = {"staleness": found.staleness, "bubble": found.bubble}
    return Proved(str(plan), walked.holds, says, {**figures, **more, **walked.figures})


def _stages(plan: Plan, pipeline: Pipeline) -> Proved:
    """Explore the workers of a small pipeline with this schedule; with replicas, if the plan has some."""
    schedule, together, workers = pipeline.schedule, min(2, pipeline.together), pipeline.depth(plan.workers)
    depth = max(2, min(workers, MOST_WORKERS)) if together == 1 else 2
    counts = (1,) * UPDATES if not schedule.span else (2,) if together > 1 else (2, 2)
    if {*schedule.layout(depth).stage_to_worker} != {*range(depth)}:  # it says itself who holds what
        depth, counts = workers, (pipeline.micro_batches,) * schedule.span
    if depth > MOST_WORKERS:
        return Proved(str(plan), True, [f"its {depth} workers are too many to be walked in every interleaving"])
    if pipeline.spread.server is not None:
        replicas = min(2, pipeline.spread.data)
        found = explore_replicas(pipeline.leasing_program, schedule, replicas, depth, deaths=replicas - 1, batches=2)
        world = f"{_many(replicas, 'replica')} of {_many(depth, 'worker')}, 2 batches"
    else:
        found = explore_stages(pipeline.program, schedule, together, depth, counts)
        world = f"{_many(together * depth, 'worker')}, {_many(len(counts), 'update')} of {counts[0]} micro-batches"
    says = [
        f"its workers in every interleaving of a small world ({world}, a death at any point): {found.states:,} states"
    ]
    if found.story is not None:
        says += found.story.splitlines()
    else:
        says.append("no worker waits but for a dead one, and none computes from another message than its own")
    return Proved(str(plan), found.good, says, {"states": found.states})


def _on_mesh(plan: Plan, pipeline: Pipeline) -> list[str]:
    """Prove the other axes of a pipeline's mesh."""
    spread, mesh = pipeline.spread, pipeline.mesh(plan.workers)
    says = [f"that table is run by each of {mesh.workers // mesh.size(LAYERS)} lines of a mesh of {mesh}"]
    if spread.inside > 1:
        found = prove_program(example_program(spread.recipe, spread.inside))
        says += [
            f"the {spread.inside} workers of a stage have one line of work, so they come to the same movements in the "
            f"same order: {_many(found.movements, 'movement')} for a small net; a model's are proved before it starts",
            "no worker chooses what it does next: the walk in which they go forward together is one of all, and ends",
        ]
    if spread.server is not None:
        says.append("a replica is one worker of desk and shards: no batch is with two at once, or twice in a shard")
    elif spread.data > 1:
        prove(spread.collective, spread.data)
        says.append(f"the all-reduce between {spread.data} replicas is proved as {type(spread.collective).__name__}'s")
    return says if spread.wide else []


def _split(plan: Plan, split: SplitLayers) -> Proved:
    """Prove the program of a small net; that of a model is proved before it starts."""
    split.prove(plan.workers)
    program = example_program(split.recipe, split.mesh(plan.workers).size(INSIDE), split.stage)
    try:
        found = prove_program(program)
    except PlanError as wrong:
        return Proved(str(plan), False, str(wrong).splitlines())
    says = [
        f"a small net of {_many(len({n.layer for n in program.nodes.values() if n.layer}), 'layer')}, over "
        f"{_many(program.workers, 'worker')}: "
        f"{_many(found.operations, 'operation')}, {_many(found.movements, 'movement')} in "
        f"{_many(found.exchanges, 'exchange')}",
        "no circle of waits: all workers come to the same movements in the same order",
        "no summand is used as if it were the sum, and no part as if it were the whole",
        "every gradient comes back once, to the whole parameter or to its own part",
        f"numbers that each worker sends for a batch of 64: {', '.join(map(str, found.numbers))}",
    ]
    if split.data > 1:
        says.append(f"the all-reduce between {split.data} replicas is proved as ring's")
    figures = {"workers": plan.workers, "movements": found.movements, "exchanges": found.exchanges}
    return Proved(str(plan), True, [*says, "the program of a model itself is proved before it starts"], figures)


def _dataflow(plan: Plan, dataflow: Dataflow) -> Proved:
    """Explore a small world of operators."""
    workers, active = min(plan.workers, MOST_WORKERS), min(dataflow.active, INSTANCES - 1)
    every = min(dataflow.every, INSTANCES - 1)
    found = explore_messages(example_graph, workers, INSTANCES, active, every)
    says = [
        f"every order in which messages can arrive in a small world ({_many(workers, 'worker')}, {INSTANCES} trees, "
        f"{active} under way, updates of {_many(every, 'tree')}): {found.states:,} states, {found.moves:,} moves"
    ]
    figures = {"workers": workers, "states": found.states, "moves": found.moves}
    if found.story is not None:
        return Proved(str(plan), False, [*says, *found.story.splitlines()], figures)
    says += [
        "no worker waits for ever, and no message is left: a worker whose messages find no room continues with others",
        f"never more than {active} under way; every call is computed once forward, then once backward",
        "every operator makes an update of each instance's gradients once, when all of them are there",
    ]
    return Proved(str(plan), True, says, figures)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _collective(plan: Plan, collective: Collective, more: list[str]) -> Proved:
    """Prove the table of a collective, its closed form and its rounds."""
    workers = plan.workers
    steps = prove(collective, workers)
    says = [
        f"{type(collective).__name__} of {workers} workers: {steps} steps over {collective.segments(workers)} segments",
        NO_CIRCLE,
        "nothing is overwritten while a worker may still be reading it",
        f"every worker ends with one contribution of each of the {workers}",
    ]
    equal = all(
        math.isclose(
            collective.seconds(workers, 1e6, *link), table_seconds(collective, workers, 1e6, *link), rel_tol=1e-12
        )
        for link in LINKS
    )
    says.append(f"its closed form {'is' if equal else 'IS NOT'} the table's time, over {len(LINKS)} kinds of link")
    rounds, program = has_its_rounds(collective, workers), _program(plan)
    says += [_rounds(rounds), *program.says, *more]
    figures = {"workers": workers, "steps": steps, **program.figures}
    return Proved(str(plan), equal and rounds and bool(program.holds), says, figures)


def _program(plan: Plan) -> Proved:
    """Explore the program of workers that keep step."""
    assert isinstance(plan.method, Synchronous)
    workers = min(plan.workers, MOST_WORKERS)
    updates = UPDATES if plan.method.coordinator is None else 1  # which takes many exchanges
    found = explore_program(plan.method, workers, updates)
    world = f"{_many(workers, 'worker')}, {_many(updates, 'update')}, a death at any point"
    says = [f"the program of its workers in every interleaving of a small world ({world}): {found.states:,} states"]
    if found.story is not None:
        says += found.story.splitlines()
    else:
        says.append("no worker waits but for a dead one, and no step is made of half an exchange")
    return Proved(str(plan), found.good, says, {"states": found.states, "moves": found.moves})


def _rounds(equal: bool) -> str:
    return f"its rounds {'are' if equal else 'ARE NOT'} the table's: who waits for whom, and for how many bytes"


def _rehearsed(coordinator: Coordinator) -> list[str]:
    updates, loss = rehearse(coordinator, REHEARSED)
    commands = sum(map(len, updates))
    return [
        f"rehearsed for {REHEARSED} updates on a small quadratic: {commands} commands brought its loss to {loss:.0e}",
        "in the rehearsal no vector was read before it was written, and none was used that is not named",
        "that every worker decides the same needs no proof: all run one coordinator on the bits of one sum",
    ]


def _mixing(plan: Plan, collective: Neighbours) -> Proved:
    """Prove the table of neighbours that mix."""
    workers = plan.workers
    steps = prove_mixing(collective, workers)
    says = [
        f"{type(collective).__name__} of {workers} workers: {steps} exchanges of the whole vector",
        NO_CIRCLE,
        "every worker mixes what it was sent, by weights that leave the mean of all where it is",
        "what one worker says reaches every other in the end",
        _rounds(rounds := has_its_rounds(collective, workers)),
        *(program := _program(plan)).says,
    ]
    figures = {"workers": workers, "steps": steps, **program.figures}
    return Proved(str(plan), rounds and bool(program.holds), says, figures)


class _WatchedGate:
    """A gate that counts how often it was closed."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.closed = gate, 0
        self.ints: Callable[[int], int] = gate.ints
        self.init, self.finished, self.died, self.joined = gate.init, gate.finished, gate.died, gate.joined

    def open(self, state: State, at: int, worker: int) -> bool:
        answer = self.gate.open(state, at, worker)
        self.closed += not answer
        return answer


def _gate(plan: Plan, server: Server) -> Proved:
    """Explore a small world under the gate of a server."""
    gathers = _gathered(plan)
    workers, shards = min(plan.workers, MOST_WORKERS), min(plan.shards, MOST_SHARDS)
    if gathers:  # all the backups, and one more at least
        workers = min(plan.workers, max(MOST_WORKERS, plan.workers - gathers + 1))
        plan = make_again(plan, workers)
        assert isinstance(plan.method, Server)
        server, gathers = plan.method, _gathered(plan)
    batches, deaths, watched = 2 * gathers or BATCHES, int(workers > 1), _WatchedGate(server.gate)
    found = explore(workers, batches, shards, deaths, watched, gathers=gathers)
    world = f"{workers} workers, {batches} batches, {shards} shard{'s' * (shards > 1)}, up to {deaths} death"
    figures = {"workers": workers, "states": found.states, "moves": found.moves, "closed": watched.closed}
    says = [f"every interleaving of a small world ({world}): {found.states:,} states, {found.moves:,} moves"]
    if found.story is not None:
        return Proved(str(plan), False, [*says, *found.story.splitlines()], figures)
    says += ["no worker waits for ever, whichever dies at any point", "no batch is with two living workers at once"]
    closed = f"was found closed {watched.closed:,} times" if watched.closed else "never closed in so small a world"
    return Proved(str(plan), True, [*says, *_kept_by(server, gathers), f"the gate {closed}"], figures)


def _gathered(plan: Plan) -> int:
    """Return the number of gradients that a shard gathers for a version; 0 if it applies each push at once."""
    return plan.division.shares if plan.traits.gathers else 0


def _kept_by(server: Server, gathers: int) -> list[str]:
    """Return what the shards of a server guarantee, whichever worker dies."""
    if not server.traits.versioned:
        return ["without locks there is no more to prove: the result of two writers at once is not determined"]
    once = "every shard takes every batch exactly once, also that of a worker that died between two pushes"
    if gathers:
        made = f"every version is made of {_many(gathers, 'gradient')}, computed from the version before"
        return [made, once]
    return [once, "the staleness of all pushes sums to what their order says"]
