"""Sources: samples by number. Tensors are indexed; a Dataset is asked one sample at a time, with chance seeded per
sample.

`open_source` makes one from whatever a job's `data` is. A source can be moved to another process with cloudpickle;
tensors that lie in shared memory travel as they are.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from paceline.core.agenda import Chunk
from paceline.core.chance import mix
from paceline.data.order import Order
from paceline.errors import JobError
from paceline.jobs.job import Batch


class Source(Protocol):
    def __len__(self) -> int: ...

    def batch(self, indices: Tensor, epoch: int) -> Batch: ...

    def fingerprint(self) -> str:
        """The same for the same samples; cheap, so not a proof."""


class TensorSource:
    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        sizes = {t.shape[0] if t.dim() else None for t in tensors}
        if len(sizes) != 1 or None in sizes:
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
            raise JobError(f"the data's tensors have shapes {shapes}: their first sizes, the samples, differ")
        self.tensors = tensors

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])

    def batch(self, indices: Tensor, epoch: int) -> Batch:
        # index_select is five times faster than t[indices] for a hundred rows.
        return tuple(torch.index_select(t, 0, indices) for t in self.tensors)

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        places = torch.linspace(0, len(self) - 1, min(len(self), 64)).long()
        for tensor in self.tensors:
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor[places].contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


class DatasetSource:
    """A map-style Dataset. Augmentation in `__getitem__` draws from (seed, epoch, sample), whoever loads it."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset, self.seed = dataset, seed

    def __len__(self) -> int:
        return len(self.dataset)

    def sample(self, index: int, epoch: int) -> Any:
        seed = mix(self.seed, epoch, index, 1)
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        return self.dataset[index]

    def batch(self, indices: Tensor, epoch: int) -> Batch:
        return default_collate([self.sample(index, epoch) for index in indices.tolist()])

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{type(self.dataset).__name__} {len(self)}".encode())
        for index in {0, len(self) // 2, len(self) - 1}:
            digest.update(repr(self.sample(index, 0)).encode())
        return digest.hexdigest()


def open_source(data: Any, seed: int, what: str = "data") -> Source:
    if isinstance(data, type) or (callable(data) and not hasattr(data, "__getitem__")):
        data = data()
    if isinstance(data, TensorSource):
        return data
    if isinstance(data, Tensor):
        data = (data,)
    source: Source
    if isinstance(data, tuple | list) and data and all(isinstance(t, Tensor) for t in data):
        source = TensorSource(tuple(t.detach() for t in data))
    elif isinstance(data, tuple) and any(isinstance(t, np.ndarray) for t in data):
        raise JobError(f"{what}= holds NumPy arrays; turn them into tensors with torch.from_numpy(array)")
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        source = DatasetSource(data, seed)
    else:
        raise JobError(
            f"{what}={type(data).__name__} is neither a tuple of tensors, nor a Dataset with a length, "
            "nor a function that makes one"
        )
    if len(source) == 0:
        raise JobError(f"{what}= holds no samples")
    return source


class _Addressed:
    """A Dataset view whose keys are (sample, epoch), so that a DataLoader's workers know the epoch."""

    def __init__(self, source: DatasetSource) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        return self.source.sample(*key)


class Reader:
    """Turns chunks into batches for one worker, ahead of time by loader processes where the job asks for them."""

    def __init__(
        self, source: Source, order: Order, loader_workers: int, end_with_parent: Callable[[int], None]
    ) -> None:
        self.source, self.order = source, order
        self.ahead = loader_workers * 2 if isinstance(source, DatasetSource) else 0
        self._chunks: list[Chunk] = []
        self._batches: Iterator[Batch] | None = None
        if self.ahead:
            assert isinstance(source, DatasetSource)
            loader: DataLoader[Any] = DataLoader(
                _Addressed(source),  # type: ignore[arg-type]
                batch_sampler=self._keys(),
                num_workers=loader_workers,
                worker_init_fn=end_with_parent,
                multiprocessing_context="fork",
            )
            self._loader = loader

    def _keys(self) -> Iterator[list[tuple[int, int]]]:
        while self._chunks:
            chunk = self._chunks.pop(0)
            yield [(index, chunk.epoch) for index in self.order.indices(chunk).tolist()]

    def announce(self, chunks: Iterator[Chunk]) -> None:
        """Say which chunks will be asked for, in this order, so that loaders may run ahead."""
        if self.ahead:
            self._chunks = list(chunks)
            self._batches = iter(self._loader)

    def batch(self, chunk: Chunk) -> Batch:
        if self._batches is not None:
            return next(self._batches)
        return self.source.batch(self.order.indices(chunk), chunk.epoch)
