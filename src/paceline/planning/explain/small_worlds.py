"""The workers of a plan in every order of a small world: 2 or 3 of them, 2 or 3 updates, a death at any point.

what workers are       what is explored
──────────────────     ──────────────────────────────────────────────────────────────────
in step                their program; with parts of layers, every movement of a small net
stages                 their program over the schedule's table, with replicas and what they share inside a stage
operators              every order in which messages can arrive
at a server            their program with desk, gate and shards
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from typing import Any, NamedTuple, cast

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.dataflow import example_graph
from paceline.algorithms.dataflow.proof import explore as explore_messages
from paceline.algorithms.exploration import Explored
from paceline.algorithms.schedules import FORWARD
from paceline.algorithms.schedules.explore import explore_stages
from paceline.algorithms.schedules.worker import Compute
from paceline.algorithms.server.explore import explore
from paceline.algorithms.server.explore_replicas import explore_replicas
from paceline.algorithms.server.gates import Gate
from paceline.algorithms.splits.derivation import Program, ProgramStep
from paceline.algorithms.splits.movements import movements_of_chunk, movements_of_update, moving
from paceline.algorithms.splits.recipes import example_program
from paceline.plans.methods.pipeline import LAYERS
from paceline.plans.methods.split_layers import DATA, INSIDE, SplitLayers
from paceline.plans.methods.views import Operators, Parts, Served, Stages
from paceline.plans.plan import Plan, make_again, program_of, server_of
from paceline.runtime.engines.explorer import explore_program

INSTANCES = 3  # trees of a world whose messages are walked in a second
MOST_WORKERS, BATCHES, MOST_SHARDS, UPDATES = 3, 3, 2, 3  # of a world that is walked whole in seconds
PARTED, MOST_PARTED = 2, 4  # updates and workers with parts of layers; an update is many movements


class SmallWorld(NamedTuple):
    """A small world of a plan, and what was found in it."""

    size: str
    explored: Explored


def walk_plan(plan: Plan) -> SmallWorld | None:
    """Walk a small world of a plan in every order; None where it has no program, or is as small as no world."""
    match plan.method.claim(plan.workers):
        case Served():
            return walk_served(plan)
        case Stages() as stages:
            return walk_stages(stages)
        case Operators() as operators:
            return walk_operators(plan, operators)
        case Parts() as parts:
            return walk_parts(plan, parts)
    return walk_in_step(plan) if plan.traits.traced else None  # PyTorch's own code yields no effects


def walk_in_step(plan: Plan) -> SmallWorld:
    """Walk workers that keep step, each with the whole model."""
    method, workers = program_of(plan), min(plan.workers, MOST_WORKERS)
    updates = UPDATES if method.coordinator is None else 1  # which takes many exchanges
    return SmallWorld(_size(workers, updates), explore_program(method, workers, updates))


def walk_parts(plan: Plan, parts: Parts) -> SmallWorld:
    """Walk workers with parts of layers, by the movements of a small net; in the second update some are idle."""
    method = cast(SplitLayers, plan.method)  # no other method claims parts
    data = min(method.data, 2)
    inside = min(parts.inside, MOST_PARTED // data)
    method, workers = replace(method, data=data), data * inside
    program = example_program(parts.recipe, inside, parts.stage)
    updates = 1 if parts.stage and data > 1 else PARTED  # groups go on apart, through dozens of movements each
    parted, mesh = method.division(workers, 1).parts, method.mesh(workers)
    agenda = Agenda(2 * parted + 1, 2 * parted, 1, parts=parted)
    chunks = {(w, u): len(method.chunks(mesh, agenda, u, w)) for w in range(workers) for u in range(updates)}
    lines = {count: list(movements_of_update(program, parts.stage, count)) for count in {*chunks.values()}}
    walk = explore_program(method, workers, updates, movements=lambda worker, update: lines[chunks[worker, update]])
    return SmallWorld(_size(workers, updates), walk)


def walk_stages(stages: Stages) -> SmallWorld | None:
    """Walk the workers of a small pipeline with this schedule, with replicas and shared stages if the plan has some."""
    schedule, mesh = stages.schedule, stages.mesh
    workers, data, inside = mesh.size(LAYERS), min(2, mesh.size(DATA)), min(2, mesh.size(INSIDE))
    together = 1 if stages.gate is not None else data
    alone = together == inside == 1
    depth = min(workers, 2) if inside > 1 else max(2, min(workers, MOST_WORKERS)) if alone else 2
    counts = (1,) * UPDATES if not schedule.span else (2, 2) if alone else (1, 1)
    if {*schedule.layout(depth).stage_to_worker} != {*range(depth)}:  # it says itself who holds what
        depth, counts = workers, (stages.micro_batches,) * schedule.span
    if depth > MOST_WORKERS:
        return None
    within = example_program(stages.recipe, inside) if inside > 1 else None
    if stages.gate is not None:
        batches, program = 2 if inside == 1 else 1, _moving(stages.leasing_program, within)
        walk = explore_replicas(program, schedule, data, depth, deaths=data - 1, batches=batches, inside=inside)
        replicas = f"{many(data, 'replica')} of {many(depth * inside, 'worker')}"
        return SmallWorld(f"{replicas}, {many(batches, 'batch', 'es')}", walk)
    walk = explore_stages(_moving(stages.program, within), schedule, together, depth, counts, inside=inside)
    size = _size(together * depth * inside, len(counts))
    return SmallWorld(f"{size} of {many(counts[0], 'micro-batch', 'es')}", walk)


def _moving(
    program: Callable[[Any], Generator[Any, Any, None]], within: Program | None
) -> Callable[[Any], Generator[Any, Any, None]]:
    """Return the program of workers that share the layers of a stage, with what they move between them."""
    if within is None:
        return program
    steps = list(movements_of_chunk(within))
    back = [step for step in steps if step.back or step.again]
    forward = [step for step in steps if step not in back]

    def movements(effect: Any) -> Iterable[ProgramStep]:
        if not isinstance(effect, Compute):
            return ()
        return forward if effect.work.what == FORWARD else back

    return lambda client: moving(program(client), movements)


def walk_operators(plan: Plan, operators: Operators) -> SmallWorld:
    """Walk every order in which the messages of operators can arrive."""
    workers, active = min(plan.workers, MOST_WORKERS), min(operators.active, INSTANCES - 1)
    every, program = min(operators.every, INSTANCES - 1), operators.program
    walk = explore_messages(example_graph, workers, INSTANCES, active, every, deaths=1, program=program)
    size = f"{many(workers, 'worker')}, {INSTANCES} trees, {active} under way, updates of {many(every, 'tree')}"
    return SmallWorld(size, walk)


def walk_served(plan: Plan, gate: Gate | None = None) -> SmallWorld:
    """Walk workers at a desk and shards, under the gate of the plan with few workers, or this one."""
    plan = with_few_workers(plan)
    workers, shards, gathers = min(plan.workers, MOST_WORKERS), min(plan.shards, MOST_SHARDS), gathered(plan)
    batches, deaths = 2 * gathers or BATCHES, int(workers > 1)
    walk = explore(workers, batches, shards, deaths, gate or server_of(plan).gate, gathers=gathers)
    size = f"{many(workers, 'worker')}, {many(batches, 'batch', 'es')}, {many(shards, 'shard')}"
    return SmallWorld(size, walk)


def with_few_workers(plan: Plan) -> Plan:
    """Return a plan that gathers gradients with fewer workers: all its backups, and one more at least."""
    if not (gathers := gathered(plan)):
        return plan
    return make_again(plan, min(plan.workers, max(MOST_WORKERS, plan.workers - gathers + 1)))


def gathered(plan: Plan) -> int:
    """Return the number of gradients that a shard gathers for a version; 0 if it applies each push at once."""
    return plan.division.shares if plan.traits.gathers else 0


def many(count: int, what: str, ending: str = "s") -> str:
    return f"{count} {what}{ending * (count != 1)}"


def _size(workers: int, updates: int) -> str:
    return f"{many(workers, 'worker')}, {many(updates, 'update')}"
