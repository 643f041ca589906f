"""Plans whose workers keep step, and those where nobody meets."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from paceline.core.agenda import Chunk
from paceline.core.collectives import Collective, Part, segment_cuts
from paceline.core.collectives.neighbours import Neighbours
from paceline.core.rules import Arrival
from paceline.engines.arithmetic.common import Snapshots, make_encoders, make_learner
from paceline.engines.setup import Setup
from paceline.gradients.payload import GradientSum, Payload
from paceline.parameters.replicas import AveragingReplica, middle, mix
from paceline.parameters.store import (
    LocalStore,
)
from paceline.parameters.vector_slice import CommandExecutor, VectorSlice


class Together(Snapshots):
    """All workers hold the same values: `sequential`, and every collective that adds up gradients."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots = setup, []
        self.learner, optimizer = make_learner(setup)
        parameters, rule = self.learner.replica.parameters, setup.plan.rule
        self.home = LocalStore(parameters, optimizer, setup.job.schedule, rule)
        self.meeting = _Meeting(setup) if setup.plan.synchronous else None
        self.encoders = make_encoders(setup, parameters)

    def compute(self, worker: int, chunks: list[Chunk]) -> GradientSum:
        """One worker's share of an update. Each starts from the same buffers."""
        start = [b.clone() for b in self.learner.replica.moving]
        computed = self.encoders[worker].sent(self.learner.compute(chunks))
        for buffer, value in zip(self.learner.replica.moving, start, strict=True):
            buffer.copy_(value)
        return computed

    def apply(self, update: int, shares: list[GradientSum]) -> None:
        """Meet, then let the rule apply the whole batch's gradient."""
        whole = shares[0] if self.meeting is None else self.meeting.sum(shares)
        self.setup.plan.rule.update(self.home, Arrival(self.learner.settle(whole)))

    def values(self) -> list[Tensor]:
        return [value.clone() for value in self.learner.replica.values()]

    def finite(self) -> bool:
        return all(bool(p.isfinite().all()) for p in self.learner.replica.parameters)


class LocalSteps(Snapshots):
    """Each worker steps a replica of its own; now and then all meet."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots = setup, []
        rule, workers = setup.plan.averaging, setup.plan.workers
        assert rule is not None
        self.rule = rule
        self.meeting, self.averaging_replicas = _Meeting(setup), list[AveragingReplica]()
        for _ in range(workers):
            learner, optimizer = make_learner(setup)
            home = LocalStore(learner.replica.parameters, optimizer, setup.job.schedule, rule)
            self.averaging_replicas.append(AveragingReplica(learner, home, rule))

    def compute(self, worker: int, chunks: list[Chunk]) -> GradientSum:
        return self.averaging_replicas[worker].learner.compute(chunks)

    def apply(self, update: int, shares: list[GradientSum]) -> None:
        """Everyone's own step and, where it is due, the meeting."""
        due = self.setup.plan.meets_after(update, self.setup.agenda.updates)
        if due and self.rule.mixes_first:
            self._meet()
        for replica_averaging, share in zip(self.averaging_replicas, shares, strict=True):
            replica_averaging.step(share)
        if due and not self.rule.mixes_first:
            self._meet()

    def _meet(self) -> None:
        means = self.meeting.means([replica_averaging.bring() for replica_averaging in self.averaging_replicas])
        for replica_averaging, mean in zip(self.averaging_replicas, means, strict=True):
            replica_averaging.take(mean)

    def values(self) -> list[Tensor]:
        return middle([w.result() for w in self.averaging_replicas[: self.setup.plan.results]])

    def finite(self) -> bool:
        return all(bool(v.isfinite().all()) for w in self.averaging_replicas for v in w.home.values)


Heard = Callable[[int, int, list[float]], None]


class Coordinated(CommandExecutor, Snapshots):
    """A coordinator commands the workers, each of whom has a replica and a slice of every vector.

    An update's first evaluation is handed in, as under any plan whose workers keep step. `heard` is told of what
    follows: (update, bytes of a meeting, everyone's loss where they computed for it).
    """

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots, plan = setup, [], setup.plan
        coordinator, workers = plan.coordinator, plan.workers
        assert coordinator is not None
        hands = [
            VectorSlice(make_learner(setup)[0], setup.layout, coordinator, worker, workers) for worker in range(workers)
        ]
        super().__init__(coordinator, hands)
        self.meeting = _Meeting(setup)
        self.numbers = [torch.zeros(1, dtype=torch.float64) for _ in hands]
        self.doing, self.first = 0, list[GradientSum]()
        self.encoders = make_encoders(setup, hands[0].learner.replica.parameters)
        self.heard: Heard = lambda update, size, losses: None

    def compute(self, worker: int, chunks: list[Chunk]) -> GradientSum:
        self.hands[worker].rewind()
        return self.encoders[worker].sent(self.hands[worker].learner.compute(chunks))

    def apply(self, update: int, shares: list[GradientSum]) -> None:
        self.doing, self.first = update, shares
        self.update()

    def evaluate(self) -> float:
        shares, self.first = self.first, []
        if not shares:
            mine = [self.setup.agenda.mine(self.doing, worker) for worker in range(len(self.hands))]
            shares = [self.compute(worker, chunks) for worker, chunks in enumerate(mine)]
            self.heard(self.doing, self.meeting.flats[0].nbytes, [share.mean for share in shares])
        together = self.meeting.sum(shares)
        for hand in self.hands:
            hand.settle(together)
        return together.mean

    def total(self, parts: list[float]) -> float:
        for number, part in zip(self.numbers, parts, strict=True):
            number[0] = part
        self._meet(self.numbers)
        return float(self.numbers[0])

    def share(self) -> None:
        for hand, flat in zip(self.hands, self.meeting.flats, strict=True):
            hand.offer(flat)
        self._meet(self.meeting.flats)
        for hand, flat in zip(self.hands, self.meeting.flats, strict=True):
            hand.take(flat)

    def _meet(self, flats: list[Tensor]) -> None:
        execute(self.meeting.collective, flats)  # type: ignore[arg-type]
        self.heard(self.doing, flats[0].nbytes, [])

    def values(self) -> list[Tensor]:
        return [value.clone() for value in (*self.hands[0].parameters, *self.hands[0].buffers)]

    def finite(self) -> bool:
        return all(bool(p.isfinite().all()) for p in self.hands[0].parameters)


InStep = Together | LocalSteps | Coordinated


def in_step(setup: Setup) -> InStep:
    """The arithmetic of a plan whose workers keep step."""
    if setup.plan.coordinator is not None:
        return Coordinated(setup)
    return Together(setup) if setup.plan.averaging is None else LocalSteps(setup)


class _Meeting:
    """Every worker's payload, and what the plan's table makes of them."""

    def __init__(self, setup: Setup) -> None:
        self.layout, self.collective = setup.layout, setup.plan.meeting
        length = Payload.length(setup.layout)
        self.flats = [torch.zeros(length, dtype=setup.layout.dtype) for _ in range(setup.plan.workers)]
        self.payloads = [Payload(setup.layout, flat) for flat in self.flats]

    def sum(self, shares: list[GradientSum]) -> GradientSum:
        self._write(shares)
        execute(self.collective, self.flats)  # type: ignore[arg-type]
        return self.payloads[0].read(sum(share.samples for share in shares))

    def _write(self, shares: list[GradientSum]) -> None:
        for payload, share in zip(self.payloads, shares, strict=True):
            payload.write(share)

    def means(self, shares: list[GradientSum]) -> list[GradientSum]:
        """For each worker, the mean of what those it meets have brought."""
        workers = len(shares)
        if not isinstance(self.collective, Neighbours):
            return [self.sum(shares).scaled(1.0 / workers)] * workers
        self._write(shares)
        found = []
        for worker in range(workers):
            mixture = torch.zeros_like(self.flats[worker])
            payload = Payload(self.layout, mixture)
            mix(self.flats, self.collective.weights(worker, workers), mixture)
            found.append(payload.read(shares[worker].samples))
        return found


def execute(meeting: Collective, flats: list[Tensor]) -> None:
    """A collective's table over vectors of one process."""
    workers = len(flats)
    cuts = segment_cuts(len(flats[0]), meeting.segments(workers), flats[0].element_size())

    def piece(part: Part, worker: int) -> Tensor:
        return flats[worker][cuts[part.first] : cuts[part.stop]]

    for row in zip(*(meeting.steps(worker, workers) for worker in range(workers)), strict=True):
        taken = [None if s.receive is None else piece(s.receive, s.receive.other).clone() for s in row]
        for worker, (step, received) in enumerate(zip(row, taken, strict=True)):
            if step.receive is not None and received is not None:
                mine = piece(step.receive, worker)
                mine.add_(received) if step.reduce else mine.copy_(received)
