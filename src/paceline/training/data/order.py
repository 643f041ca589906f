"""The order in which an epoch visits the samples: a function of seed and epoch alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.algorithms.agenda import Chunk


class Order:
    """Gives the sample numbers of chunks.

    Keeps two epochs, since asynchronous workers may be in either. Between two `cuts` every epoch visits the same
    samples, in an order of its own.
    """

    def __init__(self, samples: int, seed: int, shuffle: bool, cuts: Sequence[int] = ()) -> None:
        self.size, self.seed, self.shuffle, self.cuts = samples, seed, shuffle, cuts
        self._epochs: dict[int, Tensor] = {}

    def indices(self, chunk: Chunk) -> Tensor:
        """Return the sample numbers of a chunk."""
        return self._epoch(chunk.epoch)[chunk.start : chunk.stop]

    def span(self, epoch: int, first: int, last: int) -> Tensor:
        """Return the sample numbers between two positions of an epoch."""
        return self._epoch(epoch)[first:last]

    def samples(self, epoch: int, places: Tensor) -> Tensor:
        """Return the sample numbers at some places of an epoch's order."""
        return torch.index_select(self._epoch(epoch), 0, places)

    def _epoch(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            if len(self._epochs) > 1:
                del self._epochs[min(self._epochs)]
            self._epochs[epoch] = self._make(epoch)
        return self._epochs[epoch]

    def _make(self, epoch: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.size)
        generator = np.random.Generator(np.random.Philox(key=[self.seed & (2**64 - 1), epoch]))
        if epoch == 0 or len(self.cuts) < 2:
            return torch.from_numpy(generator.permutation(self.size))
        parts = np.split(self._make(0).numpy(), self.cuts[1:-1])
        return torch.from_numpy(np.concatenate([part[generator.permutation(len(part))] for part in parts]))
