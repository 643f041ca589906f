"""A node's seat: who leads, as this node knows it, and the connections over which nodes agree on it.

The machine is `algorithms.cluster.succession`. Here a rank is an agent that can be dialled, and a death is sure if the
connection to the agent has ended and its machine says that no process listens where the agent did.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import replace

from paceline.algorithms.cluster.succession import Accepted, Later, Message, Output, Roll, SendToNode, Succession, Vote
from paceline.runtime.engines.cluster.control import AGENT, Ballot, NodeFacts, Standing, pack
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.handshake import Peer
from paceline.runtime.links.tcp.hub import Arrived, Gone, Hub, Unreached
from paceline.runtime.links.tcp.waiting import DELAYS

ASKING = 0.5  # seconds that a machine may take to say that no process listens
DIALLING = 60.0  # seconds for which a head dials a node that it has lost


class Seat:
    """One node's part in who leads."""

    def __init__(
        self, hub: Hub, number: int, ranks: int, standing: Standing, patience: float, early: bool = False
    ) -> None:
        """`number` is that of this node, and `ranks` how many there may be.

        `early` is whether another rank may lead before the training has begun.
        """
        self.hub, self.standing, self._patience, self._early = hub, standing, patience, early
        self.machine = Succession(number, ranks, patience, standing.roll)
        #: The agents that are connected.
        self.peers: dict[int, Peer] = {}
        #: What is to be sent to a rank as soon as it is connected.
        self._mail: dict[int, list[Message]] = {}

    @property
    def can_move(self) -> bool:
        """Whether another rank may lead from here."""
        return self._early or self.standing.origin is not None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks whose nodes belong to the run."""
        return tuple(sorted(number % self.machine.nodes for number in self.machine.roll.members))

    @property
    def ahead(self) -> int:
        """Nanoseconds by which the run's clock is ahead of this process's."""
        return self.facts(self.machine.rank).ahead

    def facts(self, rank: int) -> NodeFacts:
        """Return what is known of a rank that a node has had."""
        facts = self.standing.facts(rank)
        assert facts is not None, f"no node has had rank {rank}"
        return facts

    def is_head(self, peer: Peer) -> bool:
        """Whether a peer is the head."""
        machine = self.machine
        return peer.number == machine.head and self.peers.get(peer.number) == peer and not machine.seeks

    # --- what has happened; each returns what the engine is to do ---

    def take(self, peer: Peer, message: Standing | Ballot | Accepted | Later) -> list[Output]:
        """Take a message of another node's seat."""
        if peer.role != AGENT:
            return []
        if (number := _sender(peer, message)) is not None:
            facts = self.standing.facts(peer.number)
            if facts is not None and number < facts.number:
                return []  # another node has its rank by now
            self.peers[peer.number] = peer
        before = self.machine.roll
        content: Message
        if isinstance(message, Ballot):
            content, self.standing = message.vote, self.standing.with_later(message.standing)
        else:
            content = message.roll if isinstance(message, Standing) else message
        outputs = self.machine.handle(time.monotonic(), peer.number, content)
        if isinstance(message, Standing) and (self.machine.roll != before or message.roll == before):
            self.standing = message
        return self.perform(outputs)

    def arrived(self, event: Arrived) -> list[Output]:
        """Take note of an agent that is connected, since it was dialled."""
        rank = event.peer.number
        if event.dialled is None or event.peer.role != AGENT:
            return []
        self.peers[rank] = event.peer
        for message in self._mail.pop(rank, []):
            self._post(event.peer, message)
        return self.perform(self.machine.reconnected(rank))

    def gone(self, event: Gone) -> list[Output]:
        """Take note of an agent that is connected no longer."""
        rank = event.peer.number
        if self.peers.get(rank) != event.peer:
            return []
        del self.peers[rank]
        address = self.facts(rank).address
        dead = event.left or (not event.silent and is_deserted(address))
        if self.machine.leads and not dead:
            self.hub.dial(address, DIALLING)
        return self.lost(rank, dead)

    def lost(self, rank: int, dead: bool = False) -> list[Output]:
        """Take note of a rank that is not reached."""
        return self.perform(self.machine.lost(time.monotonic(), self.facts(rank).number, dead))

    def unreached(self, event: Unreached) -> list[Output]:
        """Take note of an address that was dialled in vain."""
        outputs: list[Output] = []
        for facts in self.standing.nodes:
            if facts.address == event.address and self._mail.pop(facts.rank, None) is not None:
                outputs += self.lost(facts.rank)
        return outputs

    def tick(self) -> list[Output]:
        """Do what is due; called several times a second.

        On a busy machine others may lose the same head later by some times its delay.
        """
        self.machine.patience = self._patience + DELAYS * self.hub.delay
        return self.perform(self.machine.tick(time.monotonic()))

    def perform(self, outputs: Sequence[Output]) -> list[Output]:
        """Send what the machine wants to be sent; return what is left to do."""
        others: list[Output] = []
        if self.machine.leads:
            self.standing = replace(self.standing, roll=self.machine.roll)
        for output in outputs:
            if not isinstance(output, SendToNode):
                others.append(output)
            elif (peer := self._peer(output)) is not None:
                self._post(peer, output.message)
            elif isinstance(output.message, Vote):
                self._mail.setdefault(output.to, []).append(output.message)
                self.hub.dial(self.facts(output.to).address, self.machine.patience / 2)
        return others

    def _peer(self, output: SendToNode) -> Peer | None:
        """Return the connected agent that a message is for; a vote is for the newest one of its rank."""
        peer = self.peers.get(output.to)
        if peer is None or peer not in self.hub.peers:
            return None
        is_newest = not isinstance(output.message, Vote) or peer.incarnation == self.facts(output.to).incarnation
        return peer if is_newest else None

    def publish(self, **changes: object) -> None:
        """Tell all of what every node is to know, which has changed."""
        self.standing = replace(self.standing, **changes)  # type: ignore[arg-type]
        for rank in self.ranks:
            if (peer := self.peers.get(rank)) is not None:
                self._post(peer, self.machine.roll)

    def _post(self, peer: Peer, message: Message) -> None:
        if isinstance(message, Roll):
            self.hub.post(peer, *pack(replace(self.standing, roll=message)))
        elif isinstance(message, Vote):
            self.hub.post(peer, *pack(Ballot(message, self.standing)))
        else:
            self.hub.post(peer, *pack(message))


def _sender(peer: Peer, message: Standing | Ballot | Accepted | Later) -> int | None:
    """Return the number of the node that has sent a message, if that says it."""
    if isinstance(message, Standing):
        facts = message.facts(peer.number)
        return facts.number if facts is not None else None
    if isinstance(message, Ballot):
        return message.vote.voter
    return message.voter if isinstance(message, Accepted) else None


def is_deserted(address: Address) -> bool:
    """Whether the machine at an address says that no process listens there.

    A process that ends may close its connections before its listening socket; that resets who has come meanwhile.
    """
    end = time.monotonic() + ASKING
    while time.monotonic() < end:
        try:
            with socket.create_connection(address, ASKING) as probe:
                if probe.recv(1):
                    return False
        except ConnectionRefusedError:
            return True
        except TimeoutError:
            return False
        except OSError:
            continue
    return False
