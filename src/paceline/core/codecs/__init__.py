"""Codecs: how is a gradient written on the wire?

Every gradient that leaves its worker is encoded there and decoded where it is used, whatever the plan. What a lossy
codec leaves out, it remembers (`carries`) and adds to the next gradient: error feedback. One file per published method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from paceline.core.rules import Memory

if TYPE_CHECKING:
    from torch import Tensor

Message = tuple["Tensor", ...]  # what travels


class Codec(Protocol):
    def carries(self, parameter: Tensor) -> Memory:
        """What each worker remembers of a parameter between two gradients."""

    def encode(self, gradient: Tensor, carried: Memory) -> Message: ...

    def decode(self, message: Message) -> Tensor: ...

    def size(self, dense: float) -> float:
        """Bytes on the wire of what takes so many as it lies in memory."""
