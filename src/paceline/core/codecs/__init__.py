"""Codecs: how a gradient is written on the wire.

Every gradient that leaves its worker is encoded there and decoded where it is used, under every plan. A lossy codec
keeps what it leaves out (`residual`) and adds it to the next gradient: error feedback.

One file per published method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from paceline.core.rules import Memory

if TYPE_CHECKING:
    from torch import Tensor

Message = tuple["Tensor", ...]  # what travels


class Codec(Protocol):
    def residual(self, parameter: Tensor) -> Memory:
        """Return what each worker keeps of a parameter between two gradients, before the first one."""

    def encode(self, gradient: Tensor, residual: Memory) -> Message:
        """Return the message for a gradient; change `residual` in place."""

    def decode(self, message: Message) -> Tensor:
        """Return the gradient of a message."""

    def size(self, dense: float) -> float:
        """Return the bytes on the wire of a gradient that takes `dense` bytes in memory."""
