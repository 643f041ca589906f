"""A worker's hands on what lies in shared memory for all: a shard, a centre, a replica that others reach."""

from __future__ import annotations

import contextlib
from time import perf_counter_ns as now
from typing import TYPE_CHECKING

from torch import Tensor

from paceline.compute.averaging import Commuter, Peer, middle
from paceline.compute.belongings import Belongings, of_home, of_many, put_back, restore_home
from paceline.compute.home import optimizer_over
from paceline.compute.payload import Computed
from paceline.compute.row_home import shard_home
from paceline.compute.slots import Slots
from paceline.core.actions import Action, Apply, Held, Noted
from paceline.core.events import Pull, Push
from paceline.core.gathering import Gathering
from paceline.core.rooms import Replicas, Rooms
from paceline.core.rules import Arrival
from paceline.core.server import Shard
from paceline.engines.transports.shared_memory import RecordLock
from paceline.trace import Kind

if TYPE_CHECKING:
    from paceline.core.state import State
    from paceline.engines.local.station import Station


class UnlockedClient:
    """Hogwild: everybody's hands on the same values, without a lock; the optimizer's memory is each worker's own."""

    def __init__(self, station: Station, number: int) -> None:
        self.station, self.number, self.base = station, number, -1
        self.room = station.arena.shards[number].newest
        for parameter, view in zip(station.replica.parameters, self.room.parameters, strict=True):
            parameter.data = view
        self.home = station.replica_home()
        self.pushes = 0
        # Checkpoints are the one thing that waits until nobody writes; workers do not exclude each other.
        self.guard: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if station.keeper.locker is not None:
            self.guard = RecordLock(station.arena.locks, number + 1, station.waiter, "a checkpoint", shared=True)

    def go_on(self) -> None:
        moving = self.station.replica.moving
        if self.station.life.resumed:
            put_back(moving, self.room.buffers)
        if (found := self.station.keeper.found) is not None:
            put_back(moving, found.many("moving"))
            restore_home(self.home, found)
        self.leave()

    def leave(self) -> None:
        self.station.keeper.at_server(self.pushes, self.belongings)

    def belongings(self) -> Belongings:
        return of_many("moving", self.station.replica.moving) | of_home(self.home)

    def settle(self, update: int, computed: Computed) -> list[Tensor | None]:
        self.home.updates = update
        return self.station.learner.settle(computed)

    def values(self) -> list[Tensor]:
        return self.station.values()

    def push(self, event: Push, gradients: list[Tensor | None]) -> Action:
        start, shard = now(), self.station.arena.shards[self.number]
        with self.guard:
            self.station.plan.rule.update(self.home, Arrival(gradients))
            self.room.keep_buffers(self.station.replica.moving)
            self.station.record(Kind.APPLY, event.batch, self.number, -1, -1, start, now(), 0, 0, 0, 0.0)
            self.pushes += 1
            self.leave()
            assert isinstance(shard.machine, Shard)
            shard.machine.note(shard.twin.current, self.station.number, event.batch)
        return Noted()


class ShardClient:
    """One worker's hands on one shard: under the shard's lock it makes the next version, and goes on from it."""

    def __init__(self, station: Station, number: int) -> None:
        self.station, self.number, self.me = station, number, station.number
        self.memory = station.arena.shards[number]
        layout = station.arena.shape.layout.shards[number]
        self.lock = RecordLock(station.arena.locks, number + 1, station.waiter, f"shard {number}")
        self.bytes = 2 * layout.length * station.arena.shape.layout.bytes_per_number
        self.base = self.memory.machine.base(self.memory.twin.current, self.me)  # it was put there by the parent

    def go_on(self) -> None:
        """Before the first lease: begin where an earlier life of the run ended, if there was one."""

    def settle(self, update: int, computed: Computed) -> list[Tensor | None]:
        """What to push of what was computed."""
        return self.station.learner.settle(computed)

    def push(self, event: Push, gradients: list[Tensor | None]) -> Action:
        station, memory, start = self.station, self.memory, now()
        self.before(event, gradients)
        with self.lock as waited:
            draft = memory.twin.begin()
            action: Action = memory.machine.handle(draft, event)
            if isinstance(action, Apply | Held):
                if isinstance(action, Apply):
                    self.make(draft, action.version)
                # Written before the commit: no version without its row. A worker killed between the two leaves a row
                # too many, known by a later one of the same version.
                row = (event.batch, self.number, action.base, action.version)
                station.record(Kind.APPLY, *row, start, now(), waited, 0, self.bytes, 0.0)
                memory.twin.commit()
                if isinstance(action, Apply):
                    self.base = action.version
                return action
        station.record(Kind.DROP, event.batch, self.number, self.base, -1, start, now(), waited, 0, 0, 0.0)
        return action

    def values(self) -> list[Tensor]:
        """The parameters and moving buffers, as far as this worker knows them."""
        return self.station.values()

    def before(self, event: Push, gradients: list[Tensor | None]) -> None:
        """What can be done without the lock."""
        raise NotImplementedError

    def make(self, draft: State, version: int) -> None:
        """Make this version of the newest one, in the room for it."""
        raise NotImplementedError


class GradientClient(ShardClient):
    """Brings gradients: the rule and the user's optimizer work at the shard."""

    def __init__(self, station: Station, number: int) -> None:
        super().__init__(station, number)
        named = dict(station.replica.module.named_parameters())
        mine = [named[place.name] for place in station.arena.shape.layout.shards[number].parameters]
        places = {id(p): n for n, p in enumerate(station.replica.parameters)}
        self.which = [places[id(p)] for p in mine]
        optimizer = optimizer_over(station.optimizer, {p: p for p in mine})
        self.home = shard_home(mine, optimizer, station.job.schedule, self.memory.rooms, self.memory.journal)
        assert isinstance(self.memory.places, Rooms)
        self.places = self.memory.places
        self.home.look(self.places.of(self.memory.twin.current, self.me))
        self.moving = station.replica.moving if number == 0 else []

    def go_on(self) -> None:
        if self.station.life.resumed and self.number == 0:
            self.station.learner.set_buffers(self.home.room.buffers)

    def before(self, event: Push, gradients: list[Tensor | None]) -> None:
        pulled = self.home.pulled(self.station.plan.rule)
        self.arrival: Arrival | None = Arrival([gradients[n] for n in self.which], pulled)

    def make(self, draft: State, version: int) -> None:
        self.home.updates = version - 1
        self.home.move(*self.places.move(draft, self.me))
        assert self.arrival is not None
        self.station.plan.rule.update(self.home, self.arrival)
        self.arrival = None  # what a step touches should stay in the cache
        self.home.room.keep_buffers(self.moving)
        self.bytes = self.home.bytes


class GatheringClient(GradientClient):
    """Brings its gradient to a round; whoever fills the round makes the version."""

    def __init__(self, station: Station, number: int) -> None:
        super().__init__(station, number)
        self.slots = Slots(station.arena.shape.layout, station.arena.slots)

    @property
    def machine(self) -> Gathering:
        assert isinstance(self.memory.machine, Gathering)
        return self.memory.machine

    def settle(self, update: int, computed: Computed) -> list[Tensor | None]:
        self.computed = computed
        return []

    def pull(self, event: Pull) -> Action:
        memory = self.memory
        with self.lock:
            draft = memory.twin.begin()
            action = self.machine.handle(draft, event)
            self.home.fetch(*self.places.fetch(draft, self.me))
            memory.twin.commit()
            self.base = self.machine.base(draft, self.me)
        self.station.learner.set_buffers(self.home.room.buffers)
        return action

    def before(self, event: Push, gradients: list[Tensor | None]) -> None:
        self.slots.write(self.machine.slot(self.memory.twin.current, self.me), self.computed)

    def make(self, draft: State, version: int) -> None:
        whole = self.slots.add_up([held.slot for held in self.machine.full_round(draft)])
        self.arrival = Arrival(self.station.learner.settle(whole, alone=True))
        super().make(draft, version)


class CentreClient(ShardClient):
    """Brings a replica that has stepped by itself; it and the centre change each other."""

    def __init__(self, station: Station, number: int) -> None:
        super().__init__(station, number)
        rule = station.plan.exchanging
        assert rule is not None
        self.commuter = Commuter(station.learner, station.optimizer, rule)

    def go_on(self) -> None:
        if (found := self.station.keeper.found) is not None:
            self.commuter.restore(found)
        elif self.station.life.resumed:
            self.commuter.join(self.memory.newest)
        self.station.keeper.at_server(self.base, self.commuter.belongings)

    def settle(self, update: int, computed: Computed) -> list[Tensor | None]:
        self.commuter.step(update, computed)
        return []

    def before(self, event: Push, gradients: list[Tensor | None]) -> None:
        pass

    def make(self, draft: State, version: int) -> None:
        rooms, (source, target) = self.memory.rooms, self.memory.places.move(draft, self.me)
        rooms[target].raw.copy_(rooms[source].raw)
        self.commuter.exchange(rooms[target])
        self.station.keeper.at_server(version, self.commuter.belongings)


class PeerClient(ShardClient):
    """Brings its gradient to its own replica, and meets another's on the way."""

    def __init__(self, station: Station, number: int) -> None:
        super().__init__(station, number)
        rule = station.plan.pairing
        assert rule is not None
        assert isinstance(self.memory.places, Replicas)
        self.rule, self.places = rule, self.memory.places
        self.peer = Peer(station.learner, station.replica_home(), rule, self.memory.rooms)
        self.peer.look(self.places.of(self.memory.twin.current, self.me))

    def go_on(self) -> None:
        if self.station.life.resumed:
            mine = self.memory.rooms[self.places.of(self.memory.twin.current, self.me)]
            self.station.learner.set_buffers(mine.buffers)
        if (found := self.station.keeper.found) is not None:
            self.peer.restore(found)
        self.station.keeper.at_server(self.base, self.peer.belongings)

    def values(self) -> list[Tensor]:
        with self.lock:
            return middle([[v.clone() for v in (*r.parameters, *r.buffers)] for r in self.memory.all_newest])

    def before(self, event: Push, gradients: list[Tensor | None]) -> None:
        plan, seed = self.station.plan, self.station.job.seed
        self.partner, self.gradients = self.rule.partner(self.me, plan.workers, seed, event.batch), gradients

    def make(self, draft: State, version: int) -> None:
        theirs = None if self.partner is None else self.places.change(draft, self.partner)
        self.peer.step(version, self.gradients, self.places.move(draft, self.me), theirs)
        self.station.keeper.at_server(version, self.peer.belongings)


def shard_client(station: Station, number: int) -> ShardClient | UnlockedClient:
    if not station.plan.locked:
        return UnlockedClient(station, number)
    if station.plan.gathers:
        return GatheringClient(station, number)
    if station.plan.pairing is not None:
        return PeerClient(station, number)
    return GradientClient(station, number) if station.plan.exchanging is None else CentreClient(station, number)
