"""Rules: how does an arrival change the parameters?

A rule is asked to `update` a home (the place where parameters and the user's optimizer live) with an arrival (the
gradient of a batch). One file per published method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Home(Protocol):
    """Where some parameters live: one shard of a server, or a worker's own replica."""

    def step(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Let the user's optimizer apply these gradients."""


@dataclass(frozen=True)
class Arrival:
    gradients: Sequence[torch.Tensor | None]  # one per parameter; None where this batch did not touch it


class Rule(Protocol):
    def update(self, home: Home, arrival: Arrival) -> None: ...
