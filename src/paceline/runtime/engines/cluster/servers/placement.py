"""Which node runs which shard servers.

Shard s has its primary on node s and its backups on the nodes after it, so no two servers of a shard share a node.
The k-th process of a kind on node r has the number k * nodes + r: every node gives out numbers that no other does.
"""

from __future__ import annotations

from dataclasses import dataclass


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
