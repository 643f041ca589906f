"""Where the gradients of a round lie until it is full; `core.gathering` says which slot is whose."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.gradients.payload import GradientSum, Payload
from paceline.parameters.layout import Layout
from paceline.parameters.replicas import weighted_sum


class GatherBuffers:
    def __init__(self, layout: Layout, flats: Sequence[Tensor]) -> None:
        self.flats, self.payloads = flats, [Payload(layout, flat) for flat in flats]
        self._sum = torch.zeros_like(flats[0])
        self._whole = Payload(layout, self._sum)

    def write(self, slot: int, computed: GradientSum) -> None:
        self.payloads[slot].write(computed)

    def add_up(self, slots: Sequence[int]) -> GradientSum:
        """The sum of these, aside: they must stay whole until the version made of it is committed."""
        weighted_sum(self.flats, [(slot, 1.0) for slot in slots], self._sum)
        return self._whole.read(1)
