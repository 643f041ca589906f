"""The dense codec: every number as it is. Nothing is lost, nothing is remembered, nothing is copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.codecs import Message
from paceline.core.rules import Memory

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Dense:
    def residual(self, parameter: Tensor) -> Memory:
        return {}

    def encode(self, gradient: Tensor, residual: Memory) -> Message:
        return (gradient,)

    def decode(self, message: Message) -> Tensor:
        return message[0]

    def size(self, dense: float) -> float:
        return dense
