"""Histories of runs whose heads die, sleep and are cut off, drawn from seeds.

Every node has the machine that decides who leads. The head leases batches; a node that has computed one writes a row,
and keeps it. The head puts the rows of all into its trace, and sends a copy of that to its deputy. A head that takes
over begins with its copy, and asks every node for the rows that the copy lacks.

Some runs are open: they begin with one node, and others join while they go on, into ranks that are free or whose nodes
were lost. A node that the run has gone on without comes back, as the next node of its rank: it asks every node that it
knows, one of which may come to lead when another one has let it in already. Some runs are resumed: the trace of their
first head begins with rows of an earlier life.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.algorithms.cluster import succession
from paceline.algorithms.cluster.numbered_rows import NumberedRows, Writer
from paceline.algorithms.cluster.succession import (
    NO_ROLL,
    Alone,
    Confirmed,
    Deposed,
    Lead,
    Roll,
    Succession,
    first_roll,
)

SILENCE, PATIENCE, TICK, RETRY = 2.5, 10.0, 0.5, 1.0
EARLIER = -1
FAULTS = ("kill", "kill", "kill the head", "stop", "stop the head", "cut in two", "cut one off")


class Lease(NamedTuple):
    batch: int


class Rows(NamedTuple):
    """Rows of a node from this number on; as the answer to `Resend`, with the batch that it computes."""

    first: int
    batches: tuple[int, ...]
    answers: bool = False
    doing: int | None = None


class Copy(NamedTuple):
    """New rows of the head's trace, and how many of each writer are in it then; all of it if `whole`."""

    rows: tuple[tuple[int, int], ...]
    counts: dict[Writer, int]
    whole: bool


class Result(NamedTuple):
    """The run is done."""


class Resend(NamedTuple):
    """The head asks for the rows from this number on."""

    first: int


class Trace:
    """The rows that a head has, each as (number of a node, batch)."""

    def __init__(self, rows: list[tuple[int, int]], counts: dict[Writer, int]) -> None:
        self.rows, self.numbered = list(rows), NumberedRows(counts)

    def count(self, number: int) -> int:
        """Return how many rows of a node are there."""
        return self.numbered.counts.get(Writer(number, 0), 0)

    def add(self, number: int, rows: Rows) -> list[tuple[int, int]]:
        """Take rows of a node; return those that are new."""
        known = self.numbered.known(Writer(number, 0), rows.first, len(rows.batches))
        new = [(number, batch) for batch in rows.batches[known:]]
        self.rows += new
        return new


class Node:
    """A node: its part of the succession, its rows and, if it leads, what a head has."""

    #: A planted fault is another class.
    machine: type[Succession] = Succession

    def __init__(self, world: World, number: int, roll: Roll) -> None:
        self.world, self.number, self.rank = world, number, number % world.nodes
        #: Nodes that the run has gone on without, and that have asked this one who leads.
        self.returning: list[Node] = []
        #: The node that this one is since it has come back.
        self.back: Node | None = None
        self.machine_ = self.machine(number, world.nodes, PATIENCE, roll)
        #: The newest node of each rank, as the newest roll says, and the one that this node is connected with.
        self.newest = {each % world.nodes: each for each in roll.members}
        self.peers = dict(self.newest)
        self.alive, self.ended, self.wakes = True, "", 0.0
        self.rows: list[int] = []
        self.doing: int | None = None
        #: The copy of the head's trace, as its deputy has it; every node has what came before this life.
        self.copy = Trace(world.earlier, {})
        self.trace: Trace | None = Trace(world.earlier, {}) if self.machine_.leads else None
        #: Of a head: what each rank computes, those whose rows have not come yet, or were not asked for, and the deputy
        #: that has a copy.
        self.leased: dict[int, int] = {}
        self.unanswered: set[int] = set()
        self.unrequested: set[int] = set()
        self.copied: int | None = None
        self.finished = False

    @property
    def runs(self) -> bool:
        return self.alive and not self.ended

    def begin(self) -> None:
        self.perform([])
        self.world.later(TICK, self.tick)

    def tick(self) -> None:
        if not self.runs:
            return
        if self.wakes > self.world.now:
            self.world.at(self.wakes, self.tick)
            return
        self.perform(self.machine_.tick(self.world.now))
        self.world.reach_again(self)
        self.world.later(TICK, self.tick)

    def lost(self, number: int, dead: bool) -> None:
        """A connection has ended, or could not be made."""
        if not self.runs:
            return
        if self.wakes > self.world.now:
            self.world.at(self.wakes, self.lost, number, dead)
            return
        if self.machine_.roll == NO_ROLL:
            self.go("it has lost who let it in")
        elif self.newest.get(number % self.world.nodes) == number:
            self.perform(self.machine_.lost(self.world.now, number, dead))

    def receive(self, sender: int, message: Any, newest: dict[int, int]) -> None:
        """Take a message; a roll comes with the newest node of each rank."""
        if not self.runs:
            return
        if self.wakes > self.world.now:
            self.world.at(self.wakes, self.receive, sender, message, newest)
            return
        rank = sender % self.world.nodes
        if isinstance(message, succession.Roll | succession.Vote | succession.Accepted | succession.Later):
            if sender < self.newest.get(rank, -1):
                return
            self.peers[rank] = sender
            if isinstance(message, succession.Vote):
                self.learn(newest)
            before = self.machine_.roll
            outputs = self.machine_.handle(self.world.now, rank, message)
            if isinstance(message, Roll) and (self.machine_.roll != before or message == before):
                self.newest = newest
            self.perform(outputs)
            if isinstance(message, succession.Accepted) and self.machine_.leads and sender in self.unrequested:
                assert self.trace is not None
                self.unrequested.discard(sender)
                self.request_rows(sender, self.trace.count(sender))
        elif isinstance(message, Rows):
            self.take_rows(sender, message)
        elif self.is_head(sender):
            self.execute(sender, message)
        self.lead()

    def learn(self, newest: dict[int, int]) -> None:
        """Take what a voter knows of nodes: it may have accepted a later roll."""
        for rank, number in newest.items():
            self.newest[rank] = max(number, self.newest.get(rank, number))

    def is_head(self, sender: int) -> bool:
        rank = sender % self.world.nodes
        return self.machine_.head == rank and self.peers.get(rank) == sender and not self.machine_.seeks

    def post(self, rank: int, message: Any) -> None:
        """Send a message to the node of a rank."""
        if rank == self.rank:
            self.execute(self.number, message)
            return
        number = self.peers.get(rank)
        if number is None or frozenset((self.number, number)) not in self.world.connected:
            number = self.newest.get(rank)
        if number is not None:
            self.world.send(self.number, number, message)

    def execute(self, head: int, message: Lease | Copy | Resend | Result) -> None:
        if isinstance(message, Result):
            self.ended = "done"
        elif isinstance(message, Lease):
            self.doing = message.batch
            self.world.later(self.world.chance.uniform(0.05, 0.4), self.computed, message.batch)
        elif isinstance(message, Resend):
            self.world.send(self.number, head, Rows(message.first, tuple(self.rows[message.first :]), True, self.doing))
        elif message.whole:
            self.copy = Trace(list(message.rows), message.counts)
        else:
            self.copy.rows += message.rows
            self.copy.numbered.counts = dict(message.counts)

    def computed(self, batch: int) -> None:
        if not self.runs:
            return
        if self.wakes > self.world.now:
            self.world.at(self.wakes, self.computed, batch)
            return
        self.rows.append(batch)
        self.doing = None
        self.world.applied(self.number, batch)
        rows = Rows(len(self.rows) - 1, (batch,))
        if self.trace is not None:
            self.take_rows(self.number, rows)
            self.lead()
        elif not self.machine_.seeks:
            self.post(self.machine_.head, rows)

    # --- the head ---

    @property
    def is_whole(self) -> bool:
        """Whether every rank belongs to the run of this head, and has said what it has."""
        roll = self.machine_.roll
        return self.runs and roll.confirmed and len(roll.members) == self.world.nodes and not self.unanswered

    def perform(self, outputs: list[Any]) -> None:
        for output in outputs:
            if isinstance(output, succession.SendToNode):
                self.post(output.to, output.message)
            elif isinstance(output, Lead):
                self.take_over()
            elif isinstance(output, Confirmed):
                if output.roll.final and not self.finished:
                    self.finished = True
                    self.world.finishes(self)
                    for number in set(output.roll.members) - {self.number}:
                        self.post(number % self.world.nodes, Result())
                    self.ended = "done"
            elif isinstance(output, Deposed | Alone):
                self.go(str(output))
        self.lead()

    def go(self, why: str) -> None:
        """End, and come back."""
        self.ended = why
        self.world.leaves(self)
        self.world.later(RETRY, self.world.comes, self)

    def welcome(self, number: int) -> None:
        """Let a node belong to the run, as the newest of its rank."""
        rank = number % self.world.nodes
        self.newest[rank] = self.peers[rank] = number
        self.leased.pop(rank, None)
        self.perform(self.machine_.join(self.world.now, number))

    def take_over(self) -> None:
        self.trace, self.leased = Trace(self.copy.rows, self.copy.numbered.counts), {}
        self.unanswered = set(self.machine_.roll.members)
        self.unrequested = self.unanswered - {self.number}
        first = self.trace.count(self.number)
        self.take_rows(self.number, Rows(first, tuple(self.rows[first:]), True, self.doing))
        for before in self.returning:
            self.answer(before)

    def answer(self, before: Node) -> None:
        """Say to a node that has asked who leads that this one does: it comes, unless another one has let it in."""
        self.world.later(self.world.chance.uniform(0.01, 0.1), self.world.comes, before)

    def request_rows(self, number: int, first: int) -> None:
        """Ask a node that has accepted the roll for its rows."""
        self.post(number % self.world.nodes, Resend(first))

    def take_rows(self, number: int, rows: Rows) -> None:
        if self.trace is None or number not in self.machine_.roll.members:
            return
        rank = number % self.world.nodes
        if rows.answers:
            self.unanswered.discard(number)
            if rows.doing is not None:
                self.leased[rank] = rows.doing
        elif number in self.unanswered:
            return  # it is among those that are asked for
        new = self.trace.add(number, rows)
        if self.leased.get(rank) in rows.batches:
            del self.leased[rank]
        self.copies(new)

    def copies(self, new: list[tuple[int, int]]) -> None:
        assert self.trace is not None
        to, counts = self.machine_.deputy, dict(self.trace.numbered.counts)
        if to is not None:
            whole = to != self.copied
            self.post(to, Copy(tuple(self.trace.rows if whole else new), counts, whole))
        self.copied = to

    def lead(self) -> None:
        """Do what a head has to do now."""
        if self.trace is None or not self.runs:
            return
        roll = self.machine_.roll
        ranks = {number % self.world.nodes for number in roll.members}
        self.unanswered &= set(roll.members)
        self.leased = {rank: batch for rank, batch in self.leased.items() if rank in ranks}
        if self.machine_.deputy != self.copied:
            self.copies([])
        if self.unanswered:
            return
        done = {batch for _, batch in self.trace.rows}
        if len(done) == len(self.world.batches):
            if not roll.final:
                self.perform(self.machine_.finish(self.world.now))
            return
        left = [b for b in self.world.batches if b not in done and b not in self.leased.values() and b < self.world.end]
        for rank in sorted(ranks - self.leased.keys())[: len(left)]:
            self.leased[rank] = left.pop(0)
            self.post(rank, Lease(self.leased[rank]))


class World:
    """The nodes, what is under way between them, and what goes wrong."""

    def __init__(self, seed: int, node: type[Node] = Node, orderly: bool = False) -> None:
        """`orderly` is whether nodes sleep one after another, each when all of those before are back."""
        self.chance = chance = random.Random(seed)
        self.nodes, batches = chance.choice((2, 3, 3, 3, 4, 5)), chance.choice((8, 16, 30))
        #: Rows of an earlier life, which no node of this one has written.
        self.earlier = [(EARLIER, batch) for batch in range(-(seed % 4), 0)]
        self.batches = range(-len(self.earlier), batches)
        self.now, self._count = 0.0, 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.node, self.open = node, chance.random() < 0.5
        #: Batches from this one on are leased later.
        self.end = batches
        if orderly:
            self.nodes, self.open, self.end = max(3, self.nodes), False, 0
        first = first_roll(range(1 if self.open else self.nodes))
        #: Every node that there has been, by its number.
        self.all = {number: node(self, number, first) for number in first.members}
        #: Pairs that are connected, and when the last message of each direction arrives.
        self.connected = {frozenset((0, number)) for number in first.members[1:]}
        self.arrives: dict[tuple[int, int], float] = {}
        #: Pairs between which nothing passes, until when; every connection has a number of its own.
        self.cuts: dict[frozenset[int], float] = {}
        self.serial: Counter[frozenset[int]] = Counter()
        self.parted: dict[frozenset[int], float] = {}
        self.log: list[str] = []
        self.done: list[tuple[Node, float]] = []
        self.applications: list[tuple[float, int, int]] = []
        span = 0.3 * batches / self.nodes + 1.0
        self.orderly, self.faults = orderly, chance.choice((1, 1, 2, 3))
        for _ in range(0 if orderly else self.faults):
            self.at(chance.uniform(0.0, span), self.fault, chance.choice(FAULTS))
        if orderly:
            self.at(chance.uniform(0.0, 1.0), self.next_sleep, 3)
        for each in list(self.all.values()):
            each.begin()
        for _ in range(chance.randint(1, self.nodes) if self.open else 0):
            self.at(chance.uniform(0.0, span), self.comes, None)

    def at(self, when: float, what: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, what, arguments))

    def later(self, seconds: float, what: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + seconds, what, *arguments)

    def run(self) -> str:
        """Return what has gone wrong; empty if nothing."""
        try:
            while self._queue and self.now < 300.0:
                self.now, _, what, arguments = heapq.heappop(self._queue)
                what(*arguments)
            return self.check()
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    # --- the network ---

    def send(self, sender: int, to: int, message: Any) -> None:
        pair = frozenset((sender, to))
        if pair not in self.connected:
            if isinstance(message, succession.Vote):
                self.later(self.chance.uniform(0.01, 0.1), self.dial, sender, to, message)
            return
        when = self.arrives[sender, to] = max(
            self.arrives.get((sender, to), 0.0), self.now + self.chance.expovariate(50.0)
        )
        newest = dict(self.all[sender].newest)
        self.at(when, self.deliver, sender, to, message, self.serial[pair], newest)

    def deliver(self, sender: int, to: int, message: Any, serial: int, newest: dict[int, int]) -> None:
        pair = frozenset((sender, to))
        if self.serial[pair] != serial or pair not in self.connected:
            return
        if (until := self.cuts.get(pair, 0.0)) > self.now:
            self.at(until, self.deliver, sender, to, message, serial, newest)
            return
        self.log.append(f"{self.now:.2f} {sender} -> {to} {message}")
        self.all[to].receive(sender, message, newest)

    def dial(self, sender: int, to: int, message: Any) -> None:
        """Connect, and send a message; whoever cannot be reached is lost, and surely dead if its machine says so."""
        pair, there = frozenset((sender, to)), self.all[to]
        if not self.all[sender].runs:
            return
        if pair in self.connected:
            self.send(sender, to, message)
        elif self.cuts.get(pair, 0.0) > self.now or there.wakes > self.now:
            self.later(5.0, self.all[sender].lost, to, False)
        elif not there.runs:
            self.all[sender].lost(to, False)  # it was not connected when it died: it may have voted before
        else:
            self.connect(pair)
            self.send(sender, to, message)

    def connect(self, pair: frozenset[int]) -> None:
        self.connected.add(pair)
        self.serial[pair] += 1

    def reach_again(self, node: Node) -> None:
        """A head dials those that it has lost, so that one of them tells it of a later term."""
        if not node.machine_.leads:
            return
        for number in node.newest.values():
            other, pair = self.all[number], frozenset((node.number, number))
            if other is node or pair in self.connected or not other.runs or other.wakes > self.now:
                continue
            if (
                self.parted.get(pair, 0.0) + 1.0 <= self.now >= self.cuts.get(pair, 0.0)
                and number not in node.machine_.dead
            ):
                self.connect(pair)
                node.peers[other.rank] = number
                node.perform(node.machine_.reconnected(other.rank))

    # --- who comes ---

    def comes(self, before: Node | None, until: float = 0.0) -> None:
        """Let a new node join where a run is led, or one come back that the run has gone on without."""
        until = until or self.now + 60.0
        if before is not None and before.back is not None:
            return
        if before is not None and before.wakes > self.now:
            self.at(before.wakes, self.comes, before, until)
            return
        reached = [each for each in self.all.values() if self._reaches(before, each)]
        leading = [each for each in reached if each.machine_.leads and each.trace is not None and not each.finished]
        if before is None:
            told = leading  # by the screens of machines that lead, or believe that they do
        else:
            for each in reached:
                each.returning += [before] if before not in each.returning else []
            heads = {each.newest.get(each.machine_.head) for each in reached if not each.machine_.seeks}
            told = [each for each in leading if each.number in heads]
        if told:
            head = self.chance.choice(told)
            taken = {number % self.nodes for number in head.machine_.roll.members}
            free = [rank for rank in range(self.nodes) if rank not in taken]
            if before is None and free:
                self._join(head, min(free, key=lambda rank: (rank in head.newest, rank)))
                return
            if before is not None and before.rank in free:
                before.back = self._join(head, before.rank)
                return
        if before is not None and self.now < until:
            self.later(RETRY, self.comes, before, until)

    def _reaches(self, before: Node | None, there: Node) -> bool:
        if not there.runs or there.wakes > self.now:
            return False
        if before is None:
            return True
        return (
            there.number in before.newest.values()
            and self.cuts.get(frozenset((before.number, there.number)), 0.0) <= self.now
        )

    def _join(self, head: Node, rank: int) -> Node:
        number = head.newest[rank] + self.nodes if rank in head.newest else rank
        while number in self.all:  # two heads that do not know of each other have given out one each
            number += self.nodes
        self.log.append(f"{self.now:.2f} {number} joins {head.number}")
        node = self.all[number] = self.node(self, number, NO_ROLL)
        node.newest = dict(head.newest) | {rank: number}
        node.peers[head.rank] = head.number
        self.connect(frozenset((number, head.number)))
        head.welcome(number)
        node.begin()
        return node

    def part(self, pair: frozenset[int], after: float, dead: bool = False) -> None:
        """End a connection; both ends take note of it, at different moments, before they connect again."""
        self.later(after, self._end, pair, self.serial[pair], dead)

    def _end(self, pair: frozenset[int], serial: int, dead: bool) -> None:
        if self.serial[pair] != serial or pair not in self.connected:
            return
        self.connected.discard(pair)
        self.parted[pair] = self.now
        for rank in pair:
            (other,) = pair - {rank}
            self.later(self.chance.uniform(0.0, 0.8), self.all[rank].lost, other, dead)

    # --- faults ---

    def fault(self, what: str) -> None:
        running = [each for each in self.all.values() if each.runs]
        if not running:
            return
        victim = self.chance.choice(running)
        if what.endswith("the head"):
            victim = next((each for each in running if each.machine_.leads), victim)
        self.log.append(f"{self.now:.2f} {what}: {victim.number}")
        if what.startswith("kill"):
            self.kill(victim)
        elif what.startswith("stop"):
            self.stop(victim, self.chance.choice((1.0, 4.0, 8.0, 30.0)))
        else:
            numbers = sorted(self.all)
            half = self.chance.sample(numbers, len(numbers) // 2)
            one = {victim.number} if what == "cut one off" else set(half)
            until = self.now + self.chance.choice((1.0, 4.0, 8.0, 30.0))
            for pair in [frozenset((a, b)) for a in one for b in set(numbers) - one]:
                self.cuts[pair] = max(until, self.cuts.get(pair, 0.0))
                if pair in self.connected and until - self.now > SILENCE:
                    self.part(pair, SILENCE)

    def next_sleep(self, times: int) -> None:
        """Let a node sleep as soon as all belong to the run, so many times one after another."""
        whole = [each for each in self.all.values() if each.machine_.leads and each.is_whole]
        asleep = [each for each in self.all.values() if each.runs and each.wakes > self.now]
        if not whole or asleep or max(self.cuts.values(), default=0.0) > self.now:
            self.later(RETRY, self.next_sleep, times)
            return
        self.end = self.batches.stop * (4 - times) // 4
        if times:
            self.fault(self.chance.choice(("stop", "stop the head", "stop the head", "cut one off")))
            self.later(self.chance.uniform(2 * SILENCE, 3 * PATIENCE), self.next_sleep, times - 1)

    def kill(self, node: Node) -> None:
        node.alive = False
        for pair in [pair for pair in self.connected if node.number in pair]:
            cut = self.cuts.get(pair, 0.0) > self.now
            self.part(pair, SILENCE if cut else self.chance.uniform(0.0, 0.1), dead=not cut)

    def leaves(self, node: Node) -> None:
        """A node ends by itself; it says so to those that are connected."""
        for pair in [pair for pair in self.connected if node.number in pair]:
            self.part(pair, self.chance.uniform(0.0, 0.1), dead=True)

    def stop(self, node: Node, seconds: float) -> None:
        node.wakes = self.now + seconds
        if seconds > SILENCE:
            for pair in [pair for pair in self.connected if node.number in pair]:
                self.part(pair, SILENCE)

    # --- what must hold ---

    def applied(self, number: int, batch: int) -> None:
        self.log.append(f"{self.now:.2f} {number} applies {batch}")
        self.applications.append((self.now, number, batch))

    def finishes(self, node: Node) -> None:
        """A head may give the run its result."""
        assert node.trace is not None
        batches = Counter(batch for _, batch in node.trace.rows)
        wrong = {b: batches[b] for b in self.batches if batches[b] != 1}
        assert not wrong, f"the trace of node {node.number} has batches {wrong} not once"
        members = set(node.machine_.roll.members)
        for number in members:
            own = [batch for other, batch in node.trace.rows if other == number]
            assert own == self.all[number].rows, f"the trace lacks or repeats rows of node {number}"
        times = Counter(batch for _, number, batch in self.applications if number in members)
        times.update(batch for _, batch in self.earlier)
        twice = [batch for batch, count in times.items() if count > 1]
        assert not twice, f"batches {twice} were applied twice"
        for other, when in self.done:
            if other.machine_.roll[:2] <= node.machine_.roll.base:
                continue  # it had asked when every update was made, so both have the same result
            late = [a for a in self.applications if a[0] > when and a[1] in members]
            assert not (other.alive and late), f"nodes {other.number} and {node.number} both finish the run"
        self.done.append((node, self.now))

    def check(self) -> str:
        """Look at the end: a run that could finish has."""
        nodes = self.all.values()
        leaders = [each for each in nodes if each.runs and each.machine_.leads and each.trace is not None]
        unfinished = [each.number for each in leaders if not each.finished]
        if unfinished:
            return f"nodes {unfinished} lead for ever"
        alone = self.faults == 1 and self.nodes > 2 and not self.open
        if (self.orderly or alone) and not self.done:
            return "the run has ended, although a majority lived"
        return ""
