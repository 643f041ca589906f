"""The tensors of one shard at its server. One process holds them, so every version is made in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from struct import Struct

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.core.cluster.outputs import Apply
from paceline.core.codecs import Codec
from paceline.core.rules import Arrival, Rule
from paceline.errors import FrameError
from paceline.gradients.encoder import PushedMessage
from paceline.gradients.message import MessageShape, up
from paceline.jobs.job import Job
from paceline.parameters.layout import Layout, ShardLayout, trainable
from paceline.parameters.optimizers import optimizer_over
from paceline.parameters.shard_version import ShardVersion, version_shape
from paceline.parameters.store import ShardStore


class GradientVector:
    """What a worker pushes to one shard: its gradients in a flat vector, and which parameters have one.

    | gradients, as in the layout | moving buffers | a byte per parameter: whether it has a gradient | gap |
    | the version of every shard that the gradient was computed from |
    and, for a rule that looks back, the parameters that they were computed from: the shard's vector once more

    Its views are made once, since to make them costs more than to apply them.
    """

    def __init__(self, layout: ShardLayout, dtype: torch.dtype, looks_back: bool, shards: int) -> None:
        self.raw = torch.zeros(self.size(layout, dtype, looks_back, shards), dtype=torch.uint8)
        numbers, flags = layout.length * dtype.itemsize, len(layout.parameters)
        flat = self.raw[:numbers].view(dtype)
        self.gradients, self.moving = layout.parameter_views(flat), layout.buffer_views(flat)
        self.present = self.raw[numbers : numbers + flags]
        #: The same bytes, which Python reads faster than a tensor.
        self._given = self.raw.numpy().data[numbers : numbers + flags]
        #: As an array, since to make a tensor of a few integers costs as much as to copy a small model.
        self.bases: NDArray[np.int64] = self.raw[numbers + up(flags) :][: 8 * shards].view(torch.int64).numpy()
        #: Whether `present` says that every parameter has a gradient, as far as this process has written it.
        self._whole = False
        #: The whole vector of parameters that a gradient was computed from; empty if the rule does not look back.
        self.before = self.raw[numbers + up(flags) + up(8 * shards) :]
        self.pulled = layout.parameter_views(self.before.view(dtype)) if looks_back else []
        #: The bytes that travel, and all that there is room for, which is the same here.
        self.bytes = self.whole = self.raw.numpy().data

    @staticmethod
    def size(layout: ShardLayout, dtype: torch.dtype, looks_back: bool, shards: int) -> int:
        numbers = layout.length * dtype.itemsize
        return numbers + up(len(layout.parameters)) + up(8 * shards) + (numbers if looks_back else 0)

    def write(self, gradients: Sequence[Tensor | None], moving: Sequence[Tensor], bases: Sequence[int]) -> None:
        """Write what a worker pushes; `bases` are the versions that it has computed from."""
        self.bases[:] = bases
        given = [g is not None for g in gradients]
        if all(given):
            torch._foreach_copy_(self.gradients, gradients)  # type: ignore[arg-type]
            if not self._whole:
                self.present.fill_(1)
        else:
            for view, gradient in zip(self.gradients, gradients, strict=True):
                view.zero_() if gradient is None else view.copy_(gradient)
            self.present.copy_(torch.tensor(given, dtype=torch.uint8))
        self._whole = all(given)
        for view, buffer in zip(self.moving, moving, strict=False):
            view.copy_(buffer)

    def check(self, size: int) -> None:
        """Raise FrameError if this is no gradient of so many bytes: only coded ones can be wrong."""

    def arrival(self, batch: int) -> Arrival:
        """Return what a server applies."""
        if all(self._given):
            return Arrival(self.gradients, self.pulled)
        given = [g if there else None for g, there in zip(self.gradients, self._given, strict=True)]
        return Arrival(given, self.pulled)


class CodedVector:
    """What a worker pushes to one shard under a codec.

    | the version of every shard that the gradient was computed from | before, as in `GradientVector` | message |

    The message is last, since those of some codecs vary in length.
    """

    def __init__(self, shape: MessageShape, looks_back: bool, shards: int, seed: int) -> None:
        layout, numbers = shape.shard, shape.shard.length * shape.dtype.itemsize
        self._begin = up(8 * shards) + (numbers if looks_back else 0)
        self.raw = torch.zeros(self.size(shape, looks_back, shards), dtype=torch.uint8)
        self.bases: NDArray[np.int64] = self.raw[: 8 * shards].view(torch.int64).numpy()
        self.before = self.raw[up(8 * shards) : self._begin]
        self.pulled = layout.parameter_views(self.before.view(shape.dtype)) if looks_back else []
        self._pushed = PushedMessage(shape, seed, self.raw[self._begin :])
        self.message, self.moving = self._pushed.message, self._pushed.message.buffers
        #: All that there is room for.
        self.whole = self.raw.numpy().data

    @staticmethod
    def size(shape: MessageShape, looks_back: bool, shards: int) -> int:
        """Return the most bytes of such a vector."""
        return up(8 * shards) + (shape.shard.length * shape.dtype.itemsize if looks_back else 0) + shape.most

    @property
    def bytes(self) -> memoryview:
        """The bytes that travel."""
        return self.whole[: self._begin + self.message.bytes]

    def check(self, size: int) -> None:
        """Raise FrameError if this is no gradient of so many bytes."""
        self.message.check_words(size - self._begin - self.message.shape.fixed)
        self.message.check()

    def arrival(self, batch: int) -> Arrival:
        """Return what a server applies."""
        return Arrival(self._pushed.gradients(batch), self.pulled)


Vector = GradientVector | CodedVector


class VectorPool:
    """Vectors to receive gradients in; one is free again when its gradient is needed no longer."""

    def __init__(self, make: Callable[[], Vector], most: int, least: int) -> None:
        """`most` and `least` are the bytes that a gradient may have."""
        self._make, self.size, self._least = make, most, least
        self._free: list[Vector] = []
        #: Vectors that are in use, by the identity of the array that holds their bytes.
        self._used: dict[int, Vector] = {}

    def take(self) -> Vector:
        """Return a free vector, which is in use from now on."""
        vector = self._free.pop() if self._free else self._make()
        self._used[id(vector.whole.obj)] = vector
        return vector

    def __len__(self) -> int:
        """The vectors that were made."""
        return len(self._free) + len(self._used)

    def of(self, body: memoryview) -> Vector:
        """Return the vector that a body was received in; one that was not received in any is copied into one."""
        if not self._least <= len(body) <= self.size:
            due = f"{self.size}" if self._least == self.size else f"{self._least} to {self.size}"
            raise FrameError("body", f"a gradient of {len(body)} bytes, where {due} are due")
        found = self._used.get(id(body.obj))
        if found is None:
            found = self.take()
            found.raw.numpy()[: len(body)] = body
        found.check(len(body))
        return found

    def keep(self, needed: Iterable[Vector]) -> None:
        """Let all vectors but these be used for other gradients."""
        used = {id(vector.whole.obj): vector for vector in needed}
        self._free += [vector for array, vector in self._used.items() if array not in used]
        self._used = used


class ShardState:
    """A shard's parameters, the user's optimizer over them, and the rule."""

    def __init__(self, job: Job, layout: Layout, number: int, rule: Rule, codec: Codec | None = None) -> None:
        module = job.make_model()
        named, buffers = trainable(module), dict(module.named_buffers())
        shard = layout.shards[number]
        mine = [named[span.name] for span in shard.parameters]
        optimizer = job.make_optimizer(module, list(named.values()))
        own = optimizer_over(optimizer, {p: p for p in mine})
        shape = version_shape(shard, layout.dtype, mine, own, rule)
        self.number, self.rule = number, rule
        self.version = ShardVersion(shape, torch.zeros(shape.size, dtype=torch.uint8))
        self.version.start(mine, [buffers[b.name].to(layout.dtype) for b in shard.buffers], rule)
        self.store = ShardStore(mine, own, job.lr_scheduler, [self.version])
        self.store.look(0)
        self.vectors = vector_pool(shard, layout, rule.looks_back, codec, job.seed)
        #: The whole version as bytes, with the optimizer's state and the rule's memory; and of it the parameters and
        #: moving buffers.
        self.everything = _bytes(self.version.raw)
        self.values = self.everything[: shape.values]

    def apply(self, version: int, batch: int, vector: Vector) -> None:
        """Make this version from the one before, by a worker's gradient of a batch."""
        self.store.updates = version - 1
        self.rule.update(self.store, vector.arrival(batch))
        self.version.keep_buffers(vector.moving)

    def restore(self, body: memoryview) -> None:
        """Take another server's whole version."""
        self.version.raw.copy_(torch.frombuffer(body, dtype=torch.uint8))


def vector_pool(shard: ShardLayout, layout: Layout, looks_back: bool, codec: Codec | None, seed: int) -> VectorPool:
    """Return the pool of what is pushed to a shard."""
    shards = len(layout.shards)
    if codec is None:
        size = GradientVector.size(shard, layout.dtype, looks_back, shards)
        return VectorPool(partial(GradientVector, shard, layout.dtype, looks_back, shards), size, size)
    shape = MessageShape(codec, shard, layout.dtype)
    most = CodedVector.size(shape, looks_back, shards)
    least = most - shape.most + shape.fixed
    return VectorPool(partial(CodedVector, shape, looks_back, shards, seed), most, least)


def _bytes(raw: Tensor) -> memoryview:
    view: memoryview = raw.numpy().data
    return view


ROOM = 1024  # rows that a history has room for at first


def history_dtype(shards: int) -> np.dtype[np.void]:
    """Return the columns of a history: a push, when it began and ended, its bytes, and what it was computed from."""
    names = ("version", "batch", "worker", "base", "start", "end", "pushed")
    return np.dtype([*((name, "<i8") for name in names), ("bases", "<i8", (shards,))])


class History:
    """The pushes that a shard is made of, in the order of its versions: rows of `history_dtype`."""

    def __init__(self, shards: int) -> None:
        self._row = Struct(f"<{7 + shards}q")
        self._rows, self._count = bytearray(ROOM * self._row.size), 0

    def add(self, output: Apply, vector: Vector, start: int, end: int) -> None:
        """Add the push that made a version."""
        at = self._count * self._row.size
        if at == len(self._rows):
            self._rows += bytes(len(self._rows))
        self._row.pack_into(self._rows, at, *output, start, end, len(vector.bytes), *vector.bases.tolist())
        self._count += 1

    @property
    def raw(self) -> memoryview:
        return memoryview(bytes(self._rows[: self._count * self._row.size]))

    def restore(self, body: memoryview) -> None:
        self._rows, self._count = bytearray(body) + bytes(ROOM * self._row.size), len(body) // self._row.size
