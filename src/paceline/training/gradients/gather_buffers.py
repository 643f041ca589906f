"""Buffers for the gradients of a round until it is full; `algorithms.server.shard` assigns the slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.training.gradients.payload import GradientSum, Payload
from paceline.training.parameters.layout import Layout
from paceline.training.parameters.replicas import weighted_sum


class GatherBuffers:
    """One payload per slot, and one for their sum."""

    def __init__(self, layout: Layout, flats: Sequence[Tensor]) -> None:
        self.flats, self.payloads = flats, [Payload(layout, flat) for flat in flats]
        self._sum = torch.zeros_like(flats[0])
        self._whole = Payload(layout, self._sum)

    def write(self, slot: int, computed: GradientSum) -> None:
        """Write a gradient into a slot."""
        self.payloads[slot].write(computed)

    def add_up(self, slots: Sequence[int]) -> GradientSum:
        """Return the sum in other memory: slots must stay unchanged until the version made of it is committed."""
        weighted_sum(self.flats, [(slot, 1.0) for slot in slots], self._sum)
        return self._whole.read(1)
