"""A method with a server in a virtual world: desk, shards and workers on one clock.

Every shard serves one push at a time, in the order of arrival; under Hogwild all at once. The model of the server is
either its machines alone (`TimedServer`) or every worker's real arithmetic (`engines.arithmetic.servers`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.codecs.catalogue import estimate
from paceline.algorithms.server.desk import Desk
from paceline.algorithms.server.messages import (
    Action,
    Apply,
    Ask,
    Command,
    Compute,
    Death,
    Finish,
    Held,
    Join,
    Lease,
    Pull,
    Push,
    Wait,
)
from paceline.algorithms.server.worker import Client
from paceline.errors import RunFailed
from paceline.plans.methods import Server
from paceline.plans.plan import Plan
from paceline.runtime.engines.arithmetic.pipeline import ReplicaArithmetic
from paceline.runtime.engines.arithmetic.servers import ServerArithmetic
from paceline.runtime.engines.virtual.rows import Rows, row
from paceline.runtime.engines.virtual.world import Clock, ComputeTimes, World, nanoseconds
from paceline.runtime.runs.trace import Kind
from paceline.training.gradients.learner import stated_weight


class ServerModel(Protocol):
    """A server that can be simulated."""

    def base(self, worker: int) -> int:
        """The version that a worker computes with."""

    def pull(self, event: Pull) -> Action: ...

    def push(self, event: Push) -> Action: ...

    def bytes(self, event: Push) -> int:
        """Return the bytes that a push moved, both ways."""


class TimedServer:
    """The shards' machines without parameters: who waits and how old gradients are, not how well they learn."""

    def __init__(self, plan: Plan, method: Server, moved: int) -> None:
        self.machine, self.moved, self.versions = method.machine(plan.workers), moved, method.traits.versioned
        self.states = [[0] * self.machine.ints for _ in range(plan.shards)]
        for state in self.states:
            self.machine.init(state)

    def base(self, worker: int) -> int:
        return self.machine.base(self.states[0], worker) if self.versions else -1

    def pull(self, event: Pull) -> Action:
        return self.machine.handle(self.states[event.shard], event)

    def push(self, event: Push) -> Action:
        action = self.machine.handle(self.states[event.shard], event)
        return Apply(-1, -1) if isinstance(action, Apply) and not self.versions else action

    def bytes(self, event: Push) -> int:
        return self.moved


def run_server(
    plan: Plan,
    method: Server,
    agenda: Agenda,
    world: World,
    size: int,
    arithmetic: ServerArithmetic | ReplicaArithmetic | None,
    rows: Rows,
) -> None:
    """Run a method with a server."""
    ServerOnClock(plan, method, agenda, world, size, arithmetic, rows).run()


class Actor:
    """A worker's program on the clock, and the process that runs it."""

    def __init__(self, method: Server, client: Client, life: int = 0) -> None:
        """`life` is how many processes the worker had before."""
        self.number, self.life, self._program = client.number, life, method.program(client)
        #: The batch that it has leased last; -1 before the first.
        self.batch, self.dead, self.finished = -1, False, False

    def send(self, answer: object) -> Command | None:
        """Send the answer to the last command; return the next one, or None where the program ends."""
        try:
            return self._program.send(answer)
        except StopIteration:
            self.finished = True
            return None


class ServerOnClock:
    """Answers the commands of all workers' programs, each at its time."""

    def __init__(
        self,
        plan: Plan,
        method: Server,
        agenda: Agenda,
        world: World,
        size: int,
        arithmetic: ServerArithmetic | ReplicaArithmetic | None,
        rows: Rows,
    ) -> None:
        self.plan, self.method, self.agenda, self.world, self.arithmetic = plan, method, agenda, world, arithmetic
        pushed = estimate(plan.codec, size)
        self.clock, self.compute_times, self.rows = Clock(), ComputeTimes(world, range(plan.workers)), rows
        #: Bytes of a shard's part of the parameters, on the wire.
        self.piece = round(size / plan.shards)
        #: Bytes of a gradient for one shard: about, where the codec's depend on the gradient.
        self.pushed = round(pushed / plan.shards)
        #: Bytes of the answer to a push, about.
        self.pulled = round(estimate(plan.pull, self.piece))
        self.server: ServerModel = arithmetic or TimedServer(plan, method, self.pushed + self.pulled)
        self.one_at_a_time = method.traits.versioned
        self.desk = Desk(plan.workers, agenda.leases, method.gate)
        self.desk_state = [0] * self.desk.ints
        self.desk.init(self.desk_state)
        #: When each shard has served the pushes that have arrived so far.
        self.free = [0.0] * plan.shards
        self.links = ServerLinks(world, plan.workers)
        #: Pushes that shard 0 has applied.
        self.applied = 0
        #: The actor that has each worker's number now.
        self.actors = [Actor(method, Client(number, plan.shards)) for number in range(plan.workers)]
        #: Workers that the gate made wait, until the desk changes.
        self.waiting: set[int] = set()
        self.answers: dict[type, Callable[[Actor, Any], None]] = {
            Ask: self.lease,
            Finish: self.lease,
            Compute: self.compute,
            Push: self.push,
            Pull: self.pull,
            Join: self.join,
        }

    def run(self) -> None:
        """Schedule all workers, deaths and repairs, and run the clock until no event is left."""
        for number, when in self.world.deaths.items():
            if number < self.plan.workers:
                self.clock.at(when, self._die, number)
        for number, when in self.world.repairs.items():
            if number < self.plan.workers:
                self.clock.at(when, self._repair, number)
        for actor in self.actors:
            self.clock.at(0.0, self.resume, actor, None)
        self.clock.run()
        if self.desk.finished(self.desk_state) < self.agenda.leases:
            raise RunFailed("every worker died; nothing was left to finish the run")

    def resume(self, actor: Actor, answer: object) -> None:
        """Resume a program with the answer to its last command, unless its process has died."""
        if not actor.dead and (command := actor.send(answer)) is not None:
            self.answers[type(command)](actor, command)

    def lease(self, actor: Actor, command: Ask | Finish) -> None:
        """Answer by a lease, or None at the end; where the gate says wait, ask again when the desk has changed."""
        if actor.dead:
            return
        action = self.desk.handle(self.desk_state, command)
        if self.waiting and (isinstance(command, Finish) or isinstance(action, Lease)):
            self._wake()
        if isinstance(action, Wait):
            self.waiting.add(actor.number)
        elif isinstance(action, Lease):
            actor.batch = action.batch
            self.resume(actor, action)
        else:
            self.resume(actor, None)

    def _wake(self) -> None:
        """Let workers that wait ask again, since the desk has changed; not if it has nothing to give to any of them."""
        if self.desk.all_out(self.desk_state):
            return
        waiting, self.waiting = self.waiting, set()
        for number in sorted(waiting):
            self.clock.at(self.clock.now, self.lease, self.actors[number], Ask(number))

    def compute(self, actor: Actor, command: Compute) -> None:
        """Compute all tasks of a lease."""
        number, begins, lease = actor.number, self.clock.now, command.lease
        dies = self.world.deaths.get(number, math.inf) if self.world.deaths else math.inf
        for task in self.agenda.tasks(lease.batch):
            samples, loss, weight = self._samples(task), math.nan, -1.0
            ends = begins + self.compute_times.draw(number, samples)
            if self.arithmetic is not None:
                computed = self.arithmetic.compute(number, self.agenda.task(task))
                loss, weight = computed.mean, stated_weight(self.arithmetic.setup.job, computed)
            base, times = self.server.base(number), (nanoseconds(begins), nanoseconds(ends))
            if dies > ends or dies <= begins:  # the worker that took a dead one's place does not die
                self.rows.add(row(Kind.COMPUTE, number, task, -1, base, -1, times, samples, 0, loss, weight))
            begins = ends
        self.clock.at(begins, self.resume, actor, lease)

    def _samples(self, task: int) -> int:
        """The samples of a task."""
        if self.agenda.shares == 1:
            _, start, stop = self.agenda.span(task)
            return stop - start
        return sum(c.samples for c in self.agenda.task(task))

    def pull(self, actor: Actor, command: Pull) -> None:
        self.clock.at(self.clock.now + self.links.delay(actor.number), self._pulled, actor, command)

    def _pulled(self, actor: Actor, command: Pull) -> None:
        if actor.dead:
            return
        before = self.server.base(actor.number)
        action = self.server.pull(command)
        size = 0 if self.server.base(actor.number) == before else self.piece
        arrives = self.links.answered(actor.number, command.shard, self.clock.now, size)
        self.clock.at(arrives, self.resume, actor, action)

    def push(self, actor: Actor, command: Push) -> None:
        now = self.clock.now
        arrives = self.links.pushed(actor.number, command.shard, now, self._size(actor.number, command.shard))
        self.clock.at(arrives, self._pushed, actor, command, now)

    def _pushed(self, actor: Actor, command: Push, sent: float) -> None:
        """Apply a push that has arrived at its shard, when the shard is free."""
        number, shard, now = actor.number, command.shard, self.clock.now
        if actor.dead:
            return  # the message is lost with its sender
        action = self.server.push(command)
        start = max(now, self.free[shard]) if self.one_at_a_time else now
        end = start + (self.world.update if isinstance(action, Apply) else 0.0)
        self.free[shard] = end
        times = nanoseconds(sent), nanoseconds(end), nanoseconds(start - now)
        if isinstance(action, Apply | Held):
            moved = self.server.bytes(command)
            self.links.copied(shard, now, self._size(number, shard))
            self.rows.add(
                row(Kind.APPLY, number, command.batch, shard, action.base, action.version, times, 0, moved, actor.life)
            )
            if shard == 0 and isinstance(action, Apply):
                self.applied += 1
                if self.arithmetic is not None:
                    self.arithmetic.snapshots.keep(self.agenda.made_by(self.applied), end)
        else:
            self.rows.add(row(Kind.DROP, number, command.batch, shard, times=times[:2], value=actor.life))
        back = self._answered(command) if isinstance(action, Apply) else self.piece
        self.clock.at(self.links.answered(number, shard, end, back), self.resume, actor, action)

    def _size(self, worker: int, shard: int) -> int:
        """The bytes of a worker's gradient for a shard."""
        encoder = self.arithmetic.sides[worker].encoder if self.arithmetic is not None else None
        return encoder.pushed_bytes(shard) if encoder is not None else self.pushed

    def _answered(self, push: Push) -> int:
        """The bytes that a push which made a version is answered with."""
        if self.plan.pull is None or self.arithmetic is None:
            return self.pulled
        return self.server.bytes(push) - self._size(push.worker, push.shard)

    def _die(self, number: int) -> None:
        """A worker's process ends."""
        actor = self.actors[number]
        if actor.finished:
            return
        actor.dead = True
        self.waiting.discard(number)
        self.desk.handle(self.desk_state, Death(number))
        at = nanoseconds(self.clock.now)
        self.rows.add(row(Kind.DEATH, number, actor.batch, times=(at, at)))
        self._wake()

    def _repair(self, number: int) -> None:
        """Start a worker in the place of one that died, unless the run is over."""
        if (dead := self.actors[number]).dead:
            client = Client(number, self.plan.shards, joins=True)
            self.resume(Actor(self.method, client, dead.life + 1), None)

    def join(self, actor: Actor, command: Join) -> None:
        """Let a worker take a dead one's place, as soon as the batch that died with it is finished."""
        if self.desk.finished(self.desk_state) == self.agenda.leases:
            return
        if isinstance(self.desk.handle(self.desk_state, command), Wait):
            again = self.agenda.batch_size * self.world.compute + self.world.update
            self.clock.at(self.clock.now + max(again, 1e-6), self.join, actor, command)
            return
        self.actors[actor.number] = actor
        if isinstance(self.arithmetic, ServerArithmetic):
            self.arithmetic.join(command)
        self.resume(actor, None)


# The network between workers and servers in a virtual world: who waits for whose link.


class ServerLinks:
    """Says when messages between workers and shards arrive, in the order in which they are sent.

    In a world with `copies` the servers lie with workers: every machine sends one message at a time and receives one at
    a time, and what does not leave a machine takes no time. Without, only the link that a rack's workers share is busy.
    """

    def __init__(self, world: World, workers: int) -> None:
        self.world, self.workers = world, workers
        #: When each machine can send, and receive, the next message.
        self._sends, self._receives = [0.0] * workers, [0.0] * workers
        #: When the link of each rack to the others has carried what was put on it so far.
        self._uplinks = [0.0] * (world.rack_of(workers - 1) + 1)

    def pushed(self, worker: int, shard: int, now: float, size: int) -> float:
        """Return when a worker's gradient has arrived at a shard."""
        if not self.world.copies:
            return self._to_rack(worker, now, size)
        return self._between(worker, shard % self.workers, now, size)

    def copied(self, shard: int, now: float, size: int) -> None:
        """Send a gradient on from a shard to its copies: links are busy, and no worker waits."""
        for copy in range(1, min(self.world.copies, self.workers)):
            self._between(shard % self.workers, (shard + copy) % self.workers, now, size)

    def answered(self, worker: int, shard: int, now: float, size: int) -> float:
        """Return when what a shard sends to a worker has arrived."""
        if not self.world.copies:
            return self._to_rack(worker, now, size)
        return self._between(shard % self.workers, worker, now, size)

    def delay(self, worker: int) -> float:
        """Return the seconds of an empty message between a worker and the servers."""
        world = self.world
        return max(world.far_latency, world.latency) if world.rack_of(worker) else world.latency

    def _between(self, sender: int, receiver: int, now: float, size: int) -> float:
        if sender == receiver:
            return now
        start = max(now, self._sends[sender], self._receives[receiver]) if size else now
        end = start + size / self.world.bandwidth
        if size:
            self._sends[sender] = self._receives[receiver] = end
        return end + self.world.latency

    def _to_rack(self, worker: int, now: float, size: int) -> float:
        rack = self.world.rack_of(worker)
        if not rack:
            return now + self.world.travel(size)
        if not size:
            return now + self.delay(worker)
        start = max(now, self._uplinks[rack])
        self._uplinks[rack] = start + size / min(self.world.uplink, self.world.bandwidth)
        return self._uplinks[rack] + self.delay(worker)
