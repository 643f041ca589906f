"""How ranks reach each other: links that carry vectors, channels that carry messages, and who is alive.

Everything above this package is written against three protocols, so that a transport is a set of three classes:

    protocol         what it carries                           on one machine         over TCP, in `tcp`
    ---------------  ----------------------------------------  ---------------------  -------------------------
    Link             parts of vectors, between any two ranks   SharedMemoryLink       link.TcpLink
    MessageChannel   ordered messages between two neighbours   Mailbox                channel.TcpChannel
    Membership       which ranks are alive, joined and left    LocalProcesses         meeting.ConnectedPeers

A collective between two ranks over a link:

    rank 0                                                       rank 1
    ------                                                       ------
    writes its own vector                                        writes its own vector
    offer(1, span) ------------------ "it lies ready" ---------> take(0, span) -> Tensor
    take(1, span) -> Tensor <-------- "it lies ready" ---------- offer(0, span)
    adds what it took                                            adds what it took

No code above this package reads the memory of a peer: `take` returns a tensor, which is a view of what the sender
has offered in shared memory and a received buffer over a socket.

The parts that the members for one machine are made of:

    memory           zeroed bytes that processes share by a descriptor; tensors in them; which processors keep the
                     order of stores, on which all of this relies
    waiting          how a rank waits: it spins, then sleeps until woken, until a deadline or until the run is cancelled
    membership       which processes live; record locks, which the kernel releases when their owner dies
    ring_buffer      a single-producer single-consumer ring of slots
    rendezvous       how processes that know only a store of torch.distributed come to share descriptors
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TURNS", "Change", "Link", "Membership", "MessageChannel", "Span"]

#: Vectors that a rank has on a link. With two, used alternately, a rank that writes for one collective never
#: overwrites what a slower rank still reads of the one before.
TURNS = 2


class Span(NamedTuple):
    """A run of numbers in one of a rank's vectors."""

    turn: int
    start: int
    stop: int


class Link(Protocol):
    """Point-to-point exchange of parts of vectors between ranks.

    Every rank has `TURNS` vectors of one length and dtype. A rank writes into a vector of its own, offers spans of it
    to its peers, and takes what they offer. Between two ranks, in one direction, the n-th `take` gets the n-th `offer`;
    both ends pass the same span.

    A span that was offered must not change before its taker is known to be done with it. `algorithms.collectives.proof`
    shows that for every collective; from one collective to the next it holds because the vectors alternate.
    """

    #: This rank's number.
    rank: int
    #: This rank's own vectors, one per turn.
    vectors: Sequence[Tensor]
    #: Nanoseconds that this rank has waited in `take` since the link was made.
    waited: int

    def offer(self, to: int, span: Span) -> None:
        """Let rank `to` take a span of this rank's vector. Returns without waiting for it."""

    def take(self, peer: int, span: Span) -> Tensor:
        """Return what rank `peer` offered: a tensor to read, valid until this rank offers something later.

        Raises:
            WaitedTooLong: the peer has not offered it before the deadline; the message names the peer.
            Cancelled: the link was cancelled meanwhile.
        """

    def abort(self) -> None:
        """End every wait on this link, on all ranks: each raises `Cancelled`."""


class MessageChannel(Protocol):
    """Ordered messages of tensors from one rank to a neighbour. Each end uses its own half of the methods."""

    #: Nanoseconds that this end has waited since the channel was made.
    waited: int

    @property
    def full(self) -> bool:
        """Whether `put` would wait for the receiver."""

    @property
    def empty(self) -> bool:
        """Whether `take` would wait for the sender."""

    def put(self, message: Sequence[Tensor | None]) -> int:
        """Send a message and return its bytes. Waits while the channel is full, as `Link.take` waits."""

    def take(self) -> list[Tensor | None]:
        """Return the next message, which is the receiver's to keep. Waits while the channel is empty."""


class Change(NamedTuple):
    """A rank that joined a run, or left it."""

    rank: int
    joined: bool


class Membership(Protocol):
    """Which ranks of a run are alive."""

    def alive(self) -> frozenset[int]:
        """The ranks that are alive now."""

    def changes(self) -> list[Change]:
        """What has changed since the last call, in the order in which it was noticed."""

    def close(self) -> None:
        """Stop watching."""
