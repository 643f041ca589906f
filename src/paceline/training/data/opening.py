"""`open_source` makes a source from what a job has as `data` or `test`; a mix of several sources is one, too."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from paceline.errors import DataError, JobError, users_code
from paceline.errors.arguments import check_arguments
from paceline.training.data.loader_sources import SampledSource, StreamSource, count
from paceline.training.data.shards import Shards, Stream
from paceline.training.data.source import DatasetSource, Source, SourceTraits, TensorSource
from paceline.training.jobs.loaders import LoaderData, is_stream, stated_length, taken_apart


def open_source(data: Any, seed: int, what: str = "data", length: int | None = None, most: int | None = None) -> Source:
    """Make a source from a job's data; `what` names the argument in errors.

    `length` is that of a stream which states none and has been counted before, and `most` where the counting may end.
    """
    if isinstance(data, type) or (callable(data) and not hasattr(data, "__getitem__")):
        with users_code(f"{what}="):
            dataset = data()
        data = LoaderData(_Anew(data)) if isinstance(dataset, Iterator) else dataset
    if isinstance(data, TensorSource | Shards | Mix | Stream):
        if len(data) == 0:
            raise JobError(f"{what}= holds no samples")
        return data
    if isinstance(data, Tensor):
        data = (data,)
    source: Source
    if isinstance(data, tuple | list) and data and all(isinstance(t, Tensor) for t in data):
        if any(t.layout is not torch.strided for t in data):
            raise JobError(f"{what}= has a sparse tensor, whose rows cannot be taken; give it by .to_dense()")
        source = TensorSource(tuple(t.detach() for t in data))
    else:
        _refuse(data, what)
        data = taken_apart(data)
        source = (
            _of_loader(data, seed, what, length, most) if isinstance(data, LoaderData) else DatasetSource(data, seed)
        )
    with users_code(f"len() of {what}="):
        size = len(source)
    if size == 0:
        raise JobError(f"{what}= holds no samples")
    return source


def origins(source: Source) -> Iterator[tuple[Path, str, int]]:
    """Yield the folders of shards that a source reads: folder, split (of a stream "") and samples."""
    if isinstance(source, Shards):
        yield source.folder, source.split, len(source)
    elif isinstance(source, Stream):
        yield source.folder, "", len(source)
    elif isinstance(source, Mix):
        for each in source.sources:
            yield from origins(each)


@dataclass(frozen=True)
class _Anew:
    """A stream that a function of the user's begins anew for every epoch."""

    make: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return self.make()


def _refuse(data: Any, what: str) -> None:
    """Raise JobError for what are no samples."""
    if isinstance(data, Mapping):
        names = ", ".join(map(str, list(data)[:5]))
        remedy = f"give one of them, as in {what}=datasets['train']"
        if all(isinstance(each, Tensor | np.ndarray) for each in data.values()):
            remedy = f"give a tuple, as in {what}=tuple(columns.values()), whose last part is the target"
        raise JobError(f"{what}= is a dictionary of {names}; {remedy}")
    if isinstance(data, Iterator):
        raise JobError(
            f"{what}= is an iterator, which is used up after one epoch; give a function that makes it, or an "
            "IterableDataset"
        )
    if isinstance(data, str | bytes | Path):
        raise JobError(f"{what}={str(data)!r:.60} is a text; load what it names, and give tensors, arrays or a Dataset")
    if isinstance(data, Dataset) and hasattr(type(data), "__getitem__") and not hasattr(data, "__len__"):
        raise JobError(f"{what}= is a Dataset, {type(data).__name__}, without a length; give it a __len__")
    by_number = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if not isinstance(data, LoaderData) and not by_number and not hasattr(data, "__iter__"):
        raise JobError(
            f"{what}={data!r:.60} is neither a tuple of tensors or arrays, nor a Dataset with a length, nor "
            "an IterableDataset, nor a DataLoader, nor a function that makes one of these"
        )


def _of_loader(data: LoaderData, seed: int, what: str, length: int | None, most: int | None) -> Source:
    """Make the source of a DataLoader's dataset, with its sampler and collate_fn."""
    traits = SourceTraits(True, data.whole, False, data.batch_size, data.worker_init_fn)
    if is_stream(data.dataset):
        return _of_stream(data, seed, what, length, most, traits)
    dataset = data.dataset
    if not hasattr(dataset, "__len__") and data.sampler is None:
        raise JobError(f"{what}= has a dataset without a length; give it a __len__, or the DataLoader a sampler")
    source = DatasetSource(dataset, seed, data.collate_fn, traits)
    return source if data.sampler is None else SampledSource(source, data, seed)


def _of_stream(
    data: LoaderData, seed: int, what: str, length: int | None, most: int | None, traits: SourceTraits
) -> StreamSource:
    samples = length
    if samples is None:
        samples = data.length or stated_length(data.dataset) or count(data.dataset, seed, what, most)
        samples -= samples % data.batch_size if data.drop_last and data.batch_size else 0
    traits = SourceTraits(True, traits.whole, True, traits.batch_size, traits.worker_init_fn)
    return StreamSource(data.dataset, seed, samples, data.collate_fn, traits)


# Several sources in fixed proportions.

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
