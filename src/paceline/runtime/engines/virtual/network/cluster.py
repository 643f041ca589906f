"""The processes of a history, its clock, and the messages that are under way between them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from math import log
from typing import Any, NamedTuple

from paceline.algorithms.cluster.explore import Machines
from paceline.algorithms.cluster.leases import DeskDuties
from paceline.algorithms.cluster.messages import (
    NONE,
    Copy,
    Message,
    Process,
    Pulled,
    Push,
    Pushed,
    Replicate,
    Replicated,
    Role,
)
from paceline.algorithms.cluster.outputs import (
    Adopt,
    Again,
    Apply,
    Changed,
    ComputeGradient,
    Finished,
    Forget,
    Lost,
    Output,
    Restore,
    Send,
    Timing,
    describe,
)
from paceline.algorithms.cluster.worker import Stage
from paceline.runtime.engines.virtual.network.promises import Actor, Promises, Scenario, parameters_of
from paceline.runtime.engines.virtual.network.replayed import Applied, Gradient, owed_after

DESK = Process(Role.DESK, 0)
TICK = 0.5  # seconds
DEADLINE = 60.0  # seconds that a worker waits for a server
Tell = Callable[[str, str], None]


class Cluster:
    """The processes, by name. A desk is replaced under the same name; the one before may live on."""

    def __init__(
        self, scenario: Scenario, machines: Machines, chance: random.Random, wire: Wire, log: Tell | None
    ) -> None:
        self.scenario, self.machines, self.chance, self.wire, self.log = scenario, machines, chance, wire, log
        self.timing = Timing(stuck=5.0)
        self.actors: dict[Process, Actor] = {}
        self.promises = Promises(scenario, self.actors)
        #: Desks that were replaced although they are alive, and until when some still reach them.
        self.old_desks: list[tuple[Actor, float]] = []
        #: A shard was given up; all workers have finished.
        self.given_up = self.finished = False
        self._servers = self._workers = self._epoch = 0

    # Starting

    def start(self) -> None:
        """Start the first desk, servers and workers."""
        scenario, members = self.scenario, []
        for shard in range(scenario.shards):
            nodes = [(shard + copy) % scenario.nodes for copy in range(1 + scenario.backups)]
            members.append(tuple(self.new_server(node, shard) for node in nodes))
        for spare in range(scenario.spares):
            self.new_server((scenario.shards + spare) % scenario.nodes)
        self.new_desk(1, members)
        for _ in range(scenario.workers):
            self.new_worker()

    def new_server(self, node: int, shard: int = NONE) -> int:
        number, self._servers = self._servers, self._servers + 1
        machine = self.machines.shard(number, self.timing, shard, self.scenario.log_limit, self.scenario.gathers)
        self._enter(Actor(Process(Role.SERVER, number), machine, node))
        return number

    def new_worker(self) -> None:
        number, self._workers = self._workers, self._workers + 1
        machine = self.machines.worker(number, self.scenario.shards, self.timing, bool(self.scenario.gathers))
        actor = Actor(Process(Role.WORKER, number), machine, number % self.scenario.nodes)
        self._enter(actor)
        self.perform(actor, machine.start(self.wire.now))

    def new_desk(self, epoch: int, members: list[tuple[int, ...]]) -> None:
        scenario, now = self.scenario, self.wire.now
        if epoch < self._epoch:
            return  # a later one was started meanwhile
        self._epoch = epoch
        slots, copies = scenario.workers + len(scenario.faults), 1 + scenario.backups
        expected = [p.number for p, a in self.actors.items() if p.role is Role.SERVER and a.alive]
        duties = DeskDuties(slots, scenario.batches, scenario.gate, copies, scenario.block)
        machine = self.machines.desk(epoch, duties, self.timing, members, now, expected)
        actor = Actor(DESK, machine, 0)
        self._enter(actor)
        self.perform(actor, machine.start(now))

    def replace_desk(self, kill: bool) -> None:
        """Start another desk; the old one is dead, or some still reach it for a while, and it decides what it can."""
        old, now = self.actors[DESK], self.wire.now
        if old.alive and not kill:
            until = now + self.chance.uniform(0.5, 8.0)
            self.old_desks.append((old, until))
            self.wire.at(now + TICK, self._old_desk, old, until)
        placeholder = self.actors[DESK] = Actor(DESK, old.machine, 0)
        placeholder.alive = False
        self._epoch += 1
        members: list[tuple[int, ...]] = [() for _ in range(self.scenario.shards)]
        self.wire.at(now + self.chance.uniform(0.1, 2.0), self.new_desk, self._epoch, members)

    def _old_desk(self, actor: Actor, until: float) -> None:
        """Let a desk that was replaced do what is due, until it ends."""
        self.perform(actor, actor.machine.tick(self.wire.now))
        if self.wire.now < until:
            self.wire.at(self.wire.now + TICK, self._old_desk, actor, until)

    def _enter(self, actor: Actor) -> None:
        self.actors[actor.process] = actor
        self.wire.at(self.wire.now + self.chance.uniform(0.0, TICK), self._tick, actor)

    # What happens to a process

    def _tick(self, actor: Actor) -> None:
        wire = self.wire
        if not actor.alive:
            return
        if actor.paused_until > wire.now:  # a process that wakes looks at the clock first, or at its messages
            wire.at(actor.paused_until + self.chance.choice((0.0, 2e-6)), self._tick, actor)
            return
        self.perform(actor, actor.machine.tick(wire.now))
        if actor.process.role is Role.WORKER:
            wire.carry(actor.process, DESK, self._deliver, None, None)  # a sign of life
            if self._waits_too_long(actor):
                return
        wire.at(wire.now + TICK, self._tick, actor)

    def _waits_too_long(self, worker: Actor) -> bool:
        """End a worker that waited for a server until its deadline, as the engine does; another one joins."""
        if worker.machine.stage not in (Stage.PULLING, Stage.PUSHING):
            worker.waits_since = self.wire.now
        if self.wire.now - worker.waits_since <= DEADLINE:
            return False
        if self.log:
            self.log(str(worker.process), "has waited too long for a server, and ends")
        self.new_worker()
        self.kill(worker)
        return True

    def _deliver(self, sender: Process, to: Process, message: Message | None, body: Any) -> None:
        """Let a process handle a message; None is a sign of life."""
        now = self.wire.now
        if self.wire.cuts and self.wire.cuts_off(sender, to):
            return
        for old, until in self.old_desks if to == DESK else ():
            if now < until and self.chance.random() < 0.5:
                self._handle(old, sender, message, body)
        actor = self.actors.get(to)
        if actor is None or not actor.alive:
            return
        if actor.paused_until > now:
            self.wire.at(actor.paused_until + 1e-6, self._deliver, sender, to, message, body)
        else:
            self._handle(actor, sender, message, body)

    def _handle(self, actor: Actor, sender: Process, message: Message | None, body: Any) -> None:
        """Let a machine handle a message, and do what it asks for."""
        machine, now = actor.machine, self.wire.now
        if message is None:
            machine.alive_sign(now, sender)
            return
        self.log(str(actor.process), f"gets {describe(message)} from {sender}") if self.log else None
        self.perform(actor, machine.handle(now, sender, message), body)
        if actor.process.role is Role.SERVER and machine.view != actor.view:
            actor.view = machine.view
            if machine.primary:
                self.promises.enters(actor)

    def perform(self, actor: Actor, outputs: Iterable[Output], body: Any = None) -> None:
        """Do what a machine has asked for; `body` came with the message that it handled."""
        for output in outputs:
            if isinstance(output, Send):
                self._send(actor, output, body)
            elif isinstance(output, Apply):
                actor.content.append(output.batch)
                actor.history.append(Applied(output, body))
                self.promises.applied(actor, output, body.parameters)
            elif isinstance(output, Restore):
                actor.shard, actor.content, actor.history = output.shard, [each.push.batch for each in body], list(body)
            elif isinstance(output, Forget):
                self.promises.forgets(actor)
                actor.shard, actor.content, actor.history = NONE, [], []
            elif isinstance(output, Adopt):
                actor.shown[output.shard], taken = body
                if taken and taken == (actor.process.number, actor.bases[output.shard]):
                    actor.owed = actor.owed_next
            elif isinstance(output, ComputeGradient):
                self.promises.computes(actor, output.batch)
                actor.bases = tuple(actor.machine.base)
                actor.owed_before = actor.owed
                actor.owed_next = owed_after(actor.owed, output.batch, actor.bases)
                self.wire.at(self.wire.now + self.chance.uniform(0.05, 0.4), self._computed, actor)
            elif isinstance(output, Changed | Again | Finished | Lost):
                self._note(actor, output)

    def _send(self, actor: Actor, send: Send, pushed: Any) -> None:
        to, message = send
        if isinstance(message, Pushed):
            self.promises.acknowledges(actor, message)
        elif isinstance(message, Replicated):
            self.promises.confirms(actor, to, message)
        body: Any = None
        if isinstance(message, Pushed | Pulled):
            self.promises.shows(actor, message)
            taken = actor.taken(message.batch) if isinstance(message, Pushed) else None
            body = parameters_of(actor.content, message.version), taken
        elif isinstance(message, Push):
            body = Gradient(actor.shown[message.shard], actor.bases, actor.owed_before)
        elif isinstance(message, Replicate):  # sent before it is applied, or again
            body = actor.history[message.version - 1].gradient if message.version <= len(actor.history) else pushed
        elif isinstance(message, Copy):
            body = tuple(actor.history)
        self.wire.carry(actor.process, to, self._deliver, message, body)

    def _note(self, actor: Actor, output: Changed | Again | Finished | Lost) -> None:
        """Take note of what a machine reports for the record of the run."""
        self.log(str(actor.process), describe(output)) if self.log else None
        replaced = actor.process == DESK and actor is not self.actors[DESK]  # and alive
        if isinstance(output, Changed):
            self.promises.changes(output, actor.machine.views[output.shard].trust, replaced)
        elif isinstance(output, Again):
            self.promises.leases_again(output)
        elif isinstance(output, Finished):
            self.check_for_end()
        elif not replaced:
            self.given_up = True
            if self.scenario.gentle:
                self.promises.break_(f"shard {output.shard} is given up")

    def _computed(self, actor: Actor) -> None:
        if actor.alive:
            if actor.paused_until > self.wire.now:
                self.wire.at(actor.paused_until, self._computed, actor)
            elif actor.machine.stage is Stage.COMPUTING:
                self.perform(actor, actor.machine.computed(self.wire.now))

    def kill(self, actor: Actor) -> None:
        actor.alive = False
        self.check_for_end()

    def check_for_end(self) -> None:
        """Note whether all workers that are alive have finished."""
        workers = (a for a in self.actors.values() if a.process.role is Role.WORKER and a.alive)
        self.finished = all(actor.machine.stage is Stage.FINISHED for actor in workers)


# The clock of a history, and the messages that are under way.

LATEST = 5.0  # seconds


class Cut(NamedTuple):
    """A cut: no message from `sources` reaches `targets` until `end`."""

    end: float
    sources: frozenset[Process]
    targets: frozenset[Process]


class Wire:
    """Carries messages, and knows what time it is."""

    def __init__(self, chance: random.Random, quiet: float, loss: float, double: float, late: float) -> None:
        """Messages are lost, doubled and late with these chances until `quiet`; after it the network is good."""
        self.chance, self.quiet, self.loss, self.double, self.late = chance, quiet, loss, double, late
        self.now = 0.0
        self.cuts: list[Cut] = []
        #: Messages that were sent, and what became of some of them.
        self.sent = self.lost = self.doubled = self.delayed = self.cut = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call a function at that time."""
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, action, arguments))

    def step(self) -> None:
        """Go on to the next thing that happens."""
        self.now, _, action, arguments = heapq.heappop(self._queue)
        action(*arguments)

    def carry(self, sender: Process, to: Process, deliver: Callable[..., None], *arguments: Any) -> None:
        """Put a message on the network: `deliver` is called with these arguments when it arrives."""
        chance = self.chance.random
        self.sent += 1
        if self.now >= self.quiet:
            self.at(self.now + 0.002 - 0.002 * log(1.0 - chance()), deliver, sender, to, *arguments)
            return
        if self.loss and chance() < self.loss:
            self.lost += 1
            return
        copies = 1
        if self.double and chance() < self.double:
            copies = 2
            self.doubled += 1
        for _ in range(copies):
            delay = 0.002 - 0.02 * log(1.0 - chance())
            if self.late and chance() < self.late:
                delay += LATEST * chance()
                self.delayed += 1
            self.at(self.now + delay, deliver, sender, to, *arguments)

    def cuts_off(self, sender: Process, to: Process) -> bool:
        """Whether a message is lost on a link that is cut."""
        self.cuts = [cut for cut in self.cuts if cut.end > self.now]
        is_cut = any(sender in cut.sources and to in cut.targets for cut in self.cuts)
        self.cut += is_cut
        return is_cut
