"""All workers of split layers in one process: their walks go forward together, from movement to movement.

Replicas along the data axis hold the same, so one of them computes the chunks of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.collectives import Collective
from paceline.algorithms.rules.gradients import Plain
from paceline.errors import NotFinite
from paceline.plans.methods.program import OptimizerStep, Sum
from paceline.plans.methods.split_layers import DATA, INSIDE, SplitLayers
from paceline.runtime.engines.arithmetic.common import Snapshots, execute
from paceline.runtime.engines.setup import Setup
from paceline.training.data.source import Reader
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.payload import GradientSum, Payload
from paceline.training.parameters.layout import lay_out, trainable
from paceline.training.parameters.store import LocalStore
from paceline.training.splits.gradients import SplitReplica
from paceline.training.splits.planning import run_together
from paceline.training.splits.slicing import assembled, sliced
from paceline.training.splits.walk import Walk


class SplitArithmetic:
    """The parts of one replica, and what they compute together."""

    def __init__(self, setup: Setup, method: SplitLayers) -> None:
        self.setup, self.snapshots = setup, Snapshots(setup, self.values)
        blueprint, job = setup.split, setup.job
        assert blueprint is not None
        self.blueprint = blueprint
        self.method, self.mesh = method, method.mesh(setup.plan.workers)
        self.data, places = self.mesh.size(DATA), self.mesh.size(INSIDE)
        self.parts = [
            SplitReplica(job, sliced(setup.module, blueprint.stored, place), blueprint, place)
            for place in range(places)
        ]
        self.draws = any(model.traced.draws for model in self.parts[0].models.values())
        self.reader = Reader(setup.source, setup.order(), 0, lambda _: None)
        self.learners = [Learner(part.replica) for part in self.parts]
        self.stores = []
        for part in self.parts:
            optimizer = job.make_optimizer(part.replica.module, part.replica.parameters)
            self.stores.append(LocalStore(part.replica.parameters, optimizer, job.lr_scheduler, Plain()))
        self.sums = [ReplicaSums(part, method.collective, self.data) for part in self.parts]
        self.answers: dict[type, Callable[..., Any]] = {Sum: self.sum, OptimizerStep: self.step}

    def gradient(self, update: int, version: int, whole: bool = False, again: bool = False) -> list[GradientSum]:
        """Return what each place of each replica has of the gradient."""
        return [share for replica in range(self.data) for share in self.compute(replica, update)]

    def sum(self, update: int, gradients: list[GradientSum]) -> list[GradientSum]:
        """Add up what each place has in all replicas."""
        places = len(self.parts)
        return [each.add(gradients[place::places]) for place, each in enumerate(self.sums)]

    def step(self, update: int, version: int, gradients: list[GradientSum]) -> None:
        """Let each place step its own part."""
        for learner, store, gradient in zip(self.learners, self.stores, gradients, strict=True):
            store.step(learner.finalize(gradient))

    def compute(self, replica: int, update: int) -> list[GradientSum]:
        """Compute one replica's chunks of an update; return what each place has of the gradient."""
        group = self.mesh.groups(INSIDE)[replica]
        chunks = [self.method.chunks(self.mesh, self.setup.agenda, update, worker) for worker in group]
        sums = [PlaceSums(part, [b.clone() for b in part.replica.moving]) for part in self.parts]
        for together in zip(*chunks, strict=True):
            walks = [self._walk(place, chunk, sums[place]) for place, chunk in enumerate(together)]
            for each, loss in zip(sums, run_together(walks, self.draws), strict=True):
                each.add(loss)
        local_sums = []
        for each, mine in zip(sums, chunks, strict=True):
            if self.setup.job.on_nan == "stop" and not math.isfinite(each.loss):
                raise NotFinite(each.loss, update, [n for c in mine for n in self.reader.order.indices(c).tolist()])
            local_sums.append(each.taken(sum(chunk.samples for chunk in mine)))
        return run_together([part.finish(each) for part, each in zip(self.parts, local_sums, strict=True)])

    def _walk(self, place: int, chunk: Chunk, sums: PlaceSums) -> Walk:
        """Begin a chunk at one place."""
        part = self.parts[place]
        if not chunk.samples:
            sums.begin(0.0)
            return part.idle()
        batch = self.reader.batch(chunk)
        weight = part.replica.chunk_weight(chunk, batch)
        sums.begin(weight)
        return part.walk(chunk, batch, weight)

    def values(self) -> list[Tensor]:
        names = [*trainable(self.setup.module), *self.blueprint.moving]
        part_values = [part.replica.values() for part in self.parts]
        stored, shapes = self.blueprint.stored, self.blueprint.shapes
        return [
            assembled([mine[n] for mine in part_values], stored.get(name), shapes[name]) for n, name in enumerate(names)
        ]

    def finite(self) -> bool:
        return all(bool(p.isfinite().all()) for part in self.parts for p in part.replica.parameters)


class PlaceSums:
    """The sums over one place's chunks of an update. Each chunk begins from the same buffers, as under a learner."""

    def __init__(self, part: SplitReplica, start: list[Tensor]) -> None:
        self.part, self.start = part, start
        self.loss = self.total = self.weight = 0.0
        self.buffers: list[Tensor] = []

    def begin(self, weight: float) -> None:
        self.weight = weight
        _put_back(self.part, self.start)

    def add(self, loss: float) -> None:
        """Add a chunk's loss and what it made of the moving buffers."""
        replica, weight = self.part.replica, self.weight
        if not weight:
            return
        self.loss += weight * loss
        self.total += weight
        mine = [b.to(replica.parameters[0].dtype, copy=True).mul_(weight) for b in replica.moving]
        self.buffers = [a.add_(b) for a, b in zip(self.buffers, mine, strict=True)] if self.buffers else mine

    def taken(self, samples: int) -> GradientSum:
        """Return the sums, with the gradients, which now belong to the caller."""
        _put_back(self.part, self.start)
        return GradientSum(self.part.replica.take(), self.buffers, self.loss, self.total, samples)


class ReplicaSums:
    """Sums what one place of each replica has of the gradient."""

    def __init__(self, part: SplitReplica, collective: Collective, replicas: int) -> None:
        self.collective = collective
        layout = lay_out(part.replica.module, 1, part.moving)
        flats = [torch.zeros(Payload.length(layout), dtype=layout.dtype) for _ in range(replicas)]
        self.flats, self.payloads = flats, [Payload(layout, flat) for flat in flats]

    def add(self, shares: list[GradientSum]) -> GradientSum:
        for payload, share in zip(self.payloads, shares, strict=True):
            payload.write(share)
        execute(self.collective, self.flats)
        return self.payloads[0].read(sum(share.samples for share in shares))


def _put_back(part: SplitReplica, values: list[Tensor]) -> None:
    for buffer, value in zip(part.replica.moving, values, strict=True):
        buffer.copy_(value)
