"""A source whose samples are drawn by a sampler: number n is the n-th sample of the epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from paceline.algorithms.chance import mix
from paceline.errors import JobError
from paceline.training.data.source import Source, SourceTraits, seed_generators
from paceline.training.jobs.job import Batch
from paceline.training.jobs.loaders import LoaderData, batches_or_samples, common_size
from paceline.training.jobs.separate import bulk, separate

_Epoch = Tensor | list[list[int]]


class SampledSource:
    """The samples of another source as a sampler draws them, with generators that are seeded by (seed, epoch).

    A batch sampler's batches lie one after the other: all are of one size but one, which is put last. Where a batch
    is a sample of its own (`whole`), each number stands for one.
    """

    arranged = True

    def __init__(self, source: Source, data: LoaderData, seed: int) -> None:
        assert data.sampler is not None
        self.source, self.seed = source, seed
        #: As before the first epoch. What is drawn from is a copy, whose state goes on from epoch to epoch.
        self.sampler = data.sampler
        self._shared = data.dataset, *bulk(data.sampler)
        self.data = replace(data, dataset=None, sampler=None)
        self.traits: SourceTraits = replace(source.traits, redraws=True)
        #: The two newest epochs, since asynchronous workers may be in either.
        self._epochs: dict[int, _Epoch] = {}
        self._drawing: Any = None
        self._next = 0
        self._length = len(self.drawn(0))
        if data.drop_last and not data.by_batch and data.batch_size:
            self._length -= self._length % data.batch_size

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: Tensor, epoch: int) -> Batch:
        drawn = self.drawn(epoch)
        if isinstance(drawn, Tensor):
            return self.source.batch(drawn[indices], epoch)
        (number,) = indices.tolist()
        return self.source.batch(torch.tensor(drawn[number]), epoch)

    def fingerprint(self) -> str:
        drawn = self.drawn(0)
        order = drawn.tolist() if isinstance(drawn, Tensor) else drawn
        return hashlib.sha256(f"{self.source.fingerprint()} {order}".encode()).hexdigest()

    def drawn(self, epoch: int) -> _Epoch:
        """Return the numbers of an epoch's samples, or their batches; JobError if they are not as many as before."""
        if epoch not in self._epochs:
            if self._drawing is None or epoch < self._next:
                self._drawing, self._next = separate(self.sampler, self._shared), 0
            for each in range(self._next, epoch + 1):
                if len(self._epochs) > 1:
                    del self._epochs[min(self._epochs)]
                self._epochs[each] = self._draw(each)
            self._next = epoch + 1
        return self._epochs[epoch]

    def _draw(self, epoch: int) -> _Epoch:
        seed_generators(mix(self.seed, epoch, 3))
        _announce_epoch(self._drawing, epoch)
        indices = list(batches_or_samples(self._drawing))
        if self.data.whole and self.data.by_batch:
            drawn: _Epoch = indices
        else:
            drawn = torch.tensor(self._flat(indices, epoch) if self.data.by_batch else indices, dtype=torch.long)
        if epoch and len(drawn) < self._length:
            raise JobError(
                f"the sampler gave {len(drawn):,} samples in epoch {epoch}, and {self._length:,} in the first; every "
                "epoch must have as many"
            )
        return drawn

    def _flat(self, batches: list[list[int]], epoch: int) -> list[int]:
        if batches and common_size(batches) != self.data.batch_size:
            raise JobError(
                f"the batch sampler gave batches of {self.data.batch_size} samples before, and of another size in "
                f"epoch {epoch}; give one whose batches are all of one size but one"
            )
        return [number for batch in sorted(batches, key=len, reverse=True) for number in batch]


def _announce_epoch(sampler: Iterable[Any], epoch: int) -> None:
    """Tell the epoch to a sampler that asks for it, as distributed samplers do."""
    if callable(tell := getattr(sampler, "set_epoch", None)):
        tell(epoch)
