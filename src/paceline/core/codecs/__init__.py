"""Codecs: how a gradient is written on the wire.

Every gradient that leaves its worker is encoded there and decoded where it is used, under every plan. A lossy codec
remembers what it leaves out (`carries`) and adds it to the next gradient: error feedback.

One file per published method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from paceline.core.rules import Memory

if TYPE_CHECKING:
    from torch import Tensor

Message = tuple["Tensor", ...]  # what travels


class Codec(Protocol):
    def carries(self, parameter: Tensor) -> Memory:
        """Return each worker's memory of a parameter between two gradients."""

    def encode(self, gradient: Tensor, carried: Memory) -> Message:
        """Return the message for a gradient; change `carried` in place."""

    def decode(self, message: Message) -> Tensor:
        """Return the gradient of a message."""

    def size(self, dense: float) -> float:
        """Return the bytes on the wire of a gradient that takes `dense` bytes in memory."""
