"""Pipelines: the table of the schedule on the clock, with the seconds of each stage and message.

The model's modules in the order of their first forward call are the pieces; `algorithms.splits.by_depth` balances them
into stages, as the real cut does. Each micro-batch is computed alone, so the figures are those of a micro-batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass

from paceline.algorithms.schedules import BACKWARD, FORWARD, INPUTS, WEIGHTS, Table
from paceline.algorithms.schedules.clock import Place, Walk, clocked
from paceline.algorithms.schedules.worker import Agree, Compute, Effect, Send, Update
from paceline.algorithms.splits.by_depth import balanced
from paceline.planning.planner.costs import Costs, single
from paceline.plans.methods.prediction import CROWDED_MESSAGE, Estimate, NotPredicted, Terms
from paceline.plans.plan import Plan

ERROR = 0.35  # of a stage's seconds: where the model is cut is not known before it is traced


@dataclass(frozen=True)
class Stage:
    """One stage of the model, in seconds of a micro-batch, and the bytes that it sends on."""

    forward: float
    backward: float
    made: float


def on_clock(
    costs: Costs, plan: Plan, table: Table, samples: int, micro: int, updates: int, again: Collection[int]
) -> Estimate:
    """Put so many updates of a table on the clock, each of `micro` micro-batches of so many samples."""
    workers, count = plan.workers, table.stages
    cores, turns = costs.card.cores, max(1.0, workers * plan.threads / costs.card.cores)
    # Stages that wait leave their cores to others.
    stages = cut(costs, samples, count, min(workers, cores), plan.threads)
    # Without a measurement a message is one step of a meeting, and each piece of work has an update's Python.
    measured = costs.card.exchange("stage", workers)
    piece = measured.latency if measured else costs.between("meeting", workers)
    kind = "message" if costs.card.exchange("message", workers) else "meeting"
    message = [single(costs, kind, workers, stage.made).seconds for stage in stages]
    if measured:
        crowd = 0.0
        if min(workers, micro) > cores:  # a message wakes its receiver, which costs more where workers outnumber cores
            few, many = (single(costs, "meeting", count, 0.0).seconds for count in (measured.workers, workers))
            crowd = CROWDED_MESSAGE * max(0.0, many - few)
        message = [crowd + stage.made / measured.bandwidth for stage in stages]
    update = costs.update(min(workers, cores), plan.threads).seconds / count

    def lasts(place: Place, effect: Effect) -> float:
        match effect:
            case Send(channel):
                return message[min(channel)]
            case Agree():
                return piece
            case Update():
                return update
            case Compute(work):
                stage = stages[work.stage]
                half = stage.backward / 2
                share = {FORWARD: stage.forward, BACKWARD: stage.backward, INPUTS: half, WEIGHTS: half}
                more = stage.forward if work.what in (BACKWARD, INPUTS) and work.stage in again else 0.0
                return share[work.what] + more + piece
        return 0.0

    computed, updated, end = 0.0, 0.0, 0.0
    for timed in clocked(Walk.of(table), lasts):
        end = max(end, timed.end)
        updated += (timed.end - timed.start) * isinstance(timed.effect, Update)
        computed += (timed.end - timed.start) * isinstance(timed.effect, Compute)
    each, compute = max(end, (computed + updated) / workers * turns) / updates, computed / workers / updates
    wait = max(0.0, each - compute - updated / workers / updates)
    sent = sum(2 * stage.made for stage in stages[:-1]) * micro / workers
    return Estimate(Terms(compute, updated / workers / updates, 0.0, wait), ERROR, ERROR, sent)


def cut(costs: Costs, samples: int, count: int, workers: int, threads: int) -> list[Stage]:
    """Cut the model's modules into so many stages that the slowest is as fast as possible."""
    compute = costs.compute(samples, workers, threads).seconds
    layers = [each for name, each in costs.layers(samples, workers, threads).items() if name and each.forward]
    total = sum(each.forward + each.backward for each in layers) or 1.0
    pieces = [(each.forward * compute / total, each.backward * compute / total, each.made) for each in layers]
    if len(pieces) < count:
        raise NotPredicted(f"the model has {len(pieces)} modules in a row, and the plan wants {count} stages")
    places = balanced([forward + backward for forward, backward, _ in pieces], count, [0.0] * len(pieces))
    bounds = [0, *places, len(pieces)]
    return [
        Stage(sum(p[0] for p in part), sum(p[1] for p in part), part[-1][2])
        for part in (pieces[low:high] for low, high in itertools.pairwise(bounds))
    ]
