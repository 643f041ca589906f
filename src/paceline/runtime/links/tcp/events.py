"""What happens to a hub: the events that `Hub.poll` returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.handshake import Peer


class Arrived(NamedTuple):
    """A peer that has proved who it is. `dialled` is the address, if this process has dialled it."""

    peer: Peer
    dialled: Address | None = None


class Received(NamedTuple):
    """A frame. The body lies where `place` said, or in memory of its own, which is the receiver's to keep."""

    peer: Peer
    kind: int
    ints: tuple[int, ...]
    body: memoryview


class Gone(NamedTuple):
    """A peer that is connected no longer; `left` if it said so before, `silent` if it said nothing for too long."""

    peer: Peer
    why: str
    left: bool = False
    silent: bool = False


class Unreached(NamedTuple):
    """An address that was dialled in vain until its deadline."""

    address: Address
    why: str


Event: TypeAlias = Arrived | Received | Gone | Unreached
#: Called with peer, kind, integers and size of a body: where to receive it; None for memory of its own.
PeerPlace: TypeAlias = "Callable[[Peer, int, tuple[int, ...], int], memoryview | None]"
