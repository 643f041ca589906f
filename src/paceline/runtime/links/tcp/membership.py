"""`Membership` over TCP: the ranks whose processes are connected to a hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.runtime.links import Change
from paceline.runtime.links.tcp.events import Arrived, Event, Gone

if TYPE_CHECKING:
    from paceline.runtime.links import Membership


class ConnectedPeers:
    """The peers of one role, by their number, as the events of a hub tell of them."""

    def __init__(self, rank: int, role: int) -> None:
        """
        Args:
            rank: this process's own, which is alive.
            role: of the peers that are ranks.
        """
        self._role, self._alive = role, {rank}
        self._changes: list[Change] = []

    def note(self, event: Event) -> None:
        """Learn from what `Hub.poll` has returned; every event of the hub has to be passed."""
        if not isinstance(event, Arrived | Gone) or event.peer.role != self._role:
            return
        rank, joined = event.peer.number, isinstance(event, Arrived)
        if joined != (rank in self._alive):
            (self._alive.add if joined else self._alive.discard)(rank)
            self._changes.append(Change(rank, joined))

    def alive(self) -> frozenset[int]:
        """The ranks that are connected, with this one."""
        return frozenset(self._alive)

    def changes(self) -> list[Change]:
        """The ranks that have joined or left since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def close(self) -> None:
        """Stop watching; the hub is its owner's to close."""


if TYPE_CHECKING:
    _: type[Membership] = ConnectedPeers
