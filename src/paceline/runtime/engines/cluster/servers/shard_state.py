"""The tensors of one shard at its server. One process holds them, so every version is made in place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.algorithms.cluster.messages import Pushed
from paceline.algorithms.cluster.outputs import Apply
from paceline.algorithms.codecs import Codec
from paceline.algorithms.rules import GradientUpdate, Rule
from paceline.plans.plan import Plan, server_of
from paceline.runtime.engines.cluster.servers.gathered import Round, SumVector
from paceline.runtime.engines.cluster.servers.history import PushHistory
from paceline.runtime.engines.cluster.servers.vector_pool import VectorPool
from paceline.runtime.links.tcp.link import raw
from paceline.training.gradients.encoder import HEAD, PulledView, PushedMessage, apart
from paceline.training.gradients.learner import settled
from paceline.training.gradients.message import MessageShape, up
from paceline.training.gradients.native_step import fits, native_versions
from paceline.training.gradients.replica import clipped
from paceline.training.jobs.job import Job
from paceline.training.parameters.layout import Layout, ShardLayout, not_trained, trainable
from paceline.training.parameters.optimizers import optimizer_over
from paceline.training.parameters.shard_version import ShardVersion, version_shape
from paceline.training.parameters.store import ShardStore
from paceline.training.parameters.worker_state import copy_into

#: Numbers of a shard from which on PyTorch is faster where the optimizer remembers something; measured on x86.
LARGE = 1 << 18
#: Bytes of a gradient from which on it is sent from where it lies: to copy it takes longer than one more buffer does.
APART = 1 << 20


class GradientVector:
    """What a worker pushes to one shard: its gradients in a flat vector, and which parameters have one.

    | gradients, as in the layout | moving buffers | a byte per parameter: whether it has a gradient | gap |
    | the version of every shard that the gradient was computed from |
    and, for a rule that looks back, the parameters that they were computed from: the shard's vector once more

    Its views are made once, since to make them costs more than to apply them.
    """

    def __init__(self, layout: ShardLayout, dtype: torch.dtype, uses_pulled: bool, shards: int) -> None:
        self.raw = torch.zeros(self.size(layout, dtype, uses_pulled, shards), dtype=torch.uint8)
        numbers, flags = layout.length * dtype.itemsize, len(layout.parameters)
        flat = self.raw[:numbers].view(dtype)
        self.gradients, self.moving = layout.flat_views(flat), layout.buffer_views(flat)
        self.present = self.raw[numbers : numbers + flags]
        #: The same bytes, which Python reads faster than a tensor.
        self._given = self.raw.numpy().data[numbers : numbers + flags]
        #: As an array, since to make a tensor of a few integers costs as much as to copy a small model.
        self.bases: NDArray[np.int64] = self.raw[numbers + up(flags) :][: 8 * shards].view(torch.int64).numpy()
        #: Whether `present` says that every parameter has a gradient, as far as this process has written it.
        self._whole = False
        #: The whole vector of parameters that a gradient was computed from; empty if the rule does not look back.
        self.before = self.raw[numbers + up(flags) + up(8 * shards) :]
        self.pulled = layout.parameter_views(self.before.view(dtype)) if uses_pulled else []
        #: The bytes that travel, and all that there is room for, which is the same here.
        self.bytes = self.whole = self.raw.numpy().data
        self._dtype = dtype
        #: The same as a worker sends them, which does not copy large gradients.
        self.parts: Sequence[memoryview] = (self.bytes,)
        spans = [(p.start * dtype.itemsize, (p.start + p.size) * dtype.itemsize) for p in layout.parameters]
        self._apart = [n for n, (start, stop) in enumerate(spans) if stop - start >= APART]
        self._copied = [n for n in range(flags) if n not in set(self._apart)]
        edges = [0, *(edge for n in self._apart for edge in spans[n]), len(self.bytes)]
        #: What travels before, between and after the large gradients.
        self._between = [self.bytes[start:stop] for start, stop in zip(edges[::2], edges[1::2], strict=True)]

    @staticmethod
    def size(layout: ShardLayout, dtype: torch.dtype, uses_pulled: bool, shards: int) -> int:
        numbers = layout.length * dtype.itemsize
        return numbers + up(len(layout.parameters)) + up(8 * shards) + (numbers if uses_pulled else 0)

    def write(self, gradients: Sequence[Tensor | None], moving: Sequence[Tensor], bases: Sequence[int]) -> None:
        """Write what a worker pushes; `bases` are the versions that it has computed from.

        The gradients must not change until they have been pushed, which `pushed` says.
        """
        self.bases[:] = bases
        present = [g for g in gradients if g is not None]
        if len(present) == len(gradients):
            self.parts = self._write_all(present)
            if not self._whole:
                self.present.fill_(1)
        else:
            self.parts = (self.bytes,)
            for view, gradient in zip(self.gradients, gradients, strict=True):
                view.zero_() if gradient is None else view.copy_(gradient)
            self.present.copy_(torch.tensor([g is not None for g in gradients], dtype=torch.uint8))
        self._whole = len(present) == len(gradients)
        for view, buffer in zip(self.moving, moving, strict=False):
            view.copy_(buffer)

    def _write_all(self, gradients: Sequence[Tensor]) -> Sequence[memoryview]:
        """Write a gradient of every parameter; return the bytes that travel, those of large ones where they lie."""
        large = [gradients[n] for n in self._apart]
        if not large or not all(fits(gradient, self._dtype) for gradient in large):
            torch._foreach_copy_(self.gradients, gradients)  # type: ignore[arg-type]
            return (self.bytes,)
        if self._copied:
            torch._foreach_copy_([self.gradients[n] for n in self._copied], [gradients[n] for n in self._copied])
        first, *others = self._between
        return [first, *(part for pair in zip(map(raw, large), others, strict=True) for part in pair)]

    def pushed(self) -> None:
        """Hold the gradients no longer: their memory serves the next ones."""
        self.parts = ()

    def check(self, size: int) -> None:
        """Raise FrameError if this is no gradient of so many bytes: only coded ones can be wrong."""

    def arrival(self, batch: int) -> GradientUpdate:
        """Return what a server applies."""
        if all(self._given):
            return GradientUpdate(self.gradients, self.pulled)
        gradients = [g if is_present else None for g, is_present in zip(self.gradients, self._given, strict=True)]
        return GradientUpdate(gradients, self.pulled)


class CodedVector:
    """What a worker pushes to one shard under a codec.

    | the version of every shard that the gradient was computed from | before, as in `GradientVector` | message |

    The message is last, since those of some codecs vary in length.
    """

    def __init__(self, shape: MessageShape, uses_pulled: bool, shards: int, seed: int) -> None:
        layout, numbers = shape.shard, shape.shard.length * shape.dtype.itemsize
        self._begin = up(8 * shards) + (numbers if uses_pulled else 0)
        self.raw = torch.zeros(self.size(shape, uses_pulled, shards), dtype=torch.uint8)
        self.bases: NDArray[np.int64] = self.raw[: 8 * shards].view(torch.int64).numpy()
        self.before = self.raw[up(8 * shards) : self._begin]
        self.pulled = layout.parameter_views(self.before.view(shape.dtype)) if uses_pulled else []
        self._pushed = PushedMessage(shape, seed, self.raw[self._begin :])
        self.message, self.moving = self._pushed.message, self._pushed.message.buffers
        #: All that there is room for.
        self.whole = self.raw.numpy().data

    @staticmethod
    def size(shape: MessageShape, uses_pulled: bool, shards: int) -> int:
        """Return the most bytes of such a vector."""
        return up(8 * shards) + (shape.shard.length * shape.dtype.itemsize if uses_pulled else 0) + shape.most

    @property
    def bytes(self) -> memoryview:
        """The bytes that travel."""
        return self.whole[: self._begin + self.message.bytes]

    def check(self, size: int) -> None:
        """Raise FrameError if this is no gradient of so many bytes."""
        self.message.check_words(size - self._begin - self.message.shape.fixed)
        self.message.check()

    def arrival(self, batch: int) -> GradientUpdate:
        """Return what a server applies."""
        return GradientUpdate(self._pushed.gradients(batch), self.pulled)


Vector = GradientVector | CodedVector | SumVector


class Pushes(NamedTuple):
    """What arrives at the shards of a plan, and what they answer."""

    rule: Rule
    #: The codec of gradients, and that of answers; None: they travel as they are.
    codec: Codec | None = None
    pull: Codec | None = None
    #: Pushes that make an update together; 0 where each makes one.
    gathers: int = 0
    #: Workers, each of which has answers of its own under coded ones.
    ranks: int = 0

    @staticmethod
    def of(plan: Plan) -> Pushes:
        server = server_of(plan)
        return Pushes(server.rule, plan.codec, plan.pull, server.gathers, plan.workers)


class ShardState:
    """A shard's parameters, the user's optimizer over them, and the rule."""

    def __init__(self, job: Job, layout: Layout, number: int, pushes: Pushes) -> None:
        rule, codec, pull, gathers, ranks = pushes
        module = job.make_model()
        named, buffers = trainable(module), not_trained(module)
        shard = layout.shards[number]
        mine = [named[span.name] for span in shard.parameters]
        optimizer = job.make_optimizer(module, list(named.values()))
        shard_optimizer = optimizer_over(optimizer, {p: p for p in mine})
        shape = version_shape(shard, layout.dtype, mine, shard_optimizer, rule)
        self.number, self.rule = number, rule
        behind = up(shape.size)
        each = PulledView.size(coded := MessageShape(pull, shard, layout.dtype)) if pull is not None else 0
        rest = Round.size(layout, gathers) if gathers else ranks * each
        self._is_coded = codec is not None
        self._raw = torch.zeros(behind + rest, dtype=torch.uint8)
        #: What each rank has, under coded pulls: part of the whole version, so that backups answer as the primary does.
        self.pulled = [
            PulledView(coded, job.seed, self._raw[behind + rank * each : behind + (rank + 1) * each])
            for rank in range(ranks if pull is not None else 0)
        ]
        self._last: PulledView | None = None  # of the worker whose push was applied last
        self.version = ShardVersion(shape, self._raw[: shape.size])
        self.round = Round(layout, gathers, self._raw[behind:]) if gathers else None
        #: The module's own moving buffers, some of which may be integers.
        self._job, self._moving = job, [buffers[b.name] for b in shard.buffers]
        self.version.start(mine, [buffers[b.name].to(layout.dtype) for b in shard.buffers], rule)
        self.store = ShardStore(mine, shard_optimizer, job.lr_scheduler, [self.version])
        self.store.bind_to_slot(0)
        #: Makes a version in one pass of generated code; None where PyTorch makes it.
        self.native = None if rule.uses_pulled or self._is_large() else native_versions(self.store, rule, shared=False)
        self.vectors = vector_pool(shard, layout, rule.uses_pulled, codec, job.seed, gathers)
        #: The whole version as bytes, with the optimizer's state, the rule's memory and what is held; and of it the
        #: parameters and moving buffers.
        self.everything = _bytes(self._raw)
        self.values = self.everything[: shape.values]

    def apply(self, push: Apply, vector: Vector) -> None:
        """Make a version from the one before, by a worker's gradient of a batch."""
        if isinstance(vector, SumVector):
            self._gather(push.version, push.batch, vector)
            return
        self._update(push.version - 1, vector.arrival(push.batch))
        self.version.keep_buffers(vector.moving)
        if self.pulled:
            assert isinstance(vector, CodedVector)
            self._follow(push, bool(vector.message.tail[0]))

    def _is_large(self) -> bool:
        """Whether PyTorch's passes over each parameter are faster, as over many numbers with state."""
        return any(self.version.shape.state) and sum(p.numel() for p in self.store.parameters) > LARGE

    def _update(self, updates: int, arrival: GradientUpdate) -> None:
        """Change the version in place, to which so many updates were made."""
        self.store.updates = updates
        if self.native is None or not self.native.make(0, 0, arrival.gradients):
            self.rule.update(self.store, arrival)

    @property
    def answered(self) -> int:
        """The bytes of the answer to the push that was applied last."""
        return len(self._last.answer) if self._last is not None else len(self.values) + self._is_coded * HEAD

    def _follow(self, push: Apply, is_full: bool) -> None:
        """Make the answer to a push: whole where the worker does not have what it was answered last."""
        pulled, newest = self.pulled[push.worker % len(self.pulled)], self.version
        if is_full or pulled.whose[0] != push.worker:
            pulled.whole(newest.parameters, newest.buffers)
        else:
            pulled.difference(newest.parameters, newest.buffers, push.version)
        pulled.note(push.worker, push.batch, push.base, push.version)
        self._last = pulled

    def _gather(self, version: int, batch: int, vector: SumVector) -> None:
        """Hold what a worker pushed; if it is the last push of a round, make an update of their sum."""
        assert self.round is not None
        total = self.round.hold(version, batch, vector)
        if total is None or not total.weight:
            return
        mean = settled(self._job, total, alone=True)
        gradients = clipped(mean.gradients, self._job.gradient_clip_norm)
        self._update((version - 1) // self.round.needed, GradientUpdate(gradients))
        copy_into(self._moving, mean.buffers)
        self.version.keep_buffers(self._moving)

    def answer(self, worker: int, push: Pushed, history: PushHistory) -> Sequence[memoryview]:
        """Return what a worker continues with after a push: the parameters of that version, as pulls are coded.

        Under a codec it is told which gradient of the batch the shard has: what a worker owes depends on that.
        """
        if not self._is_coded:
            return (self.values,)
        taken, pulled = history.taken(push.batch), self.pulled[worker % len(self.pulled)] if self.pulled else None
        answer = pulled.answer_to(worker, push.batch, push.version, taken) if pulled is not None else None
        return answer or apart(self.values, taken)

    def restore(self, body: memoryview) -> None:
        """Take another server's whole version, or a version without what is held."""
        self._raw[: len(body)].copy_(torch.frombuffer(body, dtype=torch.uint8))


def vector_pool(
    shard: ShardLayout, layout: Layout, uses_pulled: bool, codec: Codec | None, seed: int, gathers: int = 0
) -> VectorPool[Vector]:
    """Return the pool of what is pushed to a shard."""
    if gathers:
        size = SumVector.size(layout)
        return VectorPool(partial(SumVector, layout), size, size)
    shards = len(layout.shards)
    if codec is None:
        size = GradientVector.size(shard, layout.dtype, uses_pulled, shards)
        return VectorPool(partial(GradientVector, shard, layout.dtype, uses_pulled, shards), size, size)
    shape = MessageShape(codec, shard, layout.dtype)
    most = CodedVector.size(shape, uses_pulled, shards)
    least = most - shape.most + shape.fixed
    return VectorPool(partial(CodedVector, shape, uses_pulled, shards, seed), most, least)


def _bytes(raw: Tensor) -> memoryview:
    view: memoryview = raw.numpy().data
    return view
