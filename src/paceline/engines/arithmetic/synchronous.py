"""All workers of a plan without a server in one process: alone, all-reduce, local steps, coordinated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.core.agenda import Chunk
from paceline.core.cluster.epochs import Epochs
from paceline.core.cluster.shares import fitting
from paceline.core.collectives import Collective
from paceline.core.rules import Arrival
from paceline.core.rules.plain import Plain
from paceline.engines.arithmetic.coded import CodedPayloads
from paceline.engines.arithmetic.common import Snapshots, make_learner
from paceline.engines.arithmetic.execute import execute
from paceline.engines.setup import Setup
from paceline.gradients.learner import Learner
from paceline.gradients.payload import GradientSum, Payload
from paceline.parameters.fragments import Fragments
from paceline.parameters.replicas import AveragingReplica, mean_of, weighted_sum
from paceline.parameters.vector_slice import CommandExecutor, VectorSlice
from paceline.plans.methods.all_reduce import AllReduce
from paceline.plans.methods.alone import Alone
from paceline.plans.methods.coordinated import Coordinated
from paceline.plans.methods.local_steps import Gossip, LocalSteps


class SharedParameters:
    """The arithmetic of `Alone` and `AllReduce`, whose workers hold the same parameters."""

    def __init__(self, setup: Setup, method: Alone | AllReduce, epochs: Epochs) -> None:
        self.epochs = epochs
        self.setup, self.snapshots = setup, Snapshots(setup, self.values)
        self.learner, optimizer = make_learner(setup)
        self.store = self.learner.replica.local_store(optimizer, Plain())
        collective = method.collective
        self.payloads = None if collective is None else payloads_of(setup, collective, self.learner)

    def compute(self, worker: int, chunks: list[Chunk]) -> GradientSum:
        """Compute one worker's share of an update; all shares start from the same buffers."""
        start = [b.clone() for b in self.learner.replica.moving]
        computed = self.learner.compute(chunks)
        for buffer, value in zip(self.learner.replica.moving, start, strict=True):
            buffer.copy_(value)
        return computed

    def apply(self, update: int, shares: list[GradientSum]) -> None:
        """Add the shares of all ranks up, then let the optimizer apply the whole batch's gradient."""
        whole = shares[0]
        if self.payloads is not None:
            whole = self.payloads.sum(update, self.epochs.shares.ranks(update), shares)
        Plain().update(self.store, Arrival(self.learner.settle(whole)))
        self.store.schedule.hear(whole.mean)

    def values(self) -> list[Tensor]:
        return [value.clone() for value in self.learner.replica.values()]

    def finite(self) -> bool:
        return all(bool(p.isfinite().all()) for p in self.learner.replica.parameters)


class SteppedReplicas:
    """The arithmetic of `LocalSteps` and `Gossip`: each worker steps its own replica, and replicas are averaged."""

    def __init__(self, setup: Setup, method: LocalSteps | Gossip, epochs: Epochs) -> None:
        self.setup, self.snapshots, self.epochs = setup, Snapshots(setup, self.values), epochs
        #: The number of exchanges so far.
        self.exchanges = 0
        #: The means of the newest exchange, by rank.
        self.arrived: dict[int, GradientSum] = {}
        self.averaging, self.streaming, self.mixes = method.averaging, method.streaming, isinstance(method, Gossip)
        fragments = Fragments.of(setup.layout, setup.plan.fragments)
        self.replicas = list[AveragingReplica]()
        for _ in range(setup.plan.workers):
            learner, optimizer = make_learner(setup)
            store = learner.replica.local_store(optimizer, self.averaging)
            self.replicas.append(AveragingReplica(learner, store, self.averaging, fragments))
        self.payloads = payloads_of(setup, method.collective, self.replicas[0].learner)

    def compute(self, worker: int, chunks: list[Chunk]) -> GradientSum:
        return self.replicas[worker].learner.compute(chunks)

    def apply(self, update: int, shares: list[GradientSum]) -> None:
        """Step the replica of every rank that shares out the update and, if it is due, average them."""
        due = self.streaming.after(update, self.setup.agenda.updates)
        if self.averaging.mixes_first:
            self._average(due)
        for rank, share in zip(self.epochs.shares.ranks(update), shares, strict=True):
            self.replicas[rank].step(share)
        if not self.averaging.mixes_first:
            if self.streaming.lands(update, self.setup.agenda.updates):
                self._land(late=True)
            self._average(due, overlaps=self.streaming.overlaps(update, self.setup.agenda.updates))

    def _average(self, due: int, overlaps: bool = False) -> None:
        """Make so many exchanges; one that overlaps is applied later."""
        for _ in range(due):
            number, self.exchanges = self.exchanges, self.exchanges + 1
            ranks = self.epochs.exchanging(number)
            means = self._means(number, ranks, [self.replicas[rank].contribution(number, rank) for rank in ranks])
            self.arrived = dict(zip(ranks, means, strict=True))
            if not overlaps:
                self._land()

    def _land(self, late: bool = False) -> None:
        """Apply the newest exchange."""
        number = self.exchanges - 1
        for rank, mean in self.arrived.items():
            # A rank that lacked a sum of all when the group changed was given it; between neighbours it was left out.
            if not self.mixes or self.epochs.made(rank, number):
                self.replicas[rank].apply_mean(number, mean, late)

    def _means(self, number: int, ranks: Sequence[int], shares: list[GradientSum]) -> list[GradientSum]:
        """Return for each of these ranks the mean over all of them, or over its neighbours and itself."""
        if self.mixes:
            assert isinstance(self.payloads, Payloads)
            return self.payloads.mixtures(shares)
        total = self.payloads.sum(number, ranks, shares)
        return [total.scaled(1.0 / total.weight)] * len(ranks)

    def values(self) -> list[Tensor]:
        return mean_of([self.replicas[rank].result() for rank in self.epochs.last[: self.setup.plan.results]])

    def finite(self) -> bool:
        return all(bool(v.isfinite().all()) for replica in self.replicas for v in replica.store.values)


#: Called after each further exchange of an update: (update, bytes, each worker's loss if it computed for it).
OnExchange = Callable[[int, int, list[float]], None]


class CoordinatedWorkers:
    """A coordinator commands the workers, each of which has a replica and a slice of every vector.

    `apply` is given the gradients of an update's first evaluation, as under any synchronous plan; `on_exchange` is
    called for what follows.
    """

    def __init__(self, setup: Setup, method: Coordinated, epochs: Epochs) -> None:
        del epochs  # a coordinator cannot continue without one of its workers
        self.setup, self.snapshots = setup, Snapshots(setup, self.values)
        coordinator, workers = method.coordinator, setup.plan.workers
        self.slices = [
            VectorSlice(make_learner(setup)[0], setup.layout, coordinator, worker, workers) for worker in range(workers)
        ]
        self.executor = CommandExecutor(coordinator, self.slices, self)
        self.payloads = Payloads(setup, method.collective)
        self.numbers = [torch.zeros(1, dtype=torch.float64) for _ in self.slices]
        self.doing, self.first = 0, list[GradientSum]()
        self.on_exchange: OnExchange = lambda update, size, losses: None

    def compute(self, worker: int, chunks: list[Chunk]) -> GradientSum:
        self.slices[worker].rewind()
        return self.slices[worker].learner.compute(chunks)

    def apply(self, update: int, shares: list[GradientSum]) -> None:
        self.doing, self.first = update, shares
        self.executor.update()

    def evaluate(self) -> float:
        """Add up the gradients of the first evaluation, or compute new ones."""
        shares, self.first = self.first, []
        if not shares:
            agenda, workers = self.setup.agenda, range(len(self.slices))
            shares = [self.compute(worker, agenda.mine(self.doing, worker)) for worker in workers]
            self.on_exchange(self.doing, self.payloads.flats[0].nbytes, [share.mean for share in shares])
        together = self.payloads.sum(self.doing, range(len(shares)), shares)
        for mine in self.slices:
            mine.settle(together)
        return together.mean

    def total(self, parts: list[float]) -> float:
        for number, part in zip(self.numbers, parts, strict=True):
            number[0] = part
        self._exchange(self.numbers)
        return float(self.numbers[0])

    def share(self) -> None:
        for mine, flat in zip(self.slices, self.payloads.flats, strict=True):
            mine.offer(flat)
        self._exchange(self.payloads.flats)
        for mine, flat in zip(self.slices, self.payloads.flats, strict=True):
            mine.take(flat)

    def _exchange(self, flats: list[Tensor]) -> None:
        execute(self.payloads.collective, flats)
        self.on_exchange(self.doing, flats[0].nbytes, [])

    def values(self) -> list[Tensor]:
        return [value.clone() for value in (*self.slices[0].parameters, *self.slices[0].buffers)]

    def finite(self) -> bool:
        return all(bool(p.isfinite().all()) for p in self.slices[0].parameters)


SynchronousArithmetic = SharedParameters | SteppedReplicas | CoordinatedWorkers

#: The arithmetic of each method without a server and without stages: called with the setup of a run, the method and the
#: groups of its workers.
ARITHMETIC: dict[type, Callable[[Setup, Any, Epochs], SynchronousArithmetic]] = {
    Alone: SharedParameters,
    AllReduce: SharedParameters,
    LocalSteps: SteppedReplicas,
    Gossip: SteppedReplicas,
    Coordinated: CoordinatedWorkers,
}


def synchronous(setup: Setup, epochs: Epochs | None = None) -> SynchronousArithmetic:
    """Make the arithmetic of a method without a server and without stages, in these groups of its workers."""
    method = setup.plan.method
    return ARITHMETIC[type(method)](setup, method, epochs or Epochs(setup.plan.workers))


def payloads_of(setup: Setup, collective: Collective, learner: Learner) -> Payloads | CodedPayloads:
    """Make what sums the workers' gradients or steps: as messages, where the plan has a codec."""
    if setup.plan.codec is None:
        return Payloads(setup, collective)
    return CodedPayloads(setup, collective, learner)


class Payloads:
    """Every worker's payload, and the collective that combines them."""

    def __init__(self, setup: Setup, collective: Collective) -> None:
        self.layout, self.collective = setup.layout, collective
        self.fragments = Fragments.of(setup.layout, setup.plan.fragments)
        #: The payloads of each fragment, one per worker.
        self.each = [
            [
                Payload(layout, torch.zeros(Payload.length(layout), dtype=layout.dtype))
                for _ in range(setup.plan.workers)
            ]
            for layout in self.fragments.each
        ]

    @property
    def sizes(self) -> list[int]:
        """The bytes of each fragment's payload."""
        return [payloads[0].flat.nbytes for payloads in self.each]

    @property
    def flats(self) -> list[Tensor]:
        """The vectors of all workers, where all parameters are exchanged at once."""
        return [payload.flat for payload in self.each[0]]

    def sum(self, number: int, ranks: Sequence[int], shares: list[GradientSum]) -> GradientSum:
        """Return the sum of the shares of these ranks in the exchange of this number."""
        payloads = self.fragments.of_number(number, self.each)[: len(shares)]
        self._write(payloads, shares)
        execute(fitting(self.collective, len(shares)), [payload.flat for payload in payloads])
        return payloads[0].read(sum(share.samples for share in shares))

    def mixtures(self, shares: list[GradientSum]) -> list[GradientSum]:
        """Return for each worker the mean over its neighbours and itself."""
        self._write(self.each[0], shares)
        found, flats = [], self.flats
        for worker, share in enumerate(shares):
            mixture = torch.zeros_like(flats[worker])
            payload = Payload(self.layout, mixture)
            weighted_sum(flats, self.collective.weights(worker, len(shares)), mixture)  # type: ignore[attr-defined]
            found.append(payload.read(share.samples))
        return found

    def _write(self, payloads: Sequence[Payload], shares: list[GradientSum]) -> None:
        for payload, share in zip(payloads, shares, strict=False):  # a group may have lost workers
            payload.write(share)
