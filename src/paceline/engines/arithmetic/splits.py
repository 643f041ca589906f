"""All workers of split layers in one process: their walks go forward together, from movement to movement.

Replicas along the data axis hold the same, so one of them computes the chunks of all.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paceline.core.agenda import Chunk
from paceline.core.collectives import Collective
from paceline.core.rules import Arrival
from paceline.core.rules.plain import Plain
from paceline.data.source import Reader
from paceline.engines.arithmetic.common import Snapshots
from paceline.engines.arithmetic.synchronous import execute
from paceline.engines.setup import Setup
from paceline.errors import NotFinite
from paceline.gradients.learner import Learner
from paceline.gradients.payload import GradientSum, Payload
from paceline.parameters.layout import lay_out, trainable
from paceline.parameters.store import LocalStore
from paceline.plans.methods.split_layers import DATA, INSIDE, SplitLayers
from paceline.splits.gradients import SplitReplica
from paceline.splits.planning import run_together, whole_of
from paceline.splits.slicing import sliced


class SplitArithmetic:
    """The parts of one replica, and what they compute together."""

    def __init__(self, setup: Setup, method: SplitLayers) -> None:
        self.setup, self.snapshots = setup, Snapshots(setup, self.values)
        blueprint, job = setup.split, setup.job
        assert blueprint is not None
        self.blueprint = blueprint
        mesh = method.mesh(setup.plan.workers)
        self.data, places = mesh.size(DATA), mesh.size(INSIDE)
        self.parts = [
            SplitReplica(job, sliced(setup.module, blueprint.program, place), blueprint, place)
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

    def compute(self, replica: int, update: int) -> list[GradientSum]:
        """Compute one replica's chunks of an update; return what each place has of the gradient."""
        chunks = self.setup.agenda.mine(update, replica)
        start = [[b.clone() for b in part.replica.moving] for part in self.parts]
        loss = total = 0.0
        buffers: list[list[Tensor]] = [[] for _ in self.parts]
        for chunk in chunks:
            weight, mean = self._chunk(chunk, start)
            loss += weight * mean
            total += weight
            for place, part in enumerate(self.parts):
                dtype = part.replica.parameters[0].dtype
                mine = [b.to(dtype, copy=True).mul_(weight) for b in part.replica.moving]
                before = buffers[place]
                buffers[place] = [a.add_(b) for a, b in zip(before, mine, strict=True)] if before else mine
        for place, part in enumerate(self.parts):
            _put_back(part, start[place])
        if self.setup.job.on_nan == "stop" and not math.isfinite(loss):
            samples = [n for c in chunks for n in self.reader.order.indices(c).tolist()]
            raise NotFinite(loss, update, samples)
        samples_seen = sum(chunk.samples for chunk in chunks)
        return [
            GradientSum(part.replica.take(), buffers[place], loss, total, samples_seen)
            for place, part in enumerate(self.parts)
        ]

    def _chunk(self, chunk: Chunk, start: list[list[Tensor]]) -> tuple[float, float]:
        """Compute a chunk; return its weight and its mean loss."""
        walks, weight = [], 1.0
        for place, part in enumerate(self.parts):
            _put_back(part, start[place])
            batch = self.reader.batch(chunk)
            weight = part.replica.chunk_weight(chunk, batch)
            walks.append(part.walk(chunk, batch, weight))
        return weight, run_together(walks, self.draws)

    def apply(self, update: int, shares: list[list[GradientSum]]) -> None:
        """Add the gradients of all replicas up, and let each place step its own part."""
        for place, store in enumerate(self.stores):
            whole = self.sums[place].add([share[place] for share in shares])
            Plain().update(store, Arrival(self.learners[place].settle(whole)))

    def values(self) -> list[Tensor]:
        names = [*trainable(self.setup.module), *self.blueprint.moving]
        found = [part.replica.values() for part in self.parts]
        return [whole_of(self.blueprint, name, [mine[n] for mine in found]) for n, name in enumerate(names)]

    def finite(self) -> bool:
        return all(bool(p.isfinite().all()) for part in self.parts for p in part.replica.parameters)


class ReplicaSums:
    """Sums what one place of each replica has of the gradient."""

    def __init__(self, part: SplitReplica, collective: Collective, replicas: int) -> None:
        self.collective = collective
        layout = lay_out(part.replica.module, 1, part.moving)
        flats = [torch.zeros(Payload.length(layout), dtype=layout.dtype) for _ in range(replicas)]
        self.flats, self.payloads = flats, [Payload(layout, flat) for flat in flats]

    def add(self, shares: list[GradientSum]) -> GradientSum:
        if len(shares) == 1:
            return shares[0]
        for payload, share in zip(self.payloads, shares, strict=True):
            payload.write(share)
        execute(self.collective, self.flats)
        return self.payloads[0].read(sum(share.samples for share in shares))


def _put_back(part: SplitReplica, values: list[Tensor]) -> None:
    for buffer, value in zip(part.replica.moving, values, strict=True):
        buffer.copy_(value)
