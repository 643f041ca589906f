"""The shard servers of one node, and the desk if it is the head's. A process that ends is started again at once."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from paceline.algorithms.cluster.messages import NONE
from paceline.runtime.engines.cluster.children import Child, Children, ProcessName
from paceline.runtime.engines.cluster.control import ShardStart
from paceline.runtime.engines.cluster.servers.processes import ServerConfig, run_desk, run_server
from paceline.runtime.runs.live import ProcessKind
from paceline.training.parameters.layout import Layout

LIFE = 1 << 12  # numbers of processes of one kind that one node may give out
ATTEMPTS = 16  # times that a node starts a server again; a server that keeps ending would be started for ever


@dataclass
class ServerLauncher:
    """Starts the processes of a node under a plan with servers."""

    children: Children
    #: What they need to reach the others. The desk may move.
    config: ServerConfig
    #: Pickles what a process has to know of the job.
    assignment: Callable[[], bytes]

    def start(self, name: ProcessName, target: Callable[..., None], *arguments: object) -> Child:
        """Start a process. It takes the assignment out of its box, so that the bytes are freed."""
        return self.children.start(name, target, (self.config, [self.assignment()], *arguments))


class NodeServers:
    """The shard servers of one node."""

    def __init__(self, launcher: ServerLauncher, rank: int, nodes: int, layout: Layout, life: int = 0) -> None:
        """`life` is how many nodes have had this rank before: their servers' numbers are not given out again."""
        self.launcher, self.rank, self.nodes, self.layout = launcher, rank, nodes, layout
        #: The servers that run, by their numbers.
        self.running: dict[int, Child] = {}
        self._first = self._started = life * LIFE

    def start(
        self, shards: Sequence[int], spares: int = 0, starts: Mapping[int, tuple[ShardStart, bytes]] | None = None
    ) -> None:
        """Start a server for each of these shards, and some that hold no shard yet; without `starts` at version 0."""
        for shard in (*shards, *[NONE] * spares):
            self._start(shard, (starts or {}).get(shard))
        self._first = self._started

    def ended(self, child: Child) -> None:
        """Start a spare in the place of a server that has ended."""
        for number in [n for n, server in self.running.items() if server is child]:
            del self.running[number]
            if self._started - self._first < ATTEMPTS:
                self._start(NONE)

    def _start(self, shard: int, start: tuple[ShardStart, bytes] | None = None) -> None:
        number = self._started * self.nodes + self.rank
        self._started += 1
        name = ProcessName(ProcessKind.SERVER, number, shard)
        self.running[number] = self.launcher.start(name, run_server, number, shard, self.layout, [start])


def parted(starts: Sequence[ShardStart], content: memoryview) -> dict[int, tuple[ShardStart, bytes]]:
    """Return what the servers of each shard begin with, from the bytes that follow a message."""
    by_shard, at = {}, 0
    for start in starts:
        by_shard[start.shard] = start, bytes(content[at : at + start.size])
        at += start.size
    return by_shard


class DeskSupervisor:
    """Starts the desk at a socket that outlasts it, and the next one when it ends."""

    def __init__(
        self,
        launcher: ServerLauncher,
        listener: socket.socket,
        placement: Placement,
        alive: Callable[[], Collection[int]],
        block: int,
        epoch: int = 0,
    ) -> None:
        """`alive` returns the servers that are believed to be alive, for a desk that has to ask them; `block` is how
        many batches are leased at once; `epoch` is above those of the desks before, if there were any.
        """
        self.launcher, self.listener = launcher, listener
        self.members, self.copies, self.alive, self.block = placement.members(), placement.copies, alive, block
        self.epoch, self._last = epoch, epoch + ATTEMPTS
        self.child: Child | None = None
        if not epoch:
            self.start()

    def start(self) -> None:
        """Start the desk of the next epoch."""
        self.epoch += 1
        members = self.members if self.epoch == 1 else [()] * len(self.members)
        expected = frozenset(self.alive()) if self.epoch > 1 else frozenset()
        arguments = (self.listener, self.epoch, self.copies, members, expected, self.block)
        self.child = self.launcher.start(ProcessName(ProcessKind.DESK, self.epoch), run_desk, *arguments)

    def replace(self) -> None:
        """End a desk that does not answer; the next one is started when it has ended."""
        if self.child is not None:
            self.child.process.kill()

    def ended(self, child: Child) -> None:
        """Start the next desk if this was the last one."""
        if child is self.child and self.epoch < self._last:
            self.start()


# --- Which node runs which shard servers ------------------------------------------------------------------------------
# Shard s has its primary on node s and its backups on the nodes after it, so no two servers of a shard share a node.
# The k-th process of a kind on node r has the number k * nodes + r: every node gives out numbers that no other does.


@dataclass(frozen=True)
class Placement:
    """The servers of a run at its start."""

    nodes: int
    shards: int
    #: Servers that should hold each shard: 1 + backups.
    copies: int
    #: The nodes with which the run begins.
    present: int

    def __post_init__(self) -> None:
        assert self.copies <= self.nodes, "two servers of a shard would share a node"

    def members(self) -> list[tuple[int, ...]]:
        """Return the servers of each shard, its primary first."""
        count = [0] * self.nodes
        members: list[tuple[int, ...]] = []
        for shard in range(self.shards):
            servers = []
            for node in ((shard + copy) % self.present for copy in range(min(self.copies, self.present))):
                servers.append(count[node] * self.nodes + node)
                count[node] += 1
            members.append(tuple(servers))
        return members

    def on(self, node: int) -> list[tuple[int, int]]:
        """Return (number, shard) of every server on a node."""
        members = self.members()
        return sorted((n, shard) for shard, servers in enumerate(members) for n in servers if n % self.nodes == node)

    def spares(self, node: int) -> int:
        """Return how many servers without a shard a node gets that joins: as many as it had, or one for each shard."""
        return len(self.on(node)) if node < self.present else self.shards
