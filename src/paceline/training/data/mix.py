"""Several sources in fixed proportions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.errors import DataError
from paceline.errors.arguments import check_arguments
from paceline.training.data.shards import Shards
from paceline.training.data.source import SourceTraits

#: The largest common denominator of the weights: the proportions repeat after so many samples.
PERIOD = 10_000


class Mix:
    """Samples of several folders of shards in fixed proportions, as a job's `data`.

    After any number of samples, the number of those from each source is its weight's share to within one sample. Which
    sample follows which is a function of the seed, the epoch and its number alone, so runs are replayed and resumed as
    with any other data. A source that has been used up starts again in another order.

    Args:
        weights: `{Shards(folder): weight}`.
        samples: The number of samples of an epoch. Default: those until the first source is used up.
    """

    arranged = True
    traits = SourceTraits()

    def __init__(self, weights: Mapping[Shards, float], samples: int | None = None, seed: int = 0) -> None:
        check_arguments(Mix.__init__, locals())
        self.sources, self.seed = list(weights), seed
        if not self.sources or any(not isinstance(source, Shards) for source in self.sources):
            raise DataError("Mix needs {Shards(...): weight, ...}")
        if any(not weight > 0 for weight in weights.values()):
            raise DataError(f"the weights of a Mix must be above 0, not {list(weights.values())}")
        empty = next((source for source in self.sources if not len(source)), None)
        if empty is not None:
            raise DataError(f"{empty!r} holds no samples to mix in")
        self.pattern = schedule(list(weights.values()))
        #: How many samples of each source come before each place of the pattern; the last row is that of the whole.
        chosen = self.pattern[:, None] == np.arange(len(self.sources))
        self.before = np.concatenate([np.zeros((1, len(self.sources)), np.int64), np.cumsum(chosen, axis=0)])
        self.samples = samples if samples is not None else self._until_one_is_used_up()
        if self.samples < 1:
            raise DataError(f"samples={samples} is not at least 1")

    def __len__(self) -> int:
        return self.samples

    def places(self, numbers: NDArray[np.int64], epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source of each sample of an epoch, and its number there."""
        period = len(self.pattern)
        numbers = numbers + epoch * self.samples
        rounds, at = np.divmod(numbers, period)
        source = self.pattern[at]
        count = rounds * self.before[period, source] + self.before[at, source]
        sizes = np.array([len(each) for each in self.sources])[source]
        passes, place = np.divmod(count, sizes)
        indices = np.empty(len(numbers), np.int64)
        for each in np.unique(source):
            for turn in np.unique(passes[source == each]):
                mine = (source == each) & (passes == turn)
                indices[mine] = _order(self.seed, int(each), int(turn), len(self.sources[each]))[place[mine]]
        return source, indices

    def batch(self, indices: Tensor, epoch: int) -> tuple[Tensor, ...]:
        """Return the samples of these numbers, a tensor per column."""
        source, place = self.places(indices.numpy().astype(np.int64), epoch)
        used = np.unique(source)
        rows = [np.flatnonzero(source == each) for each in used]
        parts = [
            self.sources[each].batch(torch.from_numpy(place[at]), epoch) for each, at in zip(used, rows, strict=True)
        ]
        back = torch.from_numpy(np.argsort(np.concatenate(rows), kind="stable"))
        return tuple(torch.cat(column)[back] for column in zip(*parts, strict=True))

    def fingerprint(self) -> str:
        digest = hashlib.sha256(repr((self.samples, self.seed)).encode() + self.pattern.tobytes())
        for source in self.sources:
            digest.update(source.fingerprint().encode())
        return digest.hexdigest()

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if not 0 <= index < self.samples:
            raise IndexError(f"sample {index} of {self.samples}")
        return tuple(part[0] for part in self.batch(torch.tensor([index]), 0))

    def _until_one_is_used_up(self) -> int:
        shares = self.before[-1] / len(self.pattern)
        return int(min(len(source) / share for source, share in zip(self.sources, shares, strict=True)))


def schedule(weights: list[float]) -> NDArray[np.int64]:
    """Return which source each sample of a period comes from (Tijdeman 1980, "The chairman assignment problem").

    Among the sources that would otherwise fall behind their share, the one whose share is reached first is next, so
    that every prefix differs from the shares by less than one sample.
    """
    total = sum(Fraction(weight).limit_denominator(PERIOD) for weight in weights)
    shares = [Fraction(weight).limit_denominator(PERIOD) / total for weight in weights]
    period = int(np.lcm.reduce([share.denominator for share in shares]))
    if period > PERIOD:
        counts = [max(1, round(share * PERIOD)) for share in shares]
        period = sum(counts)
        shares = [Fraction(count, period) for count in counts]
    slack = 1 - Fraction(1, 2 * len(shares) - 2) if len(shares) > 1 else Fraction(0)
    tally, pattern = [0] * len(shares), []
    for number in range(1, period + 1):
        due = [at for at, share in enumerate(shares) if share * number - tally[at] >= 1 - slack]
        chosen = min(due, key=lambda at: (slack + tally[at]) / shares[at])
        tally[chosen] += 1
        pattern.append(chosen)
    return np.array(pattern, np.int64)


@lru_cache(maxsize=16)
def _order(seed: int, source: int, turn: int, samples: int) -> NDArray[np.int64]:
    """Return the order of a source's samples in one pass over them."""
    key = [(seed ^ (source + 1) * 0x9E3779B97F4A7C15) & (2**64 - 1), turn]
    return np.random.Generator(np.random.Philox(key=key)).permutation(samples)
