"""Collectives of the local engine: a worker's payloads, and the tables by which they are added up or mixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from paceline.core.collectives import Collective, Part, Step, segment_cuts
from paceline.core.collectives.neighbours import Neighbours
from paceline.gradients.payload import GradientSum, Payload
from paceline.parameters.replicas import mix

if TYPE_CHECKING:
    from paceline.engines.local.methods.runner import PlanRunner


class Means(Protocol):
    """A worker's hands on a meeting that gives each the mean, of all or of its neighbours."""

    def mean(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        """The meeting of this number: (the mean, nanoseconds waited, bytes sent)"""


class Table:
    """Executes a collective's table through shared memory: to send is to say that a part lies ready in one's vector.

    Every worker has two vectors, used in turn: nobody writes for meeting n + 2 before everyone has contributed to
    n + 1, and so is done with n. Meetings are counted by whoever calls; vectors of another length may take part in the
    count, if their table is the same.
    """

    def __init__(
        self, runner: PlanRunner, meeting: Collective, workers: int, vectors: Sequence[Sequence[Tensor]]
    ) -> None:
        self.runner, self.number = runner, runner.number
        self.steps: list[Step] = list(meeting.steps(runner.number, workers))
        self.offers, self.doorbells = runner.arena.offers, runner.doorbells
        length, size = len(vectors[0][0]), vectors[0][0].element_size()
        cuts = segment_cuts(length, meeting.segments(workers), size)
        self.parts = [
            [_both(s.receive, flats[self.number], flats, cuts) for s in self.steps]
            for flats in zip(*vectors, strict=True)
        ]  # [turn][step] -> (mine, theirs)
        self.bytes = sum((cuts[s.send.stop] - cuts[s.send.first]) * size for s in self.steps if s.send)

    def sum(self, number: int) -> int:
        """The meeting of this number, over what lies in everyone's vector of its turn; nanoseconds waited."""
        turn, waited, offer = number % 2, 0, number * len(self.steps)
        for step, parts in zip(self.steps, self.parts[turn], strict=True):
            offer += 1
            if step.send is not None:
                self.offers[self.number][0] = offer
                self.doorbells[step.send.other].ring()
            if step.receive is None or parts is None:
                continue
            theirs = self.offers[step.receive.other]
            if theirs[0] < offer:
                waited += _wait(self.runner, step.receive.other, offer)
            mine, received = parts
            if step.reduce:
                mine.add_(received)
            else:
                mine.copy_(received)
        return waited


class TableClient(Table):
    """A table over payloads."""

    def __init__(self, runner: PlanRunner, meeting: Collective, workers: int) -> None:
        arena = runner.arena
        super().__init__(runner, meeting, workers, arena.payloads)
        self.payloads = [Payload(arena.shape.layout, flat) for flat in arena.payloads[runner.number]]

    def meet(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        """The meeting of this number: (the sum of all, nanoseconds waited, bytes sent)"""
        payload = self.payloads[number % 2]
        payload.write(computed)
        waited = self.sum(number)
        return payload.read(computed.samples), waited, self.bytes

    def mean(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        total, waited, sent = self.meet(number, computed)
        return total.scaled(1.0 / self.runner.plan.workers), waited, sent


def _wait(runner: PlanRunner, whom: int, offer: int) -> int:
    """Until this worker has made its offer of this number; the nanoseconds it took."""
    theirs = runner.arena.offers[whom]
    return runner.waiter.until(lambda: theirs[0] >= offer, lambda: f"worker {whom}")


def _both(part: Part | None, mine: Tensor, flats: Sequence[Tensor], cuts: list[int]) -> tuple[Tensor, Tensor] | None:
    """A received part in one's own vector and in its sender's."""
    if part is None:
        return None
    span = slice(cuts[part.first], cuts[part.stop])
    return mine[span], flats[part.other][span]


class NeighbourClient:
    """Mixes one's own vector with the neighbours', aside, so that they may read it meanwhile."""

    def __init__(self, runner: PlanRunner, meeting: Neighbours, workers: int) -> None:
        self.runner, self.number = runner, runner.number
        arena, layout = runner.arena, runner.arena.shape.layout
        self.weights = meeting.weights(runner.number, workers)
        self.payloads = [Payload(layout, flat) for flat in arena.payloads[runner.number]]
        self.mixture = torch.zeros(Payload.length(layout), dtype=layout.dtype)
        self.mixed = Payload(layout, self.mixture)
        self.bytes = (len(self.weights) - 1) * self.mixture.nbytes

    def mean(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        """(the mixture, nanoseconds waited, bytes sent)"""
        arena, turn, waited = self.runner.arena, number % 2, 0
        self.payloads[turn].write(computed)
        arena.offers[self.number][0] = number + 1
        others = [other for other, _ in self.weights[1:]]
        for other in others:
            self.runner.doorbells[other].ring()
        for other in others:
            if arena.offers[other][0] <= number:
                waited += _wait(self.runner, other, number + 1)
        mix([pair[turn] for pair in arena.payloads], self.weights, self.mixture)
        return self.mixed.read(computed.samples), waited, self.bytes
