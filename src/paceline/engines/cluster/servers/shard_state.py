"""The tensors of one shard at its server. One process holds them, so every version is made in place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.core.rules import Arrival, Rule
from paceline.jobs.job import Job
from paceline.parameters.layout import Layout, ShardLayout, trainable
from paceline.parameters.optimizers import optimizer_over
from paceline.parameters.shard_version import ShardVersion, version_shape
from paceline.parameters.store import ShardStore


class GradientVector:
    """What a worker pushes to one shard: a flat vector as the shard's own, and which parameters have a gradient.

    | gradients, as in the layout | moving buffers | a byte per parameter: whether it has a gradient |
    and, for a rule that looks back, the parameters that they were computed from: the shard's vector once more
    """

    def __init__(self, layout: ShardLayout, dtype: torch.dtype, looks_back: bool) -> None:
        self.layout, self.dtype = layout, dtype
        numbers = layout.length * dtype.itemsize
        self.size = numbers + len(layout.parameters) + (numbers if looks_back else 0)
        self._numbers, self._present = numbers, numbers + len(layout.parameters)

    def views(self, raw: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor, list[Tensor]]:
        """Return (gradients, moving buffers, which are present, the parameters before) as views of some bytes."""
        flat = raw[: self._numbers].view(self.dtype)
        before = raw[self._present : self.size]
        # The bytes after the presence flags need not be aligned for numbers, so they are copied.
        pulled = self.layout.parameter_views(before.clone().view(self.dtype)) if len(before) else []
        return self.layout.parameter_views(flat), self.layout.buffer_views(flat), raw[self._numbers : self._present], pulled


class ShardState:
    """A shard's parameters, the user's optimizer over them, and the rule."""

    def __init__(self, job: Job, layout: Layout, number: int, rule: Rule) -> None:
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
        self.store = ShardStore(mine, own, job.schedule, [self.version])
        self.store.look(0)
        self.vector = GradientVector(shard, layout.dtype, rule.looks_back)

    def apply(self, version: int, body: memoryview) -> None:
        """Make this version from the one before, by a worker's gradient.

        Raises:
            ValueError: the body has another size than this shard's gradients.
        """
        if len(body) != self.vector.size:
            raise ValueError(f"a gradient of {len(body)} bytes, where shard {self.number} has {self.vector.size}")
        raw = torch.frombuffer(body, dtype=torch.uint8)
        gradients, moving, present, pulled = self.vector.views(raw)
        given: list[Tensor | None] = list(gradients)
        if not bool(present.all()):
            given = [g if there else None for g, there in zip(gradients, present.tolist(), strict=True)]
        self.store.updates = version - 1
        self.rule.update(self.store, Arrival(given, pulled))
        self.version.keep_buffers(moving)

    @property
    def values(self) -> memoryview:
        """The parameters and moving buffers, as bytes."""
        return _bytes(self.version.raw[: self.version.shape.values])

    @property
    def everything(self) -> memoryview:
        """The whole version, as bytes: with the optimizer's state and the rule's memory."""
        return _bytes(self.version.raw)

    def restore(self, body: memoryview) -> None:
        """Take another server's whole version."""
        self.version.raw.copy_(torch.frombuffer(body, dtype=torch.uint8))


def _bytes(raw: Tensor) -> memoryview:
    return memoryview(raw.numpy())


#: One push of a shard's history: version, batch, worker, base, when it began and ended.
HISTORY = np.dtype([(name, "<i8") for name in ("version", "batch", "worker", "base", "start", "end")])


class History:
    """The pushes that a shard is made of, in the order of its versions."""

    def __init__(self) -> None:
        self._rows = np.zeros(1024, HISTORY)
        self._count = 0

    def add(self, *row: int) -> None:
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._rows[self._count] = row
        self._count += 1

    @property
    def raw(self) -> memoryview:
        return memoryview(self._rows[: self._count].tobytes())

    def restore(self, body: memoryview) -> None:
        rows = np.frombuffer(body, HISTORY)
        self._rows, self._count = np.concatenate([rows, np.zeros(1024, HISTORY)]), len(rows)


def rows_of(histories: Sequence[bytes | memoryview]) -> list[np.ndarray]:
    """Return the rows of some shards' histories."""
    return [np.frombuffer(bytes(each), HISTORY) for each in histories]
