"""Sources give samples by number: tensors are indexed, and a Dataset is read sample by sample, seeded for each.

`opening` makes one from a job's `data`. A source can be moved to another process with cloudpickle;
tensors in shared memory are not copied.
"""

from __future__ import annotations

import copy
import hashlib
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, Subset, default_collate, get_worker_info

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.chance import mix
from paceline.errors import JobError
from paceline.training.jobs.job import Batch

# What sources are like, for what reads them.


@dataclass(frozen=True)
class SourceTraits:
    """What a source is like, for what reads it."""

    #: Whether processes may read its batches ahead.
    reads_ahead: bool = False
    #: Whether a sample is a whole batch of the user's, which cannot be divided.
    whole: bool = False
    #: Whether an epoch may have other samples than the one before, in an order of the source's own.
    redraws: bool = False
    #: The size of a batch in the loader that the source was made from; None: there was none.
    batch_size: int | None = None
    #: What a process that reads ahead calls first.
    worker_init_fn: Callable[[int], Any] | None = None


class Source(Protocol):
    """Samples by number: of a dataset, or of their positions in an epoch."""

    @property
    def traits(self) -> SourceTraits: ...

    def __len__(self) -> int: ...

    @property
    def arranged(self) -> bool:
        """Whether samples come in an order of their own, which a job does not shuffle again."""

    def batch(self, indices: Tensor, epoch: int) -> Batch: ...

    def fingerprint(self) -> str:
        """Return a digest that is equal for equal samples. It reads only a few of them, so it proves nothing."""


class TensorSource:
    """Samples in tensors of one length."""

    arranged = False

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        sizes = {t.shape[0] if t.dim() else None for t in tensors}
        if len(sizes) != 1 or None in sizes:
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
            raise JobError(f"the data's tensors have shapes {shapes}: their first sizes, the samples, differ")
        self.tensors, self.traits = tensors, SourceTraits()

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])

    def batch(self, indices: Tensor, epoch: int) -> Batch:
        # index_select is five times faster than t[indices] for a hundred rows.
        return tuple(torch.index_select(t, 0, indices) for t in self.tensors)

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        # Evenly spread: of data that were cut short or sorted anew, samples at the ends alone may be the same.
        few = torch.linspace(0, len(self) - 1, min(len(self), 64)).long()
        for tensor in self.tensors:
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor[few].contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


BY_SAMPLE = SourceTraits(reads_ahead=True)


class DatasetSource:
    """A map-style Dataset. Augmentation in `__getitem__` is seeded by (seed, epoch, sample), in any loader process.

    A dataset with `__getitems__`, which reads many samples at once, is seeded by the first of them. So is `collate_fn`.
    """

    arranged = False

    def __init__(
        self,
        dataset: Any,
        seed: int,
        collate_fn: Callable[[Any], Any] | None = None,
        traits: SourceTraits = BY_SAMPLE,
    ) -> None:
        self.dataset, self.seed, self.collate_fn, self.traits = dataset, seed, collate_fn, traits
        # A Subset has it for any dataset, and most augment sample by sample.
        self._at_once = callable(getattr(dataset, "__getitems__", None)) and not isinstance(dataset, Subset)

    def __len__(self) -> int:
        return len(self.dataset)

    def sample(self, index: int, epoch: int) -> Any:
        """Read one sample with seeded random generators."""
        seed_generators(mix(self.seed, epoch, index, 1))
        return self.dataset[index]

    def batch(self, indices: Tensor, epoch: int) -> Batch:
        numbers = indices.tolist()
        samples = self._samples(numbers, epoch)
        if self.collate_fn is None:
            return default_collate(samples)
        # What a collate function draws must not depend on what its samples have drawn before.
        seed_generators(mix(self.seed, epoch, numbers[0], 2))
        return self.collate_fn(samples)

    def _samples(self, numbers: list[int], epoch: int) -> list[Any]:
        if not self._at_once:
            return [self.sample(number, epoch) for number in numbers]
        seed_generators(mix(self.seed, epoch, numbers[0], 1))
        return list(self.dataset.__getitems__(numbers))

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{type(self.dataset).__name__} {len(self)}".encode())
        for index in {0, len(self) // 2, len(self) - 1}:
            digest.update(repr(self.sample(index, 0)).encode())
        return digest.hexdigest()


def seed_generators(seed: int) -> None:
    """Seed the default generators of PyTorch, Python and NumPy."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


@dataclass(frozen=True)
class _ReadError:
    """An exception in a loader process, in place of the batch."""

    wrapper: ExceptionWrapper


_Read = Batch | _ReadError | None  # None: no batch was announced


def _identity(batch: _Read) -> _Read:
    return batch


class _KeyedDataset:
    """A view of a source whose keys are (sample, epoch), so that a DataLoader's workers know the epoch.

    An exception is returned and not raised, since it concerns only the caller that will read this batch.
    """

    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitems__(self, keys: list[tuple[int, int]]) -> _Read:
        try:
            if not keys:
                return None
            return self.source.batch(torch.tensor([number for number, _ in keys]), keys[0][1])
        except Exception:
            info = get_worker_info()
            return _ReadError(ExceptionWrapper(where=f"in DataLoader worker process {info.id if info else 0}"))


class Reader:
    """Reads the batches of one worker, ahead of time in loader processes if the job has `num_workers`.

    Announced chunks are read in their order, a few batches ahead; any other chunk is read when it is requested.

        announced      a b c d e f ...        requested: a
        loaders            b c d e            being read, in this order
        ready                                 read before it was requested, since another chunk was

    So a wrong forecast only costs time: a chunk that was not announced is read next, the loaders pause while enough is
    ready, and what is ready is dropped when a later update is requested.
    With `repeats` a batch may be requested again, until one of another update is.
    """

    def __init__(
        self,
        source: Source,
        order: Order,
        num_workers: int,
        end_with_parent: Callable[[int], None],
        repeats: bool = False,
    ) -> None:
        self.source, self.order, self.repeats = source, order, repeats
        self.ahead = num_workers * 2 if source.traits.reads_ahead else 0
        self._announced: Iterator[Chunk] = iter(())
        #: A chunk that is requested and was not announced; and those of which that was so, if they are announced later.
        self._urgent: Chunk | None = None
        self._hurried: set[Chunk] = set()
        self._under_way: deque[Chunk | None] = deque()
        self._ready: deque[tuple[Chunk, _Read]] = deque(maxlen=2 * self.ahead)
        self._cached: dict[Chunk, Batch] = {}
        self._found: Iterator[_Read] | None = None
        if self.ahead:
            self._loader: DataLoader[Any] = DataLoader(
                _KeyedDataset(source),  # type: ignore[arg-type]
                batch_sampler=self._keys(),
                num_workers=num_workers,
                collate_fn=_identity,
                worker_init_fn=_both(end_with_parent, source.traits.worker_init_fn),
                multiprocessing_context="fork",
            )

    def announce(self, chunks: Iterable[Chunk]) -> None:
        """Announce the chunks that will probably be requested, in this order, in place of those announced before."""
        if self.ahead:
            pending = Counter([*filter(None, self._under_way), *(chunk for chunk, _ in self._ready)])
            self._announced = _without(pending, chunks)
            if self._found is None:
                self._found = iter(self._loader)

    def batch(self, chunk: Chunk) -> Batch:
        """Return the batch of a chunk, from a loader if the job has any."""
        if not self.ahead:
            return self.source.batch(self.order.indices(chunk), chunk.epoch)
        if not self.repeats:
            return self._read(chunk)
        if any(cached.update != chunk.update for cached in self._cached):
            self._cached.clear()
        if chunk not in self._cached:
            self._cached[chunk] = self._read(chunk)
        return copy.deepcopy(self._cached[chunk])  # a model may change its input in place

    def close(self) -> None:
        """End the loader processes, which otherwise end with their parent."""
        self._found = None

    def _read(self, chunk: Chunk) -> Batch:
        """Return a batch that a loader has read, or raise its exception."""
        self._drop_before(chunk.update)
        if chunk not in self._under_way and all(chunk != other for other, _ in self._ready):
            self._urgent = chunk
            self._hurried.add(chunk)
            if self._found is None:
                self._found = iter(self._loader)
        while (batch := self._take(chunk)) is None:
            self._advance()
        if isinstance(batch, _ReadError):
            batch.wrapper.reraise()
        return batch

    def _drop_before(self, update: int) -> None:
        """Forget what was read for earlier updates, which others have made."""
        if any(chunk.update < update for chunk, _ in self._ready):
            self._ready = deque((each for each in self._ready if each[0].update >= update), self._ready.maxlen)
        self._hurried = {chunk for chunk in self._hurried if chunk.update >= update}

    def _take(self, chunk: Chunk) -> _Read:
        for position, (other, batch) in enumerate(self._ready):
            if other == chunk:
                del self._ready[position]
                return batch
        return None

    def _advance(self) -> None:
        """Wait for the next batch of the loaders, which then read another one."""
        assert self._found is not None
        batch = next(self._found)
        if (chunk := self._under_way.popleft()) is not None:
            self._ready.append((chunk, batch))

    def _keys(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the keys of the chunks that the loaders read next."""
        while True:
            chunk = self._next()
            self._under_way.append(chunk)
            yield [(index, chunk.epoch) for index in self.order.indices(chunk).tolist()] if chunk else []

    def _next(self) -> Chunk | None:
        """Return the chunk to read next; None if enough are ready, or no more are announced."""
        if self._urgent is not None:
            chunk, self._urgent = self._urgent, None
            return chunk
        if len(self._ready) >= self.ahead:
            return None
        for chunk in self._announced:
            if chunk not in self._hurried:
                return chunk
            self._hurried.discard(chunk)
        return None


def _both(first: Callable[[int], None], second: Callable[[int], Any] | None) -> Callable[[int], None]:
    """Return a function that calls both; the second where there is one."""

    def call(number: int) -> None:
        first(number)
        if second is not None:
            second(number)

    return call


def _without(pending: Counter[Chunk], chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield the chunks without those that are known, as often as they are."""
    for chunk in chunks:
        if pending[chunk]:
            pending[chunk] -= 1
        else:
            yield chunk


# The order in which an epoch visits the samples: a function of seed and epoch alone.


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
