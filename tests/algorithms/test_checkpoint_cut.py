"""Runs cut at any moment and resumed by other workers."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

from paceline.algorithms.exploration import Walker
from paceline.algorithms.server.checkpoint_cut import Cut, UnderWay, take_cut
from paceline.algorithms.server.desk import Desk
from paceline.algorithms.server.gates import Backup, StaleSynchronous
from paceline.algorithms.server.messages import Apply, Ask, Command, Compute, Death, Finish, Lease, Pull, Push, Wait
from paceline.algorithms.server.worker import Client
from paceline.plans.methods import Server
from paceline.plans.methods.server import GatheringServer, ParameterServer
from tests.each import each


class Part:
    """A desk, shards and workers, which run in random order; `applied` counts the batches of each shard."""

    def __init__(
        self, workers: int, batches: int, server: Server, shards: int, applied: list[Counter[int]], cut: Cut | None
    ) -> None:
        self.applied = applied  # per shard
        pending_owners = cut.pending_owners if cut else 0
        self.desk = Desk(workers, batches, server.gate, pending_owners)
        self.machine = server.machine(workers, pending_owners)
        self.state = [0] * self.desk.ints
        self.shards = [[0] * self.machine.ints for _ in range(shards)]
        clients = [Client(number, shards) for number in range(workers)]
        self.workers = [Walker[Command](partial(server.program, client)) for client in clients]
        self.dead: set[int] = set()
        if cut is None:
            self.desk.init(self.state)
            for shard in self.shards:
                self.machine.init(shard)
        else:
            cut.restore(self.desk, self.state, self.machine, self.shards)

    def cut(self) -> Cut:
        return take_cut(self.desk, self.state, self.machine, self.shards)

    def do(self, number: int) -> None:
        """Perform the worker's next command, and count the batches of every new version."""
        worker = self.workers[number]
        command: Any = worker.effect
        if isinstance(command, Compute):
            worker.send(command.lease)
        elif isinstance(command, Push | Pull):
            shard = self.shards[command.shard]
            before = self.machine.held(shard)
            action = self.machine.handle(shard, command)  # type: ignore[arg-type]
            if isinstance(action, Apply):
                self.applied[command.shard].update([*before, command.batch])
            worker.send(action)
        else:
            answer = self.desk.handle(self.state, command)
            if isinstance(answer, Wait):
                worker.effect = Ask(number)
            else:
                worker.send(answer if isinstance(answer, Lease) else None)

    def step(self, chance: random.Random) -> bool:
        """Perform one command of a random worker; return whether any worker had one."""
        busy = [n for n, worker in enumerate(self.workers) if n not in self.dead and worker.effect is not None]
        if busy:
            self.do(chance.choice(busy))
        return bool(busy)


WORLDS: list[tuple[Server, int]] = [
    (ParameterServer(), 1),
    (ParameterServer(), 3),
    (ParameterServer(StaleSynchronous(1)), 2),
    (GatheringServer(Backup(2), 2), 1),
]


@each(("server", "shards"), WORLDS)
@each("seed", range(40))
def test_every_batch_is_taken_once_however_often_the_run_is_cut(server: Server, shards: int, seed: int) -> None:
    chance, batches, least = random.Random(seed), 24, server.gathers or 1
    applied: list[Counter[int]] = [Counter() for _ in range(shards)]
    cut: Cut | None = None
    for _ in range(5):
        part = Part(chance.randint(least, 4), batches, server, shards, applied, cut)
        for _ in range(chance.randrange(60)):
            part.step(chance)
            if chance.random() < 0.02 and len(part.workers) - len(part.dead) > least:
                victim = chance.choice([n for n in range(len(part.workers)) if n not in part.dead])
                part.dead.add(victim)
                part.desk.handle(part.state, Death(victim))
        cut = part.cut()
        assert [sum(taken.values()) for taken in applied] == [version * least for version in cut.versions]
        assert cut.finished <= min(sum(taken.values()) for taken in applied)
    part, steps = Part(3, batches, server, shards, applied, cut), 0
    while part.step(chance):
        steps += 1
        assert steps < 10**5, "no one gets any further"
    assert applied == [Counter(range(batches))] * shards


def test_a_batch_that_all_shards_have_is_done_and_one_that_some_have_is_not() -> None:
    part = Part(2, 9, ParameterServer(), 2, [Counter(), Counter()], None)
    for _ in range(4):  # asks, computes, pushes to both shards, and is about to say so
        part.do(0)
    assert part.workers[0].effect == Finish(0, 0)
    for _ in range(3):  # asks, computes, pushes to its first shard, which is shard 1
        part.do(1)
    assert part.cut() == Cut(2, (1, 2), (UnderWay(1, (1,)),))
