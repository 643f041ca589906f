"""A network for the machines of a cluster: it loses, doubles, delays and cuts; processes die, pause, restart and join.

    history = History(Scenario.draw(seed))
    fault = history.run()                 # None: every promise held

Everything is drawn from a seed, so a history that breaks a promise can be told again, step by step (`tell`). What is
checked in every history:

- each batch is in the final state of every shard, exactly once;
- a server that becomes a primary has every push that was acknowledged, as long as each shard lost one server at most
  between two completed re-replications (`Scenario.gentle`);
- the history ends: within a bounded time after the last fault every worker that is alive has finished.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paceline.core.cluster.desk import DeskMachine
from paceline.core.cluster.messages import NONE, Copy, Message, Process, Pushed, Role
from paceline.core.cluster.outputs import (
    Again,
    Apply,
    Changed,
    Compute,
    Finished,
    Forget,
    Lost,
    Output,
    Restore,
    Send,
    Timing,
)
from paceline.core.cluster.shard import ShardMachine
from paceline.core.cluster.worker import Stage, WorkerMachine
from paceline.core.server.gates import Gate
from paceline.core.server.gates.asynchronous import Asynchronous
from paceline.narrative import Scene, format_story

DESK = Process(Role.DESK, 0)
QUIET = 25.0  # seconds of virtual time after which nothing goes wrong any more
END = 150.0  # by when every history has ended
FAULTS = (
    "kill worker",
    "pause worker",
    "kill server",
    "pause server",
    "kill desk",
    "replace desk",
    "cut",
    "join",
    "hint",
)


@dataclass(frozen=True)
class Machines:
    """The classes of machines; a test plants a fault by handing in another one."""

    desk: type[DeskMachine] = DeskMachine
    shard: type[ShardMachine] = ShardMachine
    worker: type[WorkerMachine] = WorkerMachine


@dataclass(frozen=True)
class Scenario:
    """What happens in a history, apart from the chance of every message."""

    seed: int
    workers: int = 3
    shards: int = 2
    backups: int = 1
    batches: int = 16
    #: Chances that a message is lost, or comes twice.
    loss: float = 0.0
    double: float = 0.0
    #: The chance that it comes seconds late.
    late: float = 0.0
    #: When, and what.
    faults: tuple[tuple[float, str], ...] = ()
    #: A server is hurt only while its shard is fully replicated.
    gentle: bool = True
    gate: Gate = field(default_factory=Asynchronous)

    @staticmethod
    def draw(seed: int, workers: int = 3, shards: int = 2, gate: Gate | None = None) -> Scenario:
        """Draw a scenario; most are gentle."""
        chance = random.Random(seed)
        faults, when = [], 0.0
        for _ in range(chance.randrange(8)):  # one soon after another, or anywhere
            when = when + chance.uniform(0.0, 3.0) if chance.random() < 0.5 else chance.uniform(0.0, 12.0)
            faults.append((when, chance.choice(FAULTS)))
        return Scenario(
            seed,
            workers,
            shards,
            backups=chance.choice((1, 1, 1, 2)),
            loss=chance.choice((0.0, 0.02, 0.1)),
            double=chance.choice((0.0, 0.05)),
            faults=tuple(sorted(faults)),
            late=chance.choice((0.0, 0.02)),
            gentle=chance.random() < 0.6,
            gate=gate or Asynchronous(),
        )


class Actor:
    """A process of the history: its machine, and what its engine would hold."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.alive, self.paused_until = True, 0.0
        #: A server's shard, and its batches in the order of their versions.
        self.shard: int = getattr(machine, "shard", NONE)
        self.content: list[int] = []


class History:
    """One history of a small cluster."""

    def __init__(self, scenario: Scenario, machines: Machines | None = None, tell: bool = False) -> None:
        self.scenario, self.machines = scenario, machines or Machines()
        self.chance = random.Random(scenario.seed ^ 0x5EED)
        self.now, self._count = 0.0, 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.timing = Timing(patience=60.0)
        #: Messages are lost, doubled and cut until then.
        self.cuts: list[tuple[float, float, frozenset[Process]]] = []
        self.actors: dict[Process, Actor] = {}
        #: Desks that were replaced although they are alive, and until when; and the views that they have made since.
        self.old_desks: list[tuple[Actor, float]] = []
        self.stray: set[int] = set()
        self.acknowledged: list[set[int]] = [set() for _ in range(scenario.shards)]
        self.fault: str | None = None
        self.scenes: list[Scene] | None = [] if tell else None
        #: A change of view was lossy; a shard was given up; the history has ended.
        self.lossy = self.given_up = self.over = False
        self._next_server, self._next_worker, self._epoch = 0, 0, 1

    def run(self) -> str | None:
        """Run the history to its end; return the promise that was broken, or None."""
        scenario = self.scenario
        members = [
            tuple(self._new_server(shard) for _ in range(1 + scenario.backups)) for shard in range(scenario.shards)
        ]
        self._new_server(NONE)
        self._new_desk(1, members)
        for _ in range(scenario.workers):
            self._new_worker()
        for when, what in scenario.faults:
            self._at(when, self._fault, what)
        while self._queue and self.fault is None and not self.over:
            self.now, _, action, arguments = heapq.heappop(self._queue)
            if self.now > END:
                self.fault = f"after {END:.0f} s it has not ended: " + ", ".join(self._unfinished())
            action(*arguments)
        return self.fault or self._final_fault()

    def tell(self) -> str:
        """Return the story of the history, which must have been made with `tell`."""
        return format_story(
            f"The history of seed {self.scenario.seed}:", self.scenes or [], self.fault or "it ends well"
        )

    # Processes

    def _new_server(self, shard: int) -> int:
        number = self._next_server
        self._next_server += 1
        self._start(Process(Role.SERVER, number), Actor(self.machines.shard(number, self.timing, shard)))
        return number

    def _new_spare(self) -> None:
        self._new_server(NONE)

    def _new_worker(self) -> None:
        number = self._next_worker
        self._next_worker += 1
        process = Process(Role.WORKER, number)
        actor = Actor(self.machines.worker(number, self.scenario.shards, self.timing))
        self._start(process, actor)
        self._perform(process, actor, actor.machine.start(self.now))

    def _new_desk(self, epoch: int, members: list[tuple[int, ...]]) -> None:
        scenario = self.scenario
        if epoch < self._epoch:
            return  # a later one was started meanwhile
        expected = [p.number for p, a in self.actors.items() if p.role is Role.SERVER and a.alive]
        machine = self.machines.desk(
            epoch, scenario.workers + len(scenario.faults), scenario.batches, scenario.gate, 1 + scenario.backups,
            self.timing, members, self.now, expected,
        )  # fmt: skip
        actor = Actor(machine)
        self._start(DESK, actor)
        self._perform(DESK, actor, machine.start(self.now))

    def _start(self, process: Process, actor: Actor) -> None:
        self.actors[process] = actor
        self._at(self.now + self.chance.uniform(0.0, 0.5), self._tick, process, actor)

    def _tick(self, process: Process, actor: Actor) -> None:
        if not actor.alive:
            return
        if actor.paused_until <= self.now:
            self._perform(process, actor, actor.machine.tick(self.now))
            if process.role is Role.WORKER:
                self._transmit(process, DESK, None)  # a sign of life
        self._at(max(self.now, actor.paused_until) + 0.5, self._tick, process, actor)

    # Messages

    def _at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, action, arguments))

    def _transmit(self, sender: Process, to: Process, message: Message | None, body: Any = None) -> None:
        """Put a message on the network; None is a sign of life."""
        chance, troubled = self.chance, self.now < QUIET
        if troubled and chance.random() < self.scenario.loss:
            return
        for _ in range(2 if troubled and chance.random() < self.scenario.double else 1):
            delay = 0.002 + chance.expovariate(1 / 0.02 if troubled else 1 / 0.002)
            if troubled and chance.random() < self.scenario.late:
                delay += chance.uniform(0.0, 5.0)
            self._at(self.now + delay, self._deliver, sender, to, message, body)

    def _deliver(self, sender: Process, to: Process, message: Message | None, body: Any) -> None:
        for start, end, side in self.cuts:
            if start <= self.now < end and (sender in side) != (to in side):
                return
        for old, until in self.old_desks if to == DESK else ():
            if self.now < until and self.chance.random() < 0.5:
                self._handle(to, old, sender, message, body)
        actor = self.actors.get(to)
        if actor is None or not actor.alive:
            return
        if actor.paused_until > self.now:
            self._at(actor.paused_until + 1e-6, self._deliver, sender, to, message, body)
            return
        self._handle(to, actor, sender, message, body)

    def _handle(self, to: Process, actor: Actor, sender: Process, message: Message | None, body: Any) -> None:
        """Let a machine handle a message, and do what it asks for."""
        if message is None:
            if isinstance(actor.machine, DeskMachine):
                actor.machine.alive_sign(self.now, sender)
            return
        if self.scenes is not None:
            self._tell(str(to), f"gets {_say(message)} from {sender}")
        was_primary_of = actor.machine.view if to.role is Role.SERVER and actor.machine.primary else 0
        self._perform(to, actor, actor.machine.handle(self.now, sender, message), body)
        if to.role is Role.SERVER and actor.machine.primary and actor.machine.view != was_primary_of:
            self._check_primary(to, actor)

    def _perform(self, process: Process, actor: Actor, outputs: list[Output], body: Any = None) -> None:
        """Do what a machine has asked for; `body` came with the message that it handled."""
        for output in outputs:
            if isinstance(output, Send):
                self._send(process, actor, output)
            elif isinstance(output, Apply):
                self._apply(process, actor, output)
            elif isinstance(output, Restore):
                actor.shard, actor.content = output.shard, list(body)
            elif isinstance(output, Forget):
                self._forget(process, actor)
            elif isinstance(output, Compute):
                self._at(self.now + self.chance.uniform(0.05, 0.4), self._computed, process, actor)
            elif isinstance(output, Changed | Again | Finished | Lost):
                self._note(process, actor, output)

    def _send(self, process: Process, actor: Actor, send: Send) -> None:
        message = send.message
        if isinstance(message, Pushed) and message.view not in self.stray:
            self.acknowledged[message.shard].add(message.batch)
        self._transmit(process, send.to, message, tuple(actor.content) if isinstance(message, Copy) else None)

    def _apply(self, process: Process, actor: Actor, apply: Apply) -> None:
        actor.content.append(apply.batch)
        if len(actor.content) != apply.version:
            self.fault = f"{process} makes version {apply.version} of {len(actor.content)} batches"
        elif actor.content.count(apply.batch) > 1:
            self.fault = f"{process} applies batch {apply.batch} twice"

    def _forget(self, process: Process, actor: Actor) -> None:
        others = [a for a in self.actors.values() if a.alive and a is not actor and isinstance(a.machine, ShardMachine)]
        if self.scenario.gentle and not any(other.machine.shard == actor.shard for other in others):
            self.fault = f"{process} forgets shard {actor.shard}, and no other server holds it"
        actor.content = []

    def _note(self, process: Process, actor: Actor, output: Changed | Again | Finished | Lost) -> None:
        """Take note of what a machine reports for the record of the run."""
        self._tell(str(process), _say(output))
        if isinstance(actor.machine, DeskMachine) and actor is not self.actors[DESK]:  # it was replaced, and is alive
            self.stray |= {output.view} if isinstance(output, Changed) else set()
        elif isinstance(output, Changed):
            self.lossy |= output.lossy
        elif isinstance(output, Finished):
            self._look_for_the_end()
        elif isinstance(output, Lost):
            self.given_up = self.over = True
            if self.scenario.gentle:
                self.fault = f"shard {output.shard} is given up"

    def _computed(self, process: Process, actor: Actor) -> None:
        if actor.alive:
            if actor.paused_until > self.now:
                self._at(actor.paused_until, self._computed, process, actor)
            elif actor.machine.stage is Stage.COMPUTING:
                self._perform(process, actor, actor.machine.computed(self.now))

    # Faults

    def _fault(self, what: str) -> None:
        chance = self.chance
        self._tell("", what)
        kind, _, role = what.partition(" ")
        if what == "join":
            self._new_worker()
        elif what == "hint":  # a connection that broke although both ends are alive
            if (victim := self._victim(chance.choice(("worker", "server")))) is not None:
                self._hint(victim)
        elif what == "cut":
            side = {p for p in self.actors if p.role is Role.WORKER and chance.random() < 0.4}
            if (server := self._victim("server")) is not None:
                side.add(server)
            self.cuts.append((self.now, self.now + chance.uniform(0.5, 8.0), frozenset(side)))
        elif role == "desk":
            self._replace_desk(kind == "kill")
        elif (victim := self._victim(role)) is not None:
            self._hurt(victim, kind == "kill")

    def _victim(self, role: str) -> Process | None:
        """Choose a process that may be hurt."""
        chosen = Role.WORKER if role == "worker" else Role.SERVER
        found = sorted(p for p, actor in self.actors.items() if p.role is chosen and self._well(p, actor))
        if role == "worker":
            return self.chance.choice(found) if len(found) > 1 else None
        if self.scenario.gentle:
            found = [p for p in found if self._replicated(self.actors[p].machine.shard)]
        return self.chance.choice(found) if found else None

    def _well(self, process: Process, actor: Actor) -> bool:
        cut = any(start <= self.now < end and process in side for start, end, side in self.cuts)
        return actor.alive and actor.paused_until <= self.now and not cut

    def _replicated(self, shard: int) -> bool:
        """Whether all servers of a shard's newest view are well and hold all that the primary has acknowledged."""
        if shard == NONE:
            return False
        servers = {p.number: a for p, a in self.actors.items() if p.role is Role.SERVER and a.machine.shard == shard}
        newest = max(actor.machine.view for actor in servers.values())
        heads = [a.machine for a in servers.values() if a.machine.view == newest and a.machine.primary]
        desk = self.actors[DESK].machine
        if not heads or len(heads[0].members) <= self.scenario.backups or desk.views[shard].view.number != newest:
            return False
        return desk.views[shard].established and all(
            m in servers and self._well(Process(Role.SERVER, m), servers[m]) and servers[m].machine.synced == newest
            for m in heads[0].members
        )

    def _hurt(self, victim: Process, kill: bool) -> None:
        actor = self.actors[victim]
        self._tell(str(victim), "is killed" if kill else "is paused")
        if not kill:
            actor.paused_until = self.now + self.chance.uniform(0.5, 10.0)
            return
        actor.alive = False
        self._look_for_the_end()
        self._hint(victim)
        if victim.role is Role.SERVER:
            self._at(self.now + self.chance.uniform(0.2, 3.0), self._new_spare)

    def _hint(self, victim: Process) -> None:
        """Let some processes notice that their connection to a process has ended."""
        for process, actor in list(self.actors.items()):
            if process.role is not Role.SERVER and process != victim and self.chance.random() < 0.8:
                self._at(self.now + 0.001, self._lost, process, actor, victim)

    def _lost(self, process: Process, actor: Actor, victim: Process) -> None:
        if actor.alive and actor.paused_until <= self.now:
            self._perform(process, actor, actor.machine.lost(self.now, victim))

    def _replace_desk(self, kill: bool) -> None:
        """Start another desk; the old one is dead, or some still reach it for a while, and it decides what it can."""
        old = self.actors[DESK]
        if old.alive and not kill:
            until = self.now + self.chance.uniform(0.5, 8.0)
            self.old_desks.append((old, until))
            self._at(self.now + 0.5, self._old_desk, old, until)
        self.actors[DESK] = Actor(old.machine)
        self.actors[DESK].alive = False
        self._epoch += 1
        members = [() for _ in range(self.scenario.shards)]
        self._at(self.now + self.chance.uniform(0.1, 2.0), self._new_desk, self._epoch, members)

    def _old_desk(self, actor: Actor, until: float) -> None:
        """Let a desk that was replaced do what is due, until it ends."""
        self._perform(DESK, actor, actor.machine.tick(self.now))
        if self.now < until:
            self._at(self.now + 0.5, self._old_desk, actor, until)

    # The end

    def _look_for_the_end(self) -> None:
        workers = (a for p, a in self.actors.items() if p.role is Role.WORKER and a.alive)
        self.over = self.over or all(actor.machine.stage is Stage.FINISHED for actor in workers)

    def _unfinished(self) -> list[str]:
        return [
            f"{process} is {actor.machine.stage.name.lower()}"
            for process, actor in self.actors.items()
            if process.role is Role.WORKER and actor.alive and actor.machine.stage is not Stage.FINISHED
        ]

    def _check_primary(self, process: Process, actor: Actor) -> None:
        if actor.machine.view in self.stray:
            return
        missing = self.acknowledged[actor.machine.shard] - set(actor.content)
        if missing and self.scenario.gentle:
            self.fault = (
                f"{process} becomes the primary of shard {actor.machine.shard} without acknowledged {sorted(missing)}"
            )
        self.acknowledged[actor.machine.shard] -= missing

    def _final_fault(self) -> str | None:
        desk = self.actors[DESK].machine
        for view in desk.views if not self.given_up else ():
            if not view.view.members:
                continue  # a desk that was just started
            content = self.actors[Process(Role.SERVER, view.view.members[0])].content
            missing = set(range(self.scenario.batches)) - set(content)
            if missing:
                self.fault = f"all workers have finished, and shard {view.shard} lacks batches {sorted(missing)}"
        return self.fault

    def _tell(self, who: str, what: str) -> None:
        if self.scenes is not None:
            self.scenes.append(Scene(f"{self.now:7.3f} {who}", what))


def _say(thing: Any) -> str:
    """Return a message in words."""
    fields = ", ".join(f"{name}={value}" for name, value in zip(thing._fields, thing, strict=True))
    return f"{type(thing).__name__}({fields})"


def first_fault(seeds: range, machines: Machines | None = None, **settings: Any) -> tuple[int, str] | None:
    """Return the first seed whose history breaks a promise, with the promise; None if none does."""
    for seed in seeds:
        if fault := History(Scenario.draw(seed, **settings), machines).run():
            return seed, fault
    return None
