"""A run on a cluster, as each of its nodes sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from paceline.runtime.engines.cluster import rendezvous
from paceline.runtime.engines.cluster.head_node import HeadNode
from paceline.runtime.engines.cluster.node import ManagedNodes, NodePart
from paceline.runtime.engines.cluster.other_node import follow
from paceline.runtime.engines.cluster.roster import Roster
from paceline.runtime.engines.cluster.successor import Promoted, Successor
from paceline.runtime.engines.cluster.terms import Terms
from paceline.runtime.engines.outcome import Life, Outcome
from paceline.runtime.links.tcp.frame import LIMITS, Limits
from paceline.runtime.links.tcp.waiting import TIMING


@contextlib.contextmanager
def train(life: Life, roster: Roster, backups: int = 1, nodes: ManagedNodes | None = None) -> Iterator[Outcome]:
    """Run this node's part of the plan. Every node gets the trained model; the head has the whole trace.

    `nodes` are those that the head starts; None if a launcher has started all.

    Raises:
        Promoted: this node leads from now on, by `lead`.
        Dismissed: the run goes on without this node, which may come back.
    """
    setup, deadline = life.setup, life.deadline
    most = 16 * setup.layout.bytes  # of a worker's state, with what optimizers keep
    limits = Limits(LIMITS.ints, max(LIMITS.body, most), max(LIMITS.queue, most))
    terms = Terms.of(setup, roster.nodes)
    roster, hub, pump = rendezvous.open_hub(roster, TIMING, limits, deadline)
    part = NodePart(setup, roster, terms, hub, pump, TIMING, deadline)
    with contextlib.ExitStack() as stack:
        stack.callback(part.close)
        if not roster.leads:
            try:
                outcome = follow(part)
            except Promoted:
                stack.pop_all()
                raise
            yield outcome
            return
        if nodes is not None:
            nodes.start(hub.address)
        node = HeadNode(part, life, backups, nodes)
        stack.callback(node.close)
        yield node.train()


@contextlib.contextmanager
def lead(life: Life, successor: Successor, backups: int = 1, nodes: ManagedNodes | None = None) -> Iterator[Outcome]:
    """Lead a run from now on, whose head is lost."""
    part = replace(
        successor.part, setup=life.setup, roster=replace(successor.part.roster, head_rank=successor.part.roster.rank)
    )
    with contextlib.ExitStack() as stack:
        stack.callback(part.close)
        if nodes is not None:
            nodes.start(part.hub.address)
        node = HeadNode(part, life, backups, nodes, replace(successor, part=part))
        stack.callback(node.close)
        yield node.train()
