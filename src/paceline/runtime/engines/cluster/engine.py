"""A run on a cluster, as each of its nodes sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from paceline.runtime.engines.cluster import rendezvous
from paceline.runtime.engines.cluster.head_node import HeadNode
from paceline.runtime.engines.cluster.node import ManagedNodes, NodePart
from paceline.runtime.engines.cluster.other_node import follow
from paceline.runtime.engines.cluster.roster import Roster
from paceline.runtime.engines.cluster.terms import Terms
from paceline.runtime.engines.life import Life
from paceline.runtime.engines.outcome import Outcome
from paceline.runtime.links.tcp.frame import LIMITS, Limits
from paceline.runtime.links.tcp.waiting import TIMING


@contextlib.contextmanager
def train(life: Life, roster: Roster, backups: int = 1, nodes: ManagedNodes | None = None) -> Iterator[Outcome]:
    """Run this node's part of the plan. Every node gets the trained model; the head has the whole trace.

    `nodes` are those that the head starts; None if a launcher has started all.
    """
    setup, deadline = life.setup, life.deadline
    most = 16 * setup.layout.bytes  # of a worker's state, with what optimizers keep
    limits = Limits(LIMITS.ints, max(LIMITS.body, most), max(LIMITS.queue, most))
    terms = Terms.of(setup, roster.nodes)
    roster, hub, pump = rendezvous.open_hub(roster, TIMING, limits, deadline)
    part = NodePart(setup, roster, terms, hub, TIMING, deadline)
    try:
        if not roster.leads:
            yield follow(part)
            return
        if nodes is not None:
            nodes.start(hub.address)
        node = HeadNode(part, life, backups, nodes)
        try:
            yield node.train()
        finally:
            node.close()
    finally:
        hub.close()
        pump.close()
