"""The head's part in who leads: it says who belongs to the run, and keeps its right to finish it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Protocol

from paceline.algorithms.cluster.numbered_rows import Writer
from paceline.algorithms.cluster.succession import (
    Accepted,
    Alone,
    Confirmed,
    Deposed,
    Later,
    Output,
    first_roll,
)
from paceline.runtime.engines.cluster.control import Ballot, NodeFacts, Resend, Standing, ToRank
from paceline.runtime.engines.cluster.node import NodePart
from paceline.runtime.engines.cluster.remote_workers import RemoteWorkers
from paceline.runtime.engines.cluster.rendezvous import HEAD_PATIENCE, Node, boot
from paceline.runtime.engines.cluster.seat import Seat
from paceline.runtime.engines.cluster.second_home import SecondHome
from paceline.runtime.engines.cluster.successor import dismissed
from paceline.runtime.links.tcp.handshake import Peer
from paceline.runtime.links.tcp.hub import Arrived, Gone, Unreached


class Following(Protocol):
    """What leads the run under its plan, to which ranks come one after another when it has taken over."""

    def reached(self, rank: int) -> None:
        """Take note that a rank follows this head."""

    def complete(self) -> None:
        """Take note that all ranks follow, and have said what they have."""


class Leadership:
    """The head's part in who leads."""

    def __init__(
        self,
        part: NodePart,
        seat: Seat,
        workers: RemoteWorkers,
        second_home: SecondHome,
        following: Following,
        to_rank: ToRank,
        took_over: bool,
    ) -> None:
        self.part, self.seat, self.workers, self.second_home = part, seat, workers, second_home
        self.following, self.to_rank = following, to_rank
        #: Whether it has taken over just now: the ranks whose answers are not complete, and those to request one from.
        self._begins = took_over
        self._unanswered = set(seat.ranks) if took_over else set()
        self._unrequested = self._unanswered - {part.roster.rank}
        #: Whether a majority has agreed that this node gives the run its result.
        self._final = False

    def take(self, peer: Peer, message: Standing | Ballot | Accepted | Later) -> None:
        """Take a message about who leads."""
        self._act(self.seat.take(peer, message))
        rank = peer.number
        if isinstance(message, Accepted) and rank in self._unrequested:
            self._unrequested.discard(rank)
            self.to_rank(rank, self.resend(rank))
            self.following.reached(rank)

    def happened(self, event: Arrived | Gone | Unreached) -> None:
        """Take note of an event of the connections to agents."""
        if isinstance(event, Arrived):
            self._act(self.seat.arrived(event))
        else:
            self._act(self.seat.gone(event) if isinstance(event, Gone) else self.seat.unreached(event))

    def answered(self, rank: int) -> None:
        """A rank has said what it has."""
        self._unanswered.discard(rank)
        self._complete_if_answered()

    def joined(self, node: Node) -> None:
        """Let a node that takes the place of another one belong to the run."""
        seat, rank = self.seat, node.peer.number
        before = seat.standing.facts(rank)
        number = before.number + seat.machine.nodes if before is not None else rank
        seat.standing = seat.standing.with_facts(facts_of(node, number, seat.ahead))
        self._unanswered.discard(rank)  # which the node before it was to answer
        self._unrequested.discard(rank)
        if seat.can_move:
            self.second_home.welcome(rank)
        self._act(seat.perform(seat.machine.join(time.monotonic(), number)))

    def poll(self) -> None:
        """Do what is due, and tell the others what they are to know."""
        seat, workers = self.seat, self.workers
        self._act(seat.tick())
        if workers.training and seat.standing.origin is None:
            for rank in set(seat.ranks) - {self.part.roster.rank}:
                self.second_home.welcome(rank)
            seat.publish(origin=workers.observer.origin + seat.ahead)
        if len(workers.deaths) != len(seat.standing.deaths):
            seat.publish(deaths=tuple(workers.deaths))
        self._complete_if_answered()

    def assign_deputy(self) -> None:
        """Let the next rank have a copy of the records, when every row that has come is in the trace."""
        if self.seat.can_move:
            self.second_home.move(self.seat.machine.deputy)

    @property
    def confirmed(self) -> bool:
        """Whether this node surely is the head, and may give the run its result; if not, it asks the others."""
        if not self._final and not self.seat.machine.roll.final:
            self._act(self.seat.perform(self.seat.machine.finish(time.monotonic())))
        return self._final

    def resend(self, rank: int) -> Resend:
        """Return what a rank is asked for by a head that has taken over."""
        writer = Writer(rank, self.workers.agents[rank])
        return Resend(self.workers.numbered.counts.get(writer, 0), tuple(self.second_home.known))

    def _complete_if_answered(self) -> None:
        if self._begins and not self._unanswered & set(self.seat.ranks):
            self._begins = False
            self.following.complete()

    def _act(self, outputs: Sequence[Output]) -> None:
        """Do what the seat leaves to do."""
        rank = self.part.roster.rank
        for output in outputs:
            if isinstance(output, Confirmed):
                self._final = self._final or output.roll.final
            elif isinstance(output, Deposed):
                why = (
                    f"the run has gone on without rank {rank}, which led it and did not answer for too long: rank "
                    f"{self.seat.machine.head} leads it now, and has its folder"
                )
                raise dismissed(self.part, self.seat, why)
            elif isinstance(output, Alone):
                why = f"rank {rank}, which led the run, cannot go on: {output.why}"
                raise dismissed(self.part, self.seat, why)


def first_seat(part: NodePart, peers: dict[int, Peer], nodes: dict[int, Node], resumed: bool) -> Seat:
    """Return the seat of the first head, and tell all nodes of each other. Other ranks may come later."""
    me, rank = part.hub.me.peer, part.roster.rank
    facts = NodeFacts(rank, rank, part.hub.address, 0, me.incarnation, boot(), os.getpid())
    everyone = tuple(sorted([facts, *(facts_of(node, other, 0) for other, node in nodes.items())]))
    standing = Standing(first_roll([each.rank for each in everyone]), everyone)
    patience, early = part.timing.silence * HEAD_PATIENCE, part.moves_early(resumed)
    seat = Seat(part.hub, rank, part.roster.nodes, standing, patience, early)
    seat.peers = peers
    seat.publish()
    return seat


def facts_of(node: Node, number: int, ahead: int) -> NodeFacts:
    """Return what all nodes are to know of one; the run's clock is so far `ahead` of this process's."""
    register, peer = node.register, node.peer
    assert register.address is not None, "it would lead, if it had to"
    ahead += node.ahead
    return NodeFacts(peer.number, number, register.address, ahead, peer.incarnation, register.boot, register.process)
