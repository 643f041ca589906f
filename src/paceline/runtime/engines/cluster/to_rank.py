"""How the head's parts send to nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from paceline.runtime.engines.cluster.control import Message
from paceline.runtime.links.tcp.connection import Buffer


class ToRank(Protocol):
    """Sends a message to the agent of a rank."""

    def __call__(self, rank: int, message: Message, content: Sequence[Buffer] = ()) -> None: ...
