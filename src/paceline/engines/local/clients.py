"""A worker's hands on what it shares with the others: the payloads of a table, its neighbours', a shard."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns as now
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.compute.averaging import Commuter, mix
from paceline.compute.home import optimizer_over
from paceline.compute.payload import Computed, Payload
from paceline.compute.row_home import shard_home
from paceline.core.actions import Action, Apply, Noted
from paceline.core.events import Push
from paceline.core.meetings import Collective, Part, Step, segment_cuts
from paceline.core.meetings.neighbours import Neighbours
from paceline.core.rules import Arrival
from paceline.engines.transports.shared_memory import RecordLock
from paceline.trace import Kind

if TYPE_CHECKING:
    from paceline.engines.local.worker import LocalWorker


class TableClient:
    """Executes a collective's table through shared memory: to send is to say that a part lies ready in one's payload.

    Payloads are used in turn: nobody writes for meeting n + 2 before everyone has contributed to n + 1, and so is done
    with n.
    """

    def __init__(self, worker: LocalWorker, meeting: Collective, workers: int) -> None:
        self.worker, self.number = worker, worker.number
        self.steps: list[Step] = list(meeting.steps(worker.number, workers))
        arena, layout = worker.arena, worker.arena.shape.layout
        self.offers, self.bells = arena.offers, worker.bells
        self.payloads = [Payload(layout, flat) for flat in arena.payloads[worker.number]]
        length, size = Payload.length(layout), layout.bytes_per_number
        cuts = segment_cuts(length, meeting.segments(workers), size)
        self.parts = [
            [_both(s.receive, flats[self.number], flats, cuts) for s in self.steps]
            for flats in zip(*arena.payloads, strict=True)
        ]  # [turn][step] -> (mine, theirs)
        self.bytes = sum((cuts[s.send.stop] - cuts[s.send.first]) * size for s in self.steps if s.send)

    def meet(self, number: int, computed: Computed) -> tuple[Computed, int, int]:
        """The meeting of this number: (the sum of all, nanoseconds waited, bytes sent)"""
        turn, waited, offer = number % 2, 0, number * len(self.steps)
        payload = self.payloads[turn]
        payload.write(computed)
        for step, parts in zip(self.steps, self.parts[turn], strict=True):
            offer += 1
            if step.send is not None:
                self.offers[self.number][0] = offer
                self.bells[step.send.other].ring()
            if step.receive is None or parts is None:
                continue
            theirs = self.offers[step.receive.other]
            if theirs[0] < offer:
                waited += _wait(self.worker, step.receive.other, offer)
            mine, received = parts
            if step.reduce:
                mine.add_(received)
            else:
                mine.copy_(received)
        return payload.read(computed.samples), waited, self.bytes

    def mean(self, number: int, computed: Computed) -> tuple[Computed, int, int]:
        total, waited, sent = self.meet(number, computed)
        return total.scaled(1.0 / self.worker.plan.workers), waited, sent


def _wait(worker: LocalWorker, whom: int, offer: int) -> int:
    """Until this worker has made its offer of this number; the nanoseconds it took."""
    theirs = worker.arena.offers[whom]
    return worker.waiter.until(lambda: theirs[0] >= offer, lambda: f"worker {whom}")


def _both(part: Part | None, mine: Tensor, flats: Sequence[Tensor], cuts: list[int]) -> tuple[Tensor, Tensor] | None:
    """A received part in one's own vector and in its sender's."""
    if part is None:
        return None
    span = slice(cuts[part.first], cuts[part.stop])
    return mine[span], flats[part.other][span]


class NeighbourClient:
    """Mixes one's own vector with the neighbours', aside, so that they may read it meanwhile."""

    def __init__(self, worker: LocalWorker, meeting: Neighbours, workers: int) -> None:
        self.worker, self.number = worker, worker.number
        arena, layout = worker.arena, worker.arena.shape.layout
        self.weights = meeting.weights(worker.number, workers)
        self.payloads = [Payload(layout, flat) for flat in arena.payloads[worker.number]]
        self.mixture = torch.zeros(Payload.length(layout), dtype=layout.dtype)
        self.mixed = Payload(layout, self.mixture)
        self.bytes = (len(self.weights) - 1) * self.mixture.nbytes

    def mean(self, number: int, computed: Computed) -> tuple[Computed, int, int]:
        """(the mixture, nanoseconds waited, bytes sent)"""
        arena, turn, waited = self.worker.arena, number % 2, 0
        self.payloads[turn].write(computed)
        arena.offers[self.number][0] = number + 1
        others = [other for other, _ in self.weights[1:]]
        for other in others:
            self.worker.bells[other].ring()
        for other in others:
            if arena.offers[other][0] <= number:
                waited += _wait(self.worker, other, number + 1)
        mix([pair[turn] for pair in arena.payloads], self.weights, self.mixture)
        return self.mixed.read(computed.samples), waited, self.bytes


class UnlockedClient:
    """Hogwild: everybody's hands on the same values, without a lock; the optimizer's memory is each worker's own."""

    def __init__(self, worker: LocalWorker, number: int) -> None:
        self.worker, self.number, self.base = worker, number, -1
        self.room = worker.arena.shards[number].newest
        for parameter, view in zip(worker.replica.parameters, self.room.parameters, strict=True):
            parameter.data = view
        self.home = worker.replica_home()

    def settle(self, update: int, computed: Computed) -> list[Tensor | None]:
        self.home.updates = update
        return self.worker.learner.settle(computed)

    def push(self, event: Push, gradients: list[Tensor | None]) -> Action:
        start = now()
        self.worker.plan.rule.update(self.home, Arrival(gradients))
        self.room.keep_buffers(self.worker.replica.moving)
        self.worker.record(Kind.APPLY, event.batch, self.number, -1, -1, start, now(), 0, 0, 0, 0.0)
        return Noted()


class ShardClient:
    """One worker's hands on one shard: under the shard's lock it makes the next version, and goes on from it."""

    def __init__(self, worker: LocalWorker, number: int) -> None:
        self.worker, self.number, self.me = worker, number, worker.number
        self.memory = worker.arena.shards[number]
        layout = worker.arena.shape.layout.shards[number]
        self.lock = RecordLock(worker.arena.locks, number + 1, worker.waiter, f"shard {number}")
        self.bytes = 2 * layout.length * worker.arena.shape.layout.bytes_per_number
        self.base = 0  # version 0 was put there by the parent

    def settle(self, update: int, computed: Computed) -> list[Tensor | None]:
        """What to push of what was computed."""
        return self.worker.learner.settle(computed)

    def push(self, event: Push, gradients: list[Tensor | None]) -> Action:
        worker, memory, start = self.worker, self.memory, now()
        self.before(gradients)
        with self.lock as waited:
            draft = memory.twin.begin()
            action = memory.machine.handle(draft, event)
            if isinstance(action, Apply):
                self.make(action.version, *memory.places.move(draft, self.me))
                # Written before the commit: no version without its row. A worker killed between the two leaves a row
                # too many, known by a later one of the same version.
                row = (event.batch, self.number, self.base, action.version)
                worker.record(Kind.APPLY, *row, start, now(), waited, 0, self.bytes, 0.0)
                memory.twin.commit()
                self.base = action.version
                return action
        worker.record(Kind.DROP, event.batch, self.number, self.base, -1, start, now(), waited, 0, 0, 0.0)
        return action

    def before(self, gradients: list[Tensor | None]) -> None:
        """What can be done without the lock."""
        raise NotImplementedError

    def make(self, version: int, source: int, target: int) -> None:
        """Make this version in the target room, from the newest one in the source room."""
        raise NotImplementedError


class GradientClient(ShardClient):
    """Brings gradients: the rule and the user's optimizer work at the shard."""

    def __init__(self, worker: LocalWorker, number: int) -> None:
        super().__init__(worker, number)
        named = dict(worker.replica.module.named_parameters())
        mine = [named[place.name] for place in worker.arena.shape.layout.shards[number].parameters]
        places = {id(p): n for n, p in enumerate(worker.replica.parameters)}
        self.which = [places[id(p)] for p in mine]
        optimizer = optimizer_over(worker.optimizer, {p: p for p in mine})
        self.home = shard_home(mine, optimizer, worker.job.schedule, self.memory.rooms, self.memory.journal)
        self.home.look(self.memory.places.of(self.memory.twin.current, self.me))
        self.moving = worker.replica.moving if number == 0 else []

    def before(self, gradients: list[Tensor | None]) -> None:
        pulled = self.home.pulled(self.worker.plan.rule)
        self.arrival: Arrival | None = Arrival([gradients[n] for n in self.which], pulled)

    def make(self, version: int, source: int, target: int) -> None:
        self.home.updates = version - 1
        self.home.move(source, target)
        assert self.arrival is not None
        self.worker.plan.rule.update(self.home, self.arrival)
        self.arrival = None  # what a step touches should stay in the cache
        self.home.room.keep_buffers(self.moving)
        self.bytes = self.home.bytes


class CentreClient(ShardClient):
    """Brings a replica that has stepped by itself; it and the centre change each other."""

    def __init__(self, worker: LocalWorker, number: int) -> None:
        super().__init__(worker, number)
        rule = worker.plan.exchanging
        assert rule is not None
        self.commuter = Commuter(worker.learner, worker.replica_home(), rule)

    def settle(self, update: int, computed: Computed) -> list[Tensor | None]:
        self.commuter.step(update, computed)
        return []

    def before(self, gradients: list[Tensor | None]) -> None:
        pass

    def make(self, version: int, source: int, target: int) -> None:
        rooms = self.memory.rooms
        rooms[target].raw.copy_(rooms[source].raw)
        self.commuter.exchange(rooms[target])


def shard_client(worker: LocalWorker, number: int) -> ShardClient | UnlockedClient:
    if not worker.plan.locked:
        return UnlockedClient(worker, number)
    return GradientClient(worker, number) if worker.plan.exchanging is None else CentreClient(worker, number)
