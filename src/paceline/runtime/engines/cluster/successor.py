"""How a node's part in a run changes while it goes on: it leads, or comes back as one that follows."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.errors import DeathWarning
from paceline.runtime.engines.cluster.control import AGENT, Register, Welcome
from paceline.runtime.engines.cluster.group_head import refuses_newcomers
from paceline.runtime.engines.cluster.remote_workers import ProcessLog, RemoteWorkers
from paceline.runtime.engines.cluster.rendezvous import CLOCKS, Dismissed, Node
from paceline.runtime.engines.cluster.second_home import RunCopy, earlier_lives
from paceline.runtime.engines.workers.state_buffers import SnapshotFile
from paceline.runtime.links.tcp.handshake import Peer
from paceline.runtime.runs.trace import Columns, Kind

if TYPE_CHECKING:
    from paceline.runtime.engines.cluster.agent import Agent
    from paceline.runtime.engines.cluster.node import NodePart
    from paceline.runtime.engines.cluster.seat import Seat
    from paceline.runtime.links.tcp.hub import Event


@dataclass(frozen=True)
class Successor:
    """A node with its processes, which go on, and what it knows of the run."""

    part: NodePart
    agent: Agent
    seat: Seat
    copy: RunCopy
    #: What a head before has said when this node came.
    welcome: Welcome
    #: What has happened to its connections since then.
    events: list[Event]


class Promoted(Exception):
    """The head is lost, and this node leads the run from now on: it needs a folder, as the head had."""

    def __init__(self, successor: Successor) -> None:
        self.successor = successor
        super().__init__("this node leads the run from now on")


def dismissed(part: NodePart, seat: Seat | None, why: str) -> Dismissed:
    """Return why the run goes on without this node, and where it is let in again.

    An agent of Ray is replaced by Ray, and a launcher starts the node of a group again, if it does at all.
    """
    roster, plan = part.roster, part.setup.plan
    launched = plan.method.server is None and not roster.open
    if roster.apart or launched or refuses_newcomers(plan):
        return Dismissed(why, None)
    roster = replace(roster, store=None)
    if seat is not None:
        others = {each.rank: each.address for each in seat.standing.nodes if each.rank != roster.rank}
        head = seat.machine.head if seat.machine.head in others else min(others, default=roster.head_rank)
        address = others.pop(head, roster.head)
        roster = replace(roster, head_rank=head, head=address, others=tuple(others.values()))
    return Dismissed(why, roster)


# --- What a node does first that leads in the place of another one: it continues the records of that head -------------


def nodes_of(successor: Successor) -> dict[int, Node]:
    """Return the nodes of the head before, as this one knows them."""
    part, seat = successor.part, successor.seat
    nodes = {}
    for each in seat.standing.nodes:
        if each.rank != part.roster.rank:
            register = Register(part.terms, each.boot, each.process, each.address)
            peer = Peer(AGENT, each.rank, each.incarnation)
            nodes[each.rank] = Node(peer, register, each.ahead - seat.ahead, clocks=CLOCKS)
    return nodes


def continue_records(
    successor: Successor, workers: RemoteWorkers, processes: ProcessLog, snapshots: SnapshotFile | None
) -> None:
    """Continue the events, the trace, the deaths and the snapshots of the head before."""
    seat, copy, theirs = successor.seat, successor.copy, successor.agent.snapshots
    for event in copy.events:
        processes.events.add(event)
    if snapshots is not None and theirs is not None:
        for updates in copy.snapshots:
            snapshots.write(updates, theirs.read(updates))
    rows = _rows_of(copy, workers.setup.plan.method.server is not None)
    workers.deaths = list(seat.standing.deaths)
    if seat.standing.origin is not None:
        workers.training_continues(seat.standing.origin - seat.ahead, rows, seat.standing.deaths)
    dead = {death.worker for death in seat.standing.deaths}
    for rank in sorted(set(range(workers.count)) - set(seat.ranks)):
        workers.dead.add(rank)
        if rank not in dead and seat.standing.facts(rank) is not None:
            processes.node_lost(rank, "cannot be reached any longer")
            workers.died(rank, "is gone, which led the run")


def announce(successor: Successor, folder: Path | None) -> None:
    """Say that this node leads now."""
    ranks = ", ".join(map(str, successor.seat.ranks))
    where = f"; the run's folder is {folder} from now on" if folder is not None else ""
    what = f"the head is lost: rank {successor.part.roster.rank} leads from now on, of ranks {ranks}{where}"
    warnings.warn(what, DeathWarning, stacklevel=2)


def _rows_of(copy: RunCopy, served: bool) -> Columns:
    """Return the rows that the copy has, but for those of this life's pushes, which are read of the shards anew."""
    rows = copy.rows
    earlier = np.arange(len(rows)) < len(earlier_lives(rows))
    return rows[earlier | ~np.isin(rows["kind"], (Kind.APPLY, Kind.DROP, Kind.PULL))] if served else rows
