"""What a node has that leads from now on, since the head is lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.runtime.engines.cluster.agent import Agent
    from paceline.runtime.engines.cluster.node import NodePart
    from paceline.runtime.engines.cluster.seat import Seat
    from paceline.runtime.engines.cluster.second_home import RunCopy
    from paceline.runtime.links.tcp.hub import Event


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
