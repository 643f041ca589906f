"""What a node does first that leads in the place of another one: it continues the records of that head."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from paceline.errors import DeathWarning
from paceline.runtime.engines.cluster.control import AGENT, Register
from paceline.runtime.engines.cluster.process_log import ProcessLog
from paceline.runtime.engines.cluster.remote_workers import RemoteWorkers
from paceline.runtime.engines.cluster.rendezvous import CLOCKS, Node
from paceline.runtime.engines.cluster.second_home import RunCopy
from paceline.runtime.engines.cluster.successor import Successor
from paceline.runtime.engines.workers.state_buffers import SnapshotFile
from paceline.runtime.links.tcp.handshake import Peer
from paceline.runtime.runs.trace import Columns, Kind


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
    workers.training_continues(seat.standing.origin - seat.ahead, rows, seat.standing.deaths)
    known = {death.worker for death in seat.standing.deaths}
    if workers.setup.plan.method.server is None:  # whose workers are not replaced
        workers.dead |= known
    for rank in sorted(set(range(workers.count)) - set(seat.machine.roll.ranks)):
        workers.dead.add(rank)
        if rank not in known:
            processes.node_lost(rank, "cannot be reached any longer")
            workers.died(rank, "is gone, which led the run")


def announce(successor: Successor, folder: Path | None) -> None:
    """Say that this node leads now."""
    ranks = ", ".join(map(str, successor.seat.machine.roll.ranks))
    where = f"; the run's folder is {folder} from now on" if folder is not None else ""
    what = f"the head is lost: rank {successor.part.roster.rank} leads from now on, of ranks {ranks}{where}"
    warnings.warn(what, DeathWarning, stacklevel=2)


def _rows_of(copy: RunCopy, served: bool) -> Columns:
    """Return the rows that the copy has, but for those of pushes, which are read of the shards anew."""
    rows = copy.rows
    return rows[~np.isin(rows["kind"], (Kind.APPLY, Kind.DROP, Kind.PULL))] if served else rows
