"""A source that reads a stream: number n is the n-th sample that an IterableDataset gives in an epoch.

Every worker reads the whole stream and passes over the samples of others, so that any plan, a replay and a resumed run
find the same samples. A number that has gone by is found by beginning the epoch again.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any

from torch import Tensor
from torch.utils.data import default_collate

from paceline.algorithms.chance import mix
from paceline.errors import JobError, JobWarning
from paceline.training.data.source import SourceTraits, seed_generators
from paceline.training.jobs.job import Batch
from paceline.training.jobs.separate import bulk, separate

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
