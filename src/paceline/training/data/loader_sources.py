"""Sources of what a DataLoader had: samples that a sampler draws, or that an IterableDataset gives in an epoch.

Every worker reads the whole stream and passes over the samples of others, so that any plan, a replay and a resumed run
find the same samples. A number that has gone by is found by beginning the epoch again.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from time import monotonic
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from paceline.algorithms.chance import mix
from paceline.errors import JobError, JobWarning
from paceline.training.data.source import Source, SourceTraits, seed_generators
from paceline.training.jobs.job import Batch
from paceline.training.jobs.loaders import LoaderData, batches_or_samples, common_size
from paceline.training.jobs.pickling import bulk, separate

# A source whose samples are drawn by a sampler: number n is the n-th sample of the epoch.

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


MOST = 1_000_000  # samples that are counted before a stream without a length counts as endless
PATIENCE = 2.0  # seconds of counting after which a line says so
REMEDY = (
    "give its class a __len__ that says how many samples make an epoch, or say how many updates to train, with "
    "max_updates= (--max-updates)"
)


class StreamSource:
    """The samples of an IterableDataset. What it draws is seeded by (seed, epoch, sample)."""

    arranged = True

    def __init__(
        self,
        stream: Iterable[Any],
        seed: int,
        samples: int,
        collate_fn: Callable[[Any], Any] | None,
        traits: SourceTraits,
    ) -> None:
        self.stream, self.seed, self.samples, self.collate_fn, self.traits = stream, seed, samples, collate_fn, traits
        self._iterator: Iterator[Any] | None = None
        #: The epoch that the iterator is in, and the number of the sample that it gives next.
        self._epoch = self._next = 0

    def __len__(self) -> int:
        return self.samples

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator": None}  # an iterator stays in its process

    def batch(self, indices: Tensor, epoch: int) -> Batch:
        samples = [self._sample(number, epoch) for number in indices.tolist()]
        if self.collate_fn is None:
            return default_collate(samples)
        seed_generators(mix(self.seed, epoch, int(indices[0]), 2))
        return self.collate_fn(samples)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{type(self.stream).__name__} {self.samples}".encode())
        for number in range(min(3, self.samples)):
            digest.update(repr(self._sample(number, 0)).encode())
        return digest.hexdigest()

    def _sample(self, number: int, epoch: int) -> Any:
        if self._iterator is None or epoch != self._epoch or number < self._next:
            self._begin(epoch)
        while self._next < number:
            self._take()
        return self._take()

    def _begin(self, epoch: int) -> None:
        self._iterator, self._epoch, self._next = begun(self.stream, self.seed, epoch), epoch, 0

    def _take(self) -> Any:
        assert self._iterator is not None
        seed_generators(mix(self.seed, self._epoch, self._next, 1))
        try:
            sample = next(self._iterator)
        except StopIteration:
            raise JobError(
                f"the stream of data ended after {self._next:,} samples in epoch {self._epoch}, and an epoch was to "
                f"have {self.samples:,}; state the right length in __len__, and give as many in every epoch"
            ) from None
        self._next += 1
        return sample


def begun(stream: Iterable[Any], seed: int, epoch: int) -> Iterator[Any]:
    """Begin an epoch of a stream, whose state is then as in its first one: a worker may not have read that to its end.

    So it is with a DataLoader whose processes begin anew in every epoch.
    """
    stream = separate(stream, bulk(stream))
    if callable(tell := getattr(stream, "set_epoch", None)):
        tell(epoch)
    seed_generators(mix(seed, epoch, 3))
    return iter(stream)


def count(stream: Iterable[Any], seed: int, what: str, most: int | None = None) -> int:
    """Return how many samples a stream gives in its first epoch, by reading it once, as far as `most`."""
    counted, iterator = 0, begun(stream, seed, 0)
    begin, warned = monotonic(), False
    while counted <= MOST:
        if counted == most:
            return counted
        if not warned and monotonic() - begin > PATIENCE:
            warned = True
            warnings.warn(
                f"{what}= is a stream that states no length: its samples are counted first, {counted:,} until now; "
                f"{REMEDY}",
                JobWarning,
                stacklevel=6,
            )
        seed_generators(mix(seed, 0, counted, 1))
        try:
            next(iterator)
        except StopIteration:
            return counted
        counted += 1
    raise JobError(f"{what}= is a stream that states no length and has not ended after {MOST:,} samples; {REMEDY}")
