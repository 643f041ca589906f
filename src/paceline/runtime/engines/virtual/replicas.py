"""Replicas that are pipelines, with a server between them, in a virtual world: each is one worker of the server.

A replica computes a batch in the seconds of one worker, divided by the number of its workers and by how much of the
pipeline's time they are busy.
"""

from __future__ import annotations

import math
from dataclasses import replace

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.schedules.proof import ticks_of
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.plan import Plan
from paceline.runtime.engines.arithmetic.replicas import ReplicaArithmetic
from paceline.runtime.engines.virtual.rows import Numbers, Rows
from paceline.runtime.engines.virtual.server import run_server
from paceline.runtime.engines.virtual.world import World
from paceline.runtime.runs.trace import Kind


class _OfWorkers:
    """Rows of replicas, written as those of their workers: a push is that of the shard's own worker."""

    def __init__(self, rows: Rows, size: int) -> None:
        self.rows, self.size = rows, size

    def add(self, row: tuple[float, ...]) -> None:
        kind, replica, update, shard = row[:4]
        place = shard if kind in (Kind.APPLY, Kind.DROP) else self.size - 1 if kind == Kind.COMPUTE else 0
        self.rows.add((kind, replica * self.size + place, update, shard, *row[4:]))

    def add_all(self, kind: Kind, update: int, **columns: Numbers | float) -> None:
        raise NotImplementedError("a server has no row of all workers at once")


def run_replicas(
    plan: Plan, pipeline: Pipeline, agenda: Agenda, world: World, size: int, sums: ReplicaArithmetic | None, rows: Rows
) -> None:
    """Run a pipeline whose replicas push to a server and pull from it."""
    server, shards = pipeline.spread.server, pipeline.shards(plan.workers)
    assert server is not None
    _, bubble = ticks_of(pipeline.table(plan.workers, (pipeline.micro_batches,)))
    deaths: dict[int, float] = {}
    for worker, when in world.deaths.items():
        deaths[worker // shards] = min(deaths.get(worker // shards, math.inf), when)
    world = replace(world, compute=world.compute / shards / (1 - bubble), deaths=deaths, repairs={})
    method = replace(server, shards=shards)
    of_replicas = replace(plan, method=method, workers=pipeline.spread.data, codec=None)
    run_server(of_replicas, method, agenda, world, size, sums, _OfWorkers(rows, shards))
