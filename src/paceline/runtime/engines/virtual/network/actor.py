"""A process of a history: its machine, and what its engine would hold."""

from __future__ import annotations

from typing import Any

from paceline.algorithms.cluster.messages import NONE, Process


class Actor:
    """One process."""

    __slots__ = (
        "alive",
        "content",
        "machine",
        "node",
        "paused_until",
        "process",
        "shard",
        "shown",
        "view",
        "waits_since",
    )

    def __init__(self, process: Process, machine: Any, node: int) -> None:
        #: `node` is the machine of the cluster that it runs on.
        self.process, self.machine, self.node = process, machine, node
        self.alive, self.paused_until = True, 0.0
        #: A server's shard, the view that it entered last, and its batches in the order of their versions.
        self.shard: int = getattr(machine, "shard", NONE)
        self.view = 0
        #: When a worker began to wait for servers.
        self.waits_since = 0.0
        self.content: list[int] = []
        #: What a worker was shown last of each shard.
        self.shown: dict[int, int] = {}
