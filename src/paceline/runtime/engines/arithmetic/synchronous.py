"""All workers of a plan without a server in one process: the answers, with numbers, to the effects of their program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.cluster.shares import Epochs, fitting, most_lanes
from paceline.algorithms.collectives import Collective
from paceline.algorithms.collectives.whole_vectors import Neighbours
from paceline.algorithms.coordinators import Algebra, Dot
from paceline.algorithms.rules.gradients import Plain
from paceline.plans.methods import Synchronous
from paceline.plans.methods.program import (
    BeginExchange,
    Change,
    EndExchange,
    Exchange,
    Finish,
    Gather,
    Gradient,
    Keep,
    Offer,
    OptimizerStep,
    Product,
    Recall,
    Sum,
)
from paceline.runtime.engines.arithmetic.common import CodedPayloads, Snapshots, execute, make_learner
from paceline.runtime.engines.setup import Setup
from paceline.training.data.source import TensorSource
from paceline.training.gradients.fused_replica import FusedNetwork
from paceline.training.gradients.learner import Learner, VectorSlice, stated_weight
from paceline.training.gradients.payload import GradientSum, Payload
from paceline.training.jobs.job import Job
from paceline.training.parameters.layout import Fragments, trainable
from paceline.training.parameters.replicas import AveragingReplica, SteppingReplica, mean_of, weighted_sum


class Numbers:
    """The gradients of all workers that are in step with one another, and what they exchange them by.

    On a cluster some workers may have died; `epochs` says between which ones each update was made.
    """

    products_take_time = True

    def __init__(
        self,
        setup: Setup,
        learners: Sequence[Learner],
        payloads: Payloads | CodedPayloads | None,
        epochs: Epochs,
        values: Callable[[], list[Tensor]],
    ) -> None:
        """`values` gives the trainable parameters, then the moving buffers."""
        #: One learner for all workers, or one for each.
        self.setup, self.learners, self.payloads, self.epochs = setup, learners, payloads, epochs
        self.snapshots = Snapshots(setup, values)
        self.answers: dict[type, Callable[..., Any]] = {Gradient: self.gradient, Sum: self.sum}

    @property
    def sizes(self) -> list[int]:
        """The bytes of each fragment's payload; none where nothing is exchanged."""
        return self.payloads.sizes if self.payloads is not None else []

    def messages(self, exchange: int) -> list[int]:
        """Return the bytes of each worker's message in an exchange, where they follow from its gradient."""
        codec, payloads = self.setup.plan.codec, self.payloads
        return payloads.bytes(exchange) if codec and codec.variable and isinstance(payloads, CodedPayloads) else []

    def gradient(self, update: int, version: int, whole: bool = False, again: bool = False) -> list[GradientSum]:
        """Compute the gradient of every rank's share of an update."""
        agenda, shares = self.setup.agenda, self.epochs.shares
        if whole:
            return [self._compute(0, agenda.whole(update))]
        parts = shares.parts_by_rank(update)
        return [self._compute(rank, agenda.share(update, mine)) for rank, mine in parts.items()]

    def losses(self, gradients: list[GradientSum]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the loss of every rank's share, and its weight among them."""
        weights = [stated_weight(self.setup.job, gradient) for gradient in gradients]
        return np.array([gradient.mean for gradient in gradients]), np.array(weights)

    def made(self, updates: int, seconds: float) -> None:
        """Keep a snapshot, if one is due after so many updates."""
        self.snapshots.keep(updates, seconds)

    def sum(self, update: int, gradients: list[GradientSum]) -> list[GradientSum]:
        """Add the gradients of all ranks up."""
        assert self.payloads is not None
        return [self.payloads.sum(update, self.epochs.shares.ranks(update), gradients)]

    def _compute(self, rank: int, chunks: list[Chunk]) -> GradientSum:
        """Compute one rank's share. Ranks with a common learner all start from the same buffers."""
        learner = self.learners[rank % len(self.learners)]
        start = [b.clone() for b in learner.replica.moving] if len(self.learners) == 1 else None
        gradient = learner.compute(chunks)
        if start is not None:
            learner.set_buffers(start)
        # The vectors of a learner are those of the rank that computes next, too.
        return replace(gradient, partial_sums=[vector.clone() for vector in gradient.partial_sums])


class SharedParameters(Numbers):
    """The parameters of `Alone` and `AllReduce`, which are the same on all workers."""

    def __init__(self, setup: Setup, method: Synchronous, epochs: Epochs) -> None:
        self.learner, optimizer = make_learner(setup)
        self.replica = SteppingReplica(self.learner, self.learner.replica.local_store(optimizer, Plain()))
        payloads = None if method.collective is None else payloads_of(setup, method.collective, self.learner)
        super().__init__(setup, [self.learner], payloads, epochs, self.values)
        self.answers |= {OptimizerStep: self.step}

    def step(self, update: int, version: int, gradients: list[GradientSum]) -> None:
        """Let the optimizer apply the whole batch's gradient."""
        (gradient,) = gradients
        self.replica.step(gradient)

    def values(self) -> list[Tensor]:
        return [value.clone() for value in self.replica.result()]

    def finite(self) -> bool:
        return all(bool(p.isfinite().all()) for p in self.learner.replica.parameters)


class AveragedReplicas(Numbers):
    """The replicas of `LocalSteps` and `Gossip`: each worker steps its own, and they are averaged."""

    def __init__(self, setup: Setup, method: Synchronous, epochs: Epochs) -> None:
        averaging, collective = method.averaging, method.collective
        assert averaging is not None
        assert collective is not None
        self.mixes = isinstance(collective, Neighbours)
        fragments = Fragments.of(setup.layout, setup.plan.fragments)
        self.replicas = list[AveragingReplica]()
        for _ in range(setup.plan.workers):
            learner, optimizer = make_learner(setup)
            store = learner.replica.local_store(optimizer, averaging)
            self.replicas.append(AveragingReplica(learner, store, averaging, fragments))
        learners = [replica.learner for replica in self.replicas]
        super().__init__(setup, learners, payloads_of(setup, collective, learners[0]), epochs, self.values)
        #: The means of the exchange under way, by rank.
        self.means: dict[int, GradientSum] = {}
        self.answers |= {
            OptimizerStep: self.step,
            Offer: lambda exchange: None,
            Exchange: self.exchange,
            BeginExchange: self.begin_exchange,
            EndExchange: self.end_exchange,
        }

    def step(self, update: int, version: int, gradients: list[GradientSum]) -> None:
        """Step the replica of every rank that shares out the update."""
        for rank, gradient in zip(self.epochs.shares.ranks(update), gradients, strict=True):
            self.replicas[rank].step(gradient)

    def exchange(self, exchange: int, update: int) -> None:
        self.begin_exchange(exchange, update)
        self._apply_means(exchange, late=False)

    def begin_exchange(self, exchange: int, update: int) -> None:
        ranks = self.epochs.exchanging(exchange)
        contributions = [self.replicas[rank].contribution(exchange, rank) for rank in ranks]
        self.means = dict(zip(ranks, self._means(exchange, ranks, contributions), strict=True))

    def end_exchange(self, exchange: int, update: int) -> None:
        self._apply_means(exchange, late=True)

    def _apply_means(self, exchange: int, late: bool) -> None:
        for rank, mean in self.means.items():
            # A rank that lacked a sum of all when the group changed was given it; between neighbours it was left out.
            if not self.mixes or self.epochs.made(rank, exchange):
                self.replicas[rank].apply_mean(exchange, mean, late)

    def _means(self, exchange: int, ranks: Sequence[int], contributions: list[GradientSum]) -> list[GradientSum]:
        """Return for each of these ranks the mean over all of them, or over its neighbours and itself."""
        assert self.payloads is not None
        if self.mixes:
            assert isinstance(self.payloads, Payloads)
            return self.payloads.mixtures(contributions)
        total = self.payloads.sum(exchange, ranks, contributions)
        return [total.scaled(1.0 / total.weight)] * len(ranks)

    def values(self) -> list[Tensor]:
        return mean_of([self.replicas[rank].result() for rank in self.epochs.last[: self.setup.plan.results]])

    def finite(self) -> bool:
        return all(bool(v.isfinite().all()) for replica in self.replicas for v in replica.store.values)


class CoordinatedSlices(Numbers):
    """The replicas of `Coordinated`, and every worker's slice of each vector."""

    def __init__(self, setup: Setup, method: Synchronous, epochs: Epochs) -> None:
        workers, coordinator, collective = setup.plan.workers, method.coordinator, method.collective
        assert coordinator is not None
        assert collective is not None
        learners = [make_learner(setup)[0] for _ in range(workers)]
        self.whole = Payloads(setup, collective)
        super().__init__(setup, learners, self.whole, epochs, self.values)
        self.slices = [
            VectorSlice(learner, setup.layout, coordinator, worker, workers) for worker, learner in enumerate(learners)
        ]
        self.numbers = [torch.zeros(1, dtype=torch.float64) for _ in self.slices]
        self.answers |= {
            Recall: lambda: (),
            Keep: self.keep,
            Product: self.product,
            Change: self.change,
            Gather: self.gather,
            Finish: self.finish,
        }

    def keep(self, gradients: list[GradientSum]) -> float:
        (gradient,) = gradients
        for each in self.slices:
            each.finalize(gradient)
        return gradient.mean

    def product(self, update: int, command: Dot) -> float:
        for number, each in zip(self.numbers, self.slices, strict=True):
            number[0] = each.dot(command)
        execute(self.whole.collective, self.numbers)
        return float(self.numbers[0])

    def change(self, command: Algebra) -> None:
        for each in self.slices:
            each.perform(command)

    def gather(self, update: int) -> None:
        for each, flat in zip(self.slices, self.whole.flats, strict=True):
            each.offer(flat)
        execute(self.whole.collective, self.whole.flats)
        for each, flat in zip(self.slices, self.whole.flats, strict=True):
            each.take(flat)

    def finish(self, update: int, remembers: object) -> None:
        for each in self.slices:
            each.end()

    def values(self) -> list[Tensor]:
        return [value.clone() for value in (*self.slices[0].parameters, *self.slices[0].buffers)]

    def finite(self) -> bool:
        return all(bool(p.isfinite().all()) for p in self.slices[0].parameters)


SynchronousArithmetic = SharedParameters | AveragedReplicas | CoordinatedSlices


def synchronous(setup: Setup, method: Synchronous, epochs: Epochs | None = None) -> SynchronousArithmetic:
    """Make the numbers of a method without a server and without stages, in these groups of its workers."""
    kind: Callable[[Setup, Synchronous, Epochs], SynchronousArithmetic] = SharedParameters
    if method.coordinator is not None:
        kind = CoordinatedSlices
    elif method.averaging is not None:
        kind = AveragedReplicas
    return kind(setup, method, epochs or Epochs(setup.plan.workers, collective=method.collective))


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
        workers, lanes = setup.plan.workers, most_lanes(collective, setup.plan.workers)
        #: The payloads of each fragment, one per worker.
        self.each = [
            [
                Payload(layout, torch.zeros(Payload.room(layout, lanes), dtype=layout.dtype), lanes)
                for _ in range(workers)
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
        execute(
            fitting(self.collective, len(shares)),
            [payload.vector for payload in payloads],
            length=len(payloads[0].flat),
        )
        return payloads[0].read(sum(share.samples for share in shares))

    def mixtures(self, shares: list[GradientSum]) -> list[GradientSum]:
        """Return for each worker the mean over its neighbours and itself."""
        self._write(self.each[0], shares)
        sums, flats = [], self.flats
        for worker, share in enumerate(shares):
            mixture = torch.zeros_like(flats[worker])
            payload = Payload(self.layout, mixture)
            weighted_sum(flats, self.collective.weights(worker, len(shares)), mixture)  # type: ignore[attr-defined]
            sums.append(payload.read(share.samples))
        return sums

    def _write(self, payloads: Sequence[Payload], shares: list[GradientSum]) -> None:
        for payload, share in zip(payloads, shares, strict=False):  # a group may have lost workers
            payload.write(share)


# Training in generated code, optimizer and all. All ranks and threads are one team; one process has the same bits.


class Team:
    """The network of this process, or of all ranks, which then make every call here together."""

    def __init__(self, setup: Setup, make: Callable[[Job, nn.Module], FusedNetwork]) -> None:
        assert isinstance(setup.source, TensorSource)
        self.setup, self.order = setup, setup.order()
        self.x, self.y = setup.source.tensors
        self.module = setup.fresh_module().train()
        self.fused = make(setup.job, self.module)
        optimizer, schedule = self.fused.optimizer, setup.job.lr_scheduler
        self.schedule = schedule(optimizer) if schedule is not None and optimizer is not None else None
        buffers = dict(self.module.named_buffers())
        self.tensors = [*trainable(self.module).values(), *(buffers[name] for name in setup.probe.moving)]
        self.fused.prepare(self.x[:1])

    def samples(self, first: int, last: int) -> Tensor:
        """Return the sample numbers of these updates, in their order."""
        agenda = self.setup.agenda
        chunks = [chunk for update in range(first, last) for chunk in agenda.filled(update)]
        return torch.cat([self.order.indices(chunk) for chunk in chunks])

    def train(self, first: int, last: int) -> float:
        """Train these updates, which lie within one pass over the data, and return the mean of their losses."""
        loss = self.fused.train_epoch(self.x, self.y, self.samples(first, last), self.setup.job.seed)
        if self.schedule is not None:
            self.schedule.step()
        return loss

    def loss(self, update: int) -> float:
        """Return the loss of an update without making it; only batch-norm's statistics change."""
        samples = self.samples(update, update + 1)
        return self.fused.loss_and_gradients(self.x[samples], self.y[samples])[0]

    def finite(self) -> bool:
        return all(bool(value.isfinite().all()) for value in self.tensors if value.is_floating_point())

    def values(self) -> list[Tensor]:
        return [value.detach().cpu().clone() for value in self.tensors]
