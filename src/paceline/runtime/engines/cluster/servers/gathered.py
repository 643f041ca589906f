"""A shard that gathers: its server holds pushes until a round is full, then applies their sum as one update.

Every push is a version of the protocol, so that backups take pushes one by one as under other plans; the parameters
change with the last one of a round. What is held lies behind the parameters in the bytes of the version, and so is part
of every copy of it:

    | parameters, moving buffers, optimizer state | for each push of the round: its batch, its vector |
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.errors import FrameError
from paceline.training.gradients.message import up
from paceline.training.gradients.payload import GradientSum, Payload
from paceline.training.parameters.layout import Layout
from paceline.training.parameters.replicas import weighted_sum


class SumVector:
    """What a worker pushes to a shard that gathers: the sums of its share of a batch, weighted by their samples.

    | the version that they were computed from | the vector of `gradients.payload` |
    """

    def __init__(self, layout: Layout) -> None:
        self.raw = torch.zeros(self.size(layout), dtype=torch.uint8)
        self.bases: NDArray[np.int64] = self.raw[:8].view(torch.int64).numpy()
        self.payload = Payload(layout, self.raw[up(8) :].view(layout.dtype))
        self.before = self.raw[:0]
        self.bytes = self.whole = self.raw.numpy().data

    @staticmethod
    def size(layout: Layout) -> int:
        return up(8) + Payload.length(layout) * layout.dtype.itemsize

    def write(self, computed: GradientSum, base: int) -> None:
        """Write what a worker pushes."""
        self.bases[0] = base
        self.payload.write(computed)

    def check(self, size: int) -> None:
        """Raise FrameError if these are no such sums."""
        weight = float(self.payload.tail[-1])
        if not math.isfinite(weight) or weight < 0:
            raise FrameError("body", f"sums of gradients with weight {weight}")


class Round:
    """The pushes that are held until there are enough of them."""

    def __init__(self, layout: Layout, needed: int, raw: Tensor) -> None:
        """`raw` has `size` bytes, behind those of the version."""
        self.needed, start = needed, up(8)
        slots = raw.view(needed, -1)
        self._batches = [each[:8].view(torch.int64) for each in slots]
        self._flats = [each[start : start + self._bytes(layout)].view(layout.dtype) for each in slots]
        self._sum = torch.zeros_like(self._flats[0])
        self._whole = Payload(layout, self._sum)

    @classmethod
    def size(cls, layout: Layout, needed: int) -> int:
        return needed * up(up(8) + cls._bytes(layout))

    @staticmethod
    def _bytes(layout: Layout) -> int:
        return Payload.length(layout) * layout.dtype.itemsize

    def hold(self, version: int, batch: int, vector: SumVector) -> GradientSum | None:
        """Hold the push that is this version; return the sum of the round if it was the last one of it.

        They are summed in the order of their batches, so that the order in which they came does not matter.
        """
        place = (version - 1) % self.needed
        self._batches[place].fill_(batch)
        self._flats[place].copy_(vector.payload.flat)
        if place < self.needed - 1:
            return None
        order = sorted(range(self.needed), key=lambda n: int(self._batches[n]))
        weighted_sum(self._flats, [(n, 1.0) for n in order], self._sum)
        return self._whole.read(1)
