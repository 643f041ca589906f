"""`open_source` makes a source from what a job has as `data` or `test`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from paceline.errors import JobError, users_code
from paceline.training.data.mix import Mix
from paceline.training.data.sampled import SampledSource
from paceline.training.data.shard_stream import Stream
from paceline.training.data.shards import Shards
from paceline.training.data.source import DatasetSource, Source, SourceTraits, TensorSource
from paceline.training.data.stream import StreamSource, count
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
