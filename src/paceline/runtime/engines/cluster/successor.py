"""How a node's part in a run changes while it goes on: it leads, or comes back as one that follows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.errors import RunFailed
from paceline.runtime.engines.cluster.roster import Roster

if TYPE_CHECKING:
    from paceline.runtime.engines.cluster.agent import Agent
    from paceline.runtime.engines.cluster.node import NodePart
    from paceline.runtime.engines.cluster.seat import Seat
    from paceline.runtime.engines.cluster.second_home import RunCopy
    from paceline.runtime.links.tcp.events import Event


@dataclass(frozen=True)
class Successor:
    """A node with its processes, which go on, and what it knows of the run."""

    part: NodePart
    agent: Agent
    seat: Seat
    copy: RunCopy
    #: The name of the run in handshakes.
    run: bytes
    #: What has happened to its connections since then.
    events: list[Event]


class Promoted(Exception):
    """The head is lost, and this node leads the run from now on: it needs a folder, as the head had."""

    def __init__(self, successor: Successor) -> None:
        self.successor = successor
        super().__init__("this node leads the run from now on")


class Dismissed(RunFailed):
    """The run goes on without this node, which may come back."""

    def __init__(self, why: str, roster: Roster | None) -> None:
        """`roster` is the place that it may take then; None if the run takes no node any longer."""
        self.roster = roster
        super().__init__(why)


def dismissed(part: NodePart, seat: Seat | None, why: str) -> Dismissed:
    """Return why the run goes on without this node, and where another head would let it in again.

    A group is fixed when it begins, and an agent of Ray is replaced by Ray.
    """
    roster = part.roster
    if part.setup.plan.method.server is None or roster.apart:
        return Dismissed(why, None)
    roster = replace(roster, store=None)
    if seat is not None:
        others = {each.rank: each.address for each in seat.standing.nodes if each.rank != roster.rank}
        head = seat.machine.head if seat.machine.head in others else min(others, default=roster.head_rank)
        address = others.pop(head, roster.head)
        roster = replace(roster, head_rank=head, head=address, others=tuple(others.values()))
    return Dismissed(why, roster)
