"""The order in which an epoch visits the samples: a function of (seed, epoch) alone."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from paceline.core.agenda import Chunk


class Order:
    """`order.indices(chunk)`: which samples a chunk holds. Keeps the two epochs that asynchronous workers may
    straddle.
    """

    def __init__(self, samples: int, seed: int, shuffle: bool) -> None:
        self.samples, self.seed, self.shuffle = samples, seed, shuffle
        self._epochs: dict[int, Tensor] = {}

    def indices(self, chunk: Chunk) -> Tensor:
        return self._epoch(chunk.epoch)[chunk.start : chunk.stop]

    def _epoch(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            if len(self._epochs) > 1:
                del self._epochs[min(self._epochs)]
            self._epochs[epoch] = self._make(epoch)
        return self._epochs[epoch]

    def _make(self, epoch: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.samples)
        generator = np.random.Generator(np.random.Philox(key=[self.seed & (2**64 - 1), epoch]))
        return torch.from_numpy(generator.permutation(self.samples))
