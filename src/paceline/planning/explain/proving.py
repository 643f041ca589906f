"""Proofs about a plan before it runs, which `paceline prove` prints.

a collective    its table: no worker waits for ever, no segment is read while it is changed, the sum is complete
a pipeline      its timetable: messages, versions of weights, updates, within the bounds of the real buffers; and its
                workers in every interleaving of a small world, with a death at every point
split layers    their program: movements meet, summands are summed once, gradients come back once; and their workers
                in every interleaving of a small world, with a death at every point
operators       every order in which the messages of a small world can arrive, with a death at every point
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

from paceline.algorithms.cluster.explore import Machines, SmallCluster
from paceline.algorithms.cluster.explore import explore as explore_cluster
from paceline.algorithms.collectives import Collective, table_seconds
from paceline.algorithms.collectives.canonical import Canonical
from paceline.algorithms.collectives.proof import has_its_rounds, prove, prove_mixing
from paceline.algorithms.collectives.whole_vectors import Neighbours
from paceline.algorithms.coordinators import Coordinator, rehearse
from paceline.algorithms.schedules.proof import prove_table
from paceline.algorithms.server.gates import Gate
from paceline.algorithms.splits.proof import prove_program
from paceline.algorithms.splits.recipes import example_program
from paceline.errors import PlanError
from paceline.planning.explain.small_worlds import (
    SmallWorld,
    gathered,
    many,
    walk_in_step,
    walk_operators,
    walk_parts,
    walk_served,
    walk_stages,
    with_few_workers,
)
from paceline.plans.methods import Server
from paceline.plans.methods.pipeline import LAYERS
from paceline.plans.methods.split_layers import DATA, INSIDE
from paceline.plans.methods.views import Mixing, Operators, Parts, Served, Stages, Summing, Words
from paceline.plans.plan import Plan, server_of
from paceline.runtime.engines.virtual.network import History, Scenario, first_fault

if TYPE_CHECKING:
    from paceline.algorithms.server.messages import State


LINKS = ((1e-5, 1e9), (1e-3, 1e9), (1e-7, 1e8), (0.0, 1e9))  # latency in seconds, bytes per second
NO_CIRCLE = "no waiting circle: every offer has its taker in the same step"
REHEARSED = 8  # updates
MOST_PROVED = 128  # workers of a table, which take seconds
ENDLESS = 50  # updates of a pipeline that is never flushed: what follows repeats itself


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
    claim = plan.method.claim(plan.workers)
    if isinstance(claim, Served):
        return _gate(plan)
    if plan.workers > MOST_PROVED:
        raise PlanError(
            f"a table of {plan.workers} workers is not proved: the time grows with the cube of their number. Prove at "
            f"most {MOST_PROVED}, as the table is made in the same way for any number"
        )
    match claim:
        case Summing() as summing:
            return _collective(plan, summing)
        case Mixing(graph):
            return _mixing(plan, graph)
        case Stages() as stages:
            return _pipeline(plan, stages)
        case Parts() as parts:
            return _split(plan, parts)
        case Operators() as operators:
            return _dataflow(plan, operators)
        case Words(text):
            return Proved(str(plan), None, [text])


def _pipeline(plan: Plan, stages: Stages) -> Proved:
    """Prove the timetable of a pipeline."""
    micro_batches = stages.micro_batches
    counts = (micro_batches,) * (stages.span or ENDLESS)
    table = stages.table(counts)
    try:
        proof = prove_table(table)
    except PlanError as wrong:
        return Proved(str(plan), False, str(wrong).splitlines())
    updates = f"{len(counts)} updates" if len(counts) > 1 else "an update"
    says = [
        f"{many(table.stages, 'stage')} at {many(table.workers, 'worker')}: {proof.works} pieces of work and "
        f"{many(proof.messages, 'message')} make {updates} of {micro_batches} "
        f"micro-batch{'es' * (micro_batches > 1)}{' each' * (len(counts) > 1)}",
        f"no circle of waits, with {table.slots} slots for messages between two stages each way; none is left unread",
        "every micro-batch goes once forward and once backward through every stage, on what its neighbours made of it",
        "no version of weights is read before it is made or after it is dropped; forward and backward read "
        + ("as the prediction wants: the newest" if table.predicts else "the same one"),
        "every gradient is in exactly one update, and all stages make the same updates",
        f"in ticks: {proof.ticks}, of which {proof.bubble:.1%} idle",
        f"activations kept, in micro-batches per stage: {', '.join(map(str, proof.in_flight))}",
        f"versions of weights held, per stage: {', '.join(map(str, proof.versions))}",
        f"staleness: at most {proof.staleness}",
    ]
    world = walk_stages(stages)
    if world is None:
        says.append("its workers are too many to be walked in every interleaving")
    else:
        says += _walked("its workers", world, "none computes from another message than its own")
    says += _on_mesh(stages)
    figures = {"workers": plan.workers, "stages": table.stages, "ticks": proof.ticks, "messages": proof.messages}
    more = {"staleness": proof.staleness, "bubble": proof.bubble}
    states = {} if world is None else {"states": world.explored.states}
    return Proved(str(plan), world is None or world.explored.good, says, {**figures, **more, **states})


def _walked(what: str, world: SmallWorld, promise: str) -> list[str]:
    """Say what a small world was, and what was found in it."""
    size, walk = f"{world.size}, a death at any point", world.explored
    says = [f"{what} in every interleaving of a small world ({size}): {walk.states:,} states"]
    if walk.story is not None:
        return says + walk.story.splitlines()
    return [*says, f"no worker waits but for a dead one, and {promise}"]


def _on_mesh(stages: Stages) -> list[str]:
    """Prove the other axes of a pipeline's mesh."""
    mesh = stages.mesh
    data, inside = mesh.size(DATA), mesh.size(INSIDE)
    says = [f"that table is run by each of {mesh.workers // mesh.size(LAYERS)} lines of a mesh of {mesh}"]
    if inside > 1:
        proof = prove_program(example_program(stages.recipe, inside))
        says += [
            f"the {inside} workers of a stage have one line of work, so they come to the same movements in the "
            f"same order: {many(proof.movements, 'movement')} for a small net; a model's are proved before it starts",
        ]
    if stages.gate is not None:
        says.append("a replica is one worker of desk and shards: no batch is with two at once, or twice in a shard")
    elif data > 1:
        prove(stages.collective, data)
        says.append(f"the all-reduce between {data} replicas is proved as {type(stages.collective).__name__}'s")
    return says if stages.wide else []


def _split(plan: Plan, parts: Parts) -> Proved:
    """Prove the program of a small net; that of a model is proved before it starts."""
    plan.method.prove(plan.workers)
    program = example_program(parts.recipe, parts.inside, parts.stage)
    try:
        proof = prove_program(program)
    except PlanError as wrong:
        return Proved(str(plan), False, str(wrong).splitlines())
    says = [
        f"a small net of {many(len({n.layer for n in program.nodes.values() if n.layer}), 'layer')}, over "
        f"{many(program.workers, 'worker')}: "
        f"{many(proof.operations, 'operation')}, {many(proof.movements, 'movement')} in "
        f"{many(proof.exchanges, 'exchange')}",
        "no circle of waits: all workers come to the same movements in the same order",
        "no summand is used as if it were the sum, and no part as if it were the whole",
        "every gradient comes back once, to the whole parameter or to its own part",
        f"numbers that each worker sends for a batch of 64: {', '.join(map(str, proof.numbers))}",
    ]
    if parts.replicas > 1:
        says.append(f"the all-reduce between {parts.replicas} replicas is proved as ring's")
    world = walk_parts(plan, parts)
    says += _walked("its workers", world, "all of a group come to the same movements")
    figures = {"workers": plan.workers, "movements": proof.movements, "exchanges": proof.exchanges}
    figures["states"] = world.explored.states
    says.append("the program of a model itself is proved before it starts")
    return Proved(str(plan), world.explored.good, says, figures)


def _dataflow(plan: Plan, operators: Operators) -> Proved:
    """Explore a small world of operators."""
    world = walk_operators(plan, operators)
    walk = world.explored
    says = [
        f"every order in which messages can arrive in a small world ({world.size}, a death at any point): "
        f"{walk.states:,} states, {walk.moves:,} moves"
    ]
    figures = {"workers": plan.workers, "states": walk.states, "moves": walk.moves}
    if walk.story is not None:
        return Proved(str(plan), False, [*says, *walk.story.splitlines()], figures)
    says += [
        "no worker waits for ever, and no message is left: a worker whose messages find no room continues with others",
        "never more than those under way; every call is computed once forward, then once backward",
        "every operator makes an update of each instance's gradients once, when all of them are there",
    ]
    return Proved(str(plan), True, says, figures)


def _collective(plan: Plan, summing: Summing) -> Proved:
    """Prove the table of a collective, its closed form and its rounds."""
    workers, collective = plan.workers, summing.collective
    steps = prove(collective, workers)
    says = [
        f"{type(collective).__name__} of {workers} workers: {steps} steps over {collective.segments(workers)} segments",
        NO_CIRCLE,
        "nothing is overwritten while a worker may still be reading it",
        _ends(collective, workers),
    ]
    equal = all(
        math.isclose(
            collective.seconds(workers, 1e6, *link), table_seconds(collective, workers, 1e6, *link), rel_tol=1e-12
        )
        for link in LINKS
    )
    says.append(f"its closed form {'is' if equal else 'IS NOT'} the table's time, over {len(LINKS)} kinds of link")
    rounds, world = has_its_rounds(collective, workers), walk_in_step(plan)
    rehearsed = [] if summing.coordinator is None else _rehearsed(summing.coordinator)
    says += [_rounds(rounds), *_in_step(world), *rehearsed, *summing.open]
    figures = {"workers": workers, "steps": steps, "states": world.explored.states, "moves": world.explored.moves}
    return Proved(str(plan), equal and rounds and world.explored.good, says, figures)


def _in_step(world: SmallWorld) -> list[str]:
    return _walked("the program of its workers", world, "no step is made of half an exchange")


def _ends(collective: Collective, workers: int) -> str:
    if isinstance(collective, Canonical):
        return (
            f"every addition is that of the two halves of a subtree of the {collective.chunks} chunks, and every "
            "worker ends with the sum of the whole tree"
        )
    return f"every worker ends with one contribution of each of the {workers}"


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
        *_in_step(world := walk_in_step(plan)),
    ]
    figures = {"workers": workers, "steps": steps, "states": world.explored.states, "moves": world.explored.moves}
    return Proved(str(plan), rounds and world.explored.good, says, figures)


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


def _gate(plan: Plan) -> Proved:
    """Explore a small world under the gate of a server."""
    small = with_few_workers(plan)
    watched = _WatchedGate(server_of(small).gate)
    world = walk_served(small, watched)
    walk = world.explored
    figures = {"workers": plan.workers, "states": walk.states, "moves": walk.moves, "closed": watched.closed}
    size = f"{world.size}, a death at any point"
    says = [f"every interleaving of a small world ({size}): {walk.states:,} states, {walk.moves:,} moves"]
    if walk.story is not None:
        return Proved(str(plan), False, [*says, *walk.story.splitlines()], figures)
    says += ["no worker waits for ever, whichever dies at any point", "no batch is with two living workers at once"]
    closed = f"was found closed {watched.closed:,} times" if watched.closed else "never closed in so small a world"
    return Proved(str(plan), True, [*says, *_kept_by(server_of(small), gathered(small)), f"the gate {closed}"], figures)


def _kept_by(server: Server, gathers: int) -> list[str]:
    """Return what the shards of a server guarantee, whichever worker dies."""
    if not server.traits.versioned:
        return ["without locks there is no more to prove: the result of two writers at once is not determined"]
    once = "every shard takes every batch exactly once, also that of a worker that died between two pushes"
    if gathers:
        versions = f"every version is made of {many(gathers, 'gradient')}, computed from the version before"
        return [versions, once]
    return [once, "the staleness of all pushes sums to what their order says"]


# The proof of a plan on several machines, which `paceline prove PLAN --machines N` prints.
# Every interleaving of a small cluster is walked, for each kind of fault; then histories of as many machines as were
# asked for are drawn from seeds, with many faults in each.

HISTORIES = 300
MOST_MACHINES = 64  # of a history, so that it takes seconds
#: What goes wrong in each of the small clusters, and with how many shards and backups.
FAULTS: dict[str, dict[str, Any]] = {
    "one message is lost and one comes twice": {"shards": 1, "losses": 1, "doubles": 1},
    "one process is killed": {"shards": 1, "kills": 1},
    "one process is taken for dead, and lives": {"shards": 1, "suspicions": 1},
    "one message is lost and one comes twice, without backups": {"backups": 0, "losses": 1, "doubles": 1},
}
PROMISES = [
    "each batch is applied exactly once to every shard",
    "no deadlock: from every state the workers finish when nothing more goes wrong",
    "with a backup, acknowledged pushes survive the failure of one server of a shard",
]


def prove_cluster(
    plan: Plan, machines: int, classes: Machines | None = None, say: Callable[[str], None] = lambda line: None
) -> Proved:
    """Prove that a plan keeps its promises on this number of machines, as far as worlds are small enough to walk.

    `say` is called with lines of text about the progress.
    """
    server, traits = plan.method.server, plan.traits
    if server is None or not (traits.optimizer_at_server and traits.whole_model) or traits.gathers:
        raise PlanError(
            f"--machines proves the protocol of plans with shard servers, and {plan} has none; "
            "use downpour, ssp or dc_asgd, or leave --machines out"
        )
    if not 2 <= machines <= MOST_MACHINES:
        raise PlanError(f"a proof on {machines} machines: give a number from 2 to {MOST_MACHINES}")
    says: list[str] = []
    worlds = moves = 0
    figures: dict[str, float] = {}
    for what, settings in FAULTS.items():
        say(f"walking every interleaving in which {what} ...")
        cluster = SmallCluster(gate=server.gate, **settings)
        exploration = explore_cluster(cluster, classes)
        worlds, moves = worlds + exploration.worlds, moves + exploration.moves
        figures = {"machines": machines, "states": worlds, "moves": moves}
        size = f"{many(cluster.shards, 'shard')} with {many(cluster.backups, 'backup')}"
        says.append(
            f"every interleaving of {cluster.workers} workers, {size} and {cluster.batches} batches, in which {what}: "
            f"{exploration.worlds:,} states, {exploration.moves:,} moves"
        )
        if exploration.story is not None:
            return Proved(str(plan), False, [*says, *exploration.story.splitlines()], figures)
    say(f"drawing {HISTORIES} histories of {machines} machines ...")
    drawn: dict[str, Any] = {"nodes": machines, "workers": machines, "gate": server.gate}
    fault = first_fault(range(HISTORIES), classes, **drawn)
    if fault is not None:
        history = History(Scenario.draw(fault[0], **drawn), classes, log=True)
        history.run()
        return Proved(str(plan), False, [*says, *history.log().splitlines()], figures)
    says.append(
        f"{HISTORIES} histories of {machines} machines from seeds, with up to 8 faults each on a network that loses, "
        "doubles, delays and cuts: no promise is broken"
    )
    limits = "in small clusters connections keep their order, and timers fire when no message is under way"
    return Proved(
        str(plan),
        True,
        [*says, *PROMISES, f"{limits} (docs/internals/contract.md)"],
        {**figures, "histories": HISTORIES},
    )
