"""A worker's hands on what lies in shared memory for all: a shard, a centre, a replica that others reach."""

from __future__ import annotations

import contextlib
from time import perf_counter_ns as now
from typing import TYPE_CHECKING

from torch import Tensor

from paceline.core.rules import Arrival
from paceline.core.server.actions import Action, Apply, Held, Noted
from paceline.core.server.events import Pull, Push
from paceline.core.server.gathering import Gathering
from paceline.core.server.machines import Shard
from paceline.core.server.version_slots import Replicas, VersionSlots
from paceline.gradients.gather_buffers import GatherBuffers
from paceline.gradients.payload import GradientSum
from paceline.links.shared_memory import RecordLock
from paceline.parameters.replicas import ExchangingReplica, GossipReplica, middle
from paceline.parameters.row_store import shard_store
from paceline.parameters.store import optimizer_over, restore_store, state_of_store
from paceline.parameters.worker_state import WorkerState, copy_into, state_of_tensors
from paceline.runs.trace import Kind

if TYPE_CHECKING:
    from paceline.core.state import State
    from paceline.engines.local.plan_runner import PlanRunner


class UnlockedClient:
    """Hogwild: everybody's hands on the same values, without a lock; the optimizer's memory is each worker's own."""

    def __init__(self, runner: PlanRunner, number: int) -> None:
        self.runner, self.number, self.base = runner, number, -1
        self.room = runner.arena.shards[number].newest
        for parameter, view in zip(runner.replica.parameters, self.room.parameters, strict=True):
            parameter.data = view
        self.home = runner.local_store()
        self.pushes = 0
        # Checkpoints are the one thing that waits until nobody writes; workers do not exclude each other.
        self.guard: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if runner.state_writer.state_buffer is not None:
            self.guard = RecordLock(runner.arena.locks, number + 1, runner.waiter, "a checkpoint", shared=True)

    def go_on(self) -> None:
        moving = self.runner.replica.moving
        if self.runner.life.resumed:
            copy_into(moving, self.room.buffers)
        if (found := self.runner.state_writer.found) is not None:
            copy_into(moving, found.many("moving"))
            restore_store(self.home, found)
        self.leave()

    def leave(self) -> None:
        self.runner.state_writer.at_server(self.pushes, self.worker_state)

    def worker_state(self) -> WorkerState:
        return state_of_tensors("moving", self.runner.replica.moving) | state_of_store(self.home)

    def settle(self, update: int, computed: GradientSum) -> list[Tensor | None]:
        self.home.updates = update
        return self.runner.learner.settle(computed)

    def values(self) -> list[Tensor]:
        return self.runner.values()

    def push(self, event: Push, gradients: list[Tensor | None]) -> Action:
        start, shard = now(), self.runner.arena.shards[self.number]
        with self.guard:
            self.runner.plan.rule.update(self.home, Arrival(gradients))
            self.room.keep_buffers(self.runner.replica.moving)
            self.runner.record(Kind.APPLY, event.batch, self.number, -1, -1, start, now(), 0, 0, 0, 0.0)
            self.pushes += 1
            self.leave()
            assert isinstance(shard.machine, Shard)
            shard.machine.note(shard.twin.current, self.runner.number, event.batch)
        return Noted()


class ShardClient:
    """One worker's hands on one shard: under the shard's lock it makes the next version, and goes on from it."""

    def __init__(self, runner: PlanRunner, number: int) -> None:
        self.runner, self.number, self.me = runner, number, runner.number
        self.memory = runner.arena.shards[number]
        layout = runner.arena.shape.layout.shards[number]
        self.lock = RecordLock(runner.arena.locks, number + 1, runner.waiter, f"shard {number}")
        self.bytes = 2 * layout.length * runner.arena.shape.layout.bytes_per_number
        self.base = self.memory.machine.base(self.memory.twin.current, self.me)  # it was put there by the parent

    def go_on(self) -> None:
        """Before the first lease: begin where an earlier life of the run ended, if there was one."""

    def settle(self, update: int, computed: GradientSum) -> list[Tensor | None]:
        """What to push of what was computed."""
        return self.runner.learner.settle(computed)

    def push(self, event: Push, gradients: list[Tensor | None]) -> Action:
        runner, memory, start = self.runner, self.memory, now()
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
                runner.record(Kind.APPLY, *row, start, now(), waited, 0, self.bytes, 0.0)
                memory.twin.commit()
                if isinstance(action, Apply):
                    self.base = action.version
                return action
        runner.record(Kind.DROP, event.batch, self.number, self.base, -1, start, now(), waited, 0, 0, 0.0)
        return action

    def values(self) -> list[Tensor]:
        """The parameters and moving buffers, as far as this worker knows them."""
        return self.runner.values()

    def before(self, event: Push, gradients: list[Tensor | None]) -> None:
        """What can be done without the lock."""
        raise NotImplementedError

    def make(self, draft: State, version: int) -> None:
        """Make this version of the newest one, in the room for it."""
        raise NotImplementedError


class GradientClient(ShardClient):
    """Brings gradients: the rule and the user's optimizer work at the shard."""

    def __init__(self, runner: PlanRunner, number: int) -> None:
        super().__init__(runner, number)
        named = dict(runner.replica.module.named_parameters())
        mine = [named[place.name] for place in runner.arena.shape.layout.shards[number].parameters]
        places = {id(p): n for n, p in enumerate(runner.replica.parameters)}
        self.which = [places[id(p)] for p in mine]
        optimizer = optimizer_over(runner.optimizer, {p: p for p in mine})
        self.home = shard_store(mine, optimizer, runner.job.schedule, self.memory.rooms, self.memory.journal)
        assert isinstance(self.memory.places, VersionSlots)
        self.places = self.memory.places
        self.home.look(self.places.of(self.memory.twin.current, self.me))
        self.moving = runner.replica.moving if number == 0 else []

    def go_on(self) -> None:
        if self.runner.life.resumed and self.number == 0:
            self.runner.learner.set_buffers(self.home.room.buffers)

    def before(self, event: Push, gradients: list[Tensor | None]) -> None:
        pulled = self.home.pulled(self.runner.plan.rule)
        self.arrival: Arrival | None = Arrival([gradients[n] for n in self.which], pulled)

    def make(self, draft: State, version: int) -> None:
        self.home.updates = version - 1
        self.home.move(*self.places.move(draft, self.me))
        assert self.arrival is not None
        self.runner.plan.rule.update(self.home, self.arrival)
        self.arrival = None  # what a step touches should stay in the cache
        self.home.room.keep_buffers(self.moving)
        self.bytes = self.home.bytes


class GatheringClient(GradientClient):
    """Brings its gradient to a round; whoever fills the round makes the version."""

    def __init__(self, runner: PlanRunner, number: int) -> None:
        super().__init__(runner, number)
        self.slots = GatherBuffers(runner.arena.shape.layout, runner.arena.slots)

    @property
    def machine(self) -> Gathering:
        assert isinstance(self.memory.machine, Gathering)
        return self.memory.machine

    def settle(self, update: int, computed: GradientSum) -> list[Tensor | None]:
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
        self.runner.learner.set_buffers(self.home.room.buffers)
        return action

    def before(self, event: Push, gradients: list[Tensor | None]) -> None:
        self.slots.write(self.machine.slot(self.memory.twin.current, self.me), self.computed)

    def make(self, draft: State, version: int) -> None:
        whole = self.slots.add_up([held.slot for held in self.machine.full_round(draft)])
        self.arrival = Arrival(self.runner.learner.settle(whole, alone=True))
        super().make(draft, version)


class CentreClient(ShardClient):
    """Brings a replica that has stepped by itself; it and the centre change each other."""

    def __init__(self, runner: PlanRunner, number: int) -> None:
        super().__init__(runner, number)
        rule = runner.plan.exchanging
        assert rule is not None
        self.exchanging = ExchangingReplica(runner.learner, runner.optimizer, rule)

    def go_on(self) -> None:
        if (found := self.runner.state_writer.found) is not None:
            self.exchanging.restore(found)
        elif self.runner.life.resumed:
            self.exchanging.join(self.memory.newest)
        self.runner.state_writer.at_server(self.base, self.exchanging.worker_state)

    def settle(self, update: int, computed: GradientSum) -> list[Tensor | None]:
        self.exchanging.step(update, computed)
        return []

    def before(self, event: Push, gradients: list[Tensor | None]) -> None:
        pass

    def make(self, draft: State, version: int) -> None:
        rooms, (source, target) = self.memory.rooms, self.memory.places.move(draft, self.me)
        rooms[target].raw.copy_(rooms[source].raw)
        self.exchanging.exchange(rooms[target])
        self.runner.state_writer.at_server(version, self.exchanging.worker_state)


class PeerClient(ShardClient):
    """Brings its gradient to its own replica, and meets another's on the way."""

    def __init__(self, runner: PlanRunner, number: int) -> None:
        super().__init__(runner, number)
        rule = runner.plan.pairing
        assert rule is not None
        assert isinstance(self.memory.places, Replicas)
        self.rule, self.places = rule, self.memory.places
        self.peer = GossipReplica(runner.learner, runner.local_store(), rule, self.memory.rooms)
        self.peer.look(self.places.of(self.memory.twin.current, self.me))

    def go_on(self) -> None:
        if self.runner.life.resumed:
            mine = self.memory.rooms[self.places.of(self.memory.twin.current, self.me)]
            self.runner.learner.set_buffers(mine.buffers)
        if (found := self.runner.state_writer.found) is not None:
            self.peer.restore(found)
        self.runner.state_writer.at_server(self.base, self.peer.worker_state)

    def values(self) -> list[Tensor]:
        with self.lock:
            return middle([[v.clone() for v in (*r.parameters, *r.buffers)] for r in self.memory.all_newest])

    def before(self, event: Push, gradients: list[Tensor | None]) -> None:
        plan, seed = self.runner.plan, self.runner.job.seed
        self.partner, self.gradients = self.rule.partner(self.me, plan.workers, seed, event.batch), gradients

    def make(self, draft: State, version: int) -> None:
        theirs = None if self.partner is None else self.places.change(draft, self.partner)
        self.peer.step(version, self.gradients, self.places.move(draft, self.me), theirs)
        self.runner.state_writer.at_server(version, self.peer.worker_state)


def shard_client(runner: PlanRunner, number: int) -> ShardClient | UnlockedClient:
    if not runner.plan.locked:
        return UnlockedClient(runner, number)
    if runner.plan.gathers:
        return GatheringClient(runner, number)
    if runner.plan.pairing is not None:
        return PeerClient(runner, number)
    return GradientClient(runner, number) if runner.plan.exchanging is None else CentreClient(runner, number)
