"""What a job takes from a `DataLoader` or an `IterableDataset`, and what messages say of it and its batches.

The loader itself never runs: each worker reads the samples of its own chunks, in an order that a replay knows.

    taken        dataset, batch_size, shuffle or sampler or batch_sampler, drop_last, collate_fn, num_workers,
                 worker_init_fn
    not needed   generator (the job's seed), pin_memory (always, for a GPU), prefetch_factor, persistent_workers,
                 timeout
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler


@dataclass(frozen=True)
class LoaderData:
    """The data of a DataLoader, or of an IterableDataset, without the loader."""

    dataset: Any
    #: None: `default_collate`.
    collate_fn: Callable[[Any], Any] | None = None
    #: What gives the numbers of an epoch's samples; None: the job's own order.
    sampler: Iterable[Any] | None = None
    #: Whether the sampler gives lists of numbers, one for each batch.
    by_batch: bool = False
    #: Whether a sample is a whole batch already, which cannot be divided among workers.
    whole: bool = False
    #: Samples of a batch as the loader had it; None: it does not say.
    batch_size: int | None = None
    #: Whether what is left over at the end of an epoch is left out.
    drop_last: bool = False
    worker_init_fn: Callable[[int], Any] | None = None
    #: Samples of an epoch of a stream; None: it does not say, and they are counted.
    length: int | None = None


def is_stream(dataset: Any) -> bool:
    """Return whether samples come one after the other only, and not by number."""
    if isinstance(dataset, IterableDataset):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


def taken_apart(data: Any) -> Any:
    """Return the parts of a DataLoader, and an IterableDataset as `LoaderData`; anything else as it is."""
    if isinstance(data, DataLoader):
        return _of_loader(data)
    if not isinstance(data, LoaderData | Mapping | Iterator | type) and is_stream(data):
        return LoaderData(data, length=stated_length(data))
    return data


def adopted(data: Any, loader: Any) -> tuple[Any, dict[str, Any]]:
    """Return a job's data, given as a loader that was taken apart, and the fields of the job that it decides."""
    if not isinstance(data, LoaderData):
        return data, {}
    fields: dict[str, Any] = {"shuffle": _shuffles(loader)}
    if data.batch_size is not None:
        fields["batch_size"] = data.batch_size
    if isinstance(loader, DataLoader) and loader.num_workers:
        # Of a stream every process would read all samples, so one reads ahead.
        fields["num_workers"] = 1 if is_stream(data.dataset) else loader.num_workers
    return _tensors_of(data), fields


def stated_length(dataset: Any) -> int | None:
    """Return the length that a stream states; None if it does not."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _of_loader(loader: DataLoader[Any]) -> LoaderData:
    dataset, collate = loader.dataset, loader.collate_fn
    data = LoaderData(
        dataset,
        None if collate is default_collate else collate,
        worker_init_fn=loader.worker_init_fn,
        length=stated_length(dataset) if is_stream(dataset) else None,
    )
    batches = loader.batch_sampler
    if batches is None:  # DataLoader(batch_size=None): the dataset makes batches itself
        sampler = None if is_stream(dataset) or _plain(loader.sampler) else _own(loader.sampler)
        return replace(data, collate_fn=_OnlyOne(loader.collate_fn), whole=True, batch_size=1, sampler=sampler)
    if is_stream(dataset):
        return replace(data, batch_size=loader.batch_size, drop_last=loader.drop_last)
    if type(batches) is BatchSampler:
        plain = _plain(batches.sampler) and not batches.drop_last
        sampler = None if plain else _own(batches.sampler)
        return replace(data, sampler=sampler, batch_size=batches.batch_size, drop_last=batches.drop_last)
    size = common_size([list(batch) for batch in batches])
    return replace(data, sampler=_own(batches), by_batch=True, whole=size is None, batch_size=size or 1)


def common_size(batches: Sequence[Sequence[Any]]) -> int | None:
    """Return the size of all batches, of which one may be smaller, or None if they differ."""
    sizes = [len(batch) for batch in batches]
    largest = max(sizes, default=0)
    return largest if largest and sum(size < largest for size in sizes) <= 1 else None


@dataclass(frozen=True)
class _OnlyOne:
    """Converts a batch that is a sample of its dataset."""

    convert: Callable[[Any], Any]

    def __call__(self, samples: list[Any]) -> Any:
        return self.convert(samples[0])


def _own(sampler: Any) -> Any:
    """Return a sampler that draws from the default generators, which are seeded for each epoch."""
    if isinstance(sampler, DistributedSampler):  # Paceline shares samples out itself
        dataset: Any = sampler.dataset
        return RandomSampler(dataset) if sampler.shuffle else SequentialSampler(dataset)
    if getattr(sampler, "generator", None) is None:
        return sampler
    mine = copy.copy(sampler)
    mine.generator = None
    return mine


def _plain(sampler: Any) -> bool:
    """Whether a sampler visits every sample once in an epoch, in order or in any order."""
    if isinstance(sampler, DistributedSampler) or type(sampler) is SequentialSampler:
        return True
    return type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None


def _shuffles(loader: Any) -> bool:
    """Whether the job's own order is to be shuffled."""
    if not isinstance(loader, DataLoader) or is_stream(loader.dataset):
        return False
    batches: Any = loader.batch_sampler
    if type(batches) not in (BatchSampler, type(None)):
        return False
    sampler = loader.sampler if batches is None else batches.sampler
    shuffled = sampler.shuffle if isinstance(sampler, DistributedSampler) else type(sampler) is RandomSampler
    return bool(shuffled) and _plain(sampler) and not loader.drop_last


def _tensors_of(data: LoaderData) -> Any:
    """Return the tensors of a TensorDataset, or of a part of one, if nothing but its order is special."""
    if data != LoaderData(data.dataset, batch_size=data.batch_size):
        return data
    dataset: Any = data.dataset
    rows: Tensor | None = None
    if type(dataset) is Subset:
        dataset, rows = dataset.dataset, torch.as_tensor(dataset.indices)
    if type(dataset) is not TensorDataset:
        return data
    tensors: tuple[Tensor, ...] = dataset.tensors
    return tensors if rows is None else tuple(tensor[rows] for tensor in tensors)


def batches_or_samples(sampler: Iterable[Any]) -> Iterator[Any]:
    """Yield what a sampler gives: numbers, or lists of numbers."""
    for each in sampler:
        yield [int(number) for number in each] if isinstance(each, list | tuple) else int(each)


# What messages and notebooks say of a job: its batches, its data and the settings that were given.

ALWAYS = ("model", "data", "loss", "optimizer", "batch_size", "epochs")


def described(batch: Any) -> str:
    """Return a batch's structure: types and shapes of its tensors."""
    if isinstance(batch, Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')} {' x '.join(map(str, batch.shape)) or 'number'}"
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key}: {described(value)}" for key, value in batch.items()) + "}"
    if isinstance(batch, tuple | list):
        return f"({', '.join(map(described, batch[:4]))}{', ...' * (len(batch) > 4)})"
    return type(batch).__name__


def given(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, str]:
    """Return a line for each setting of a job: those that every job has, and others that are not as usual."""
    return {
        name: _worded(value)
        for name, value in settings.items()
        if value is not None and (name in ALWAYS or not _same(value, usual.get(name)))
    }


def _same(value: Any, usual: Any) -> bool:
    return isinstance(value, int | float | str | dict) and (value == usual or value == {})


def _worded(value: Any) -> str:
    """Write a setting as one would name it."""
    if isinstance(value, int | float | str):
        return f"{value:,}" if type(value) is int else str(value)
    if isinstance(value, LoaderData):
        return f"a loader of {_worded(value.dataset)}"
    if isinstance(value, partial):
        settings = (f"{name}={each!r:.40}" for name, each in value.keywords.items())
        return f"{_worded(value.func)}({', '.join([*map(_worded, value.args), *settings])})"
    if isinstance(value, Tensor) or (isinstance(value, tuple) and any(isinstance(part, Tensor) for part in value)):
        return described(value)
    if isinstance(value, dict):
        return ", ".join(map(str, value))
    if isinstance(value, Sized) and not isinstance(value, nn.Module):
        return f"{type(value).__name__}, {len(value):,} samples"
    return (
        str(getattr(value, "__qualname__", type(value).__name__))
        .rpartition("<locals>.")[2]
        .replace("<lambda>", "a lambda")
    )
