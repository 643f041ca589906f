"""A stage at its worker: forward, backward and update of micro-batches, and what is kept between them.

    forward(micro)    what comes from the stage before -> what goes to the next; keeps what backward needs
    backward(micro)   gradients of what went out -> gradients of what came in; those of weights add up
    backward_inputs(micro), backward_weights(micro)   the same in two halves
    update()          the sum of the gradients makes the next version of the weights

Forwards and backwards are generators: where several workers share the layers of a stage, they ask for the movements
between these workers (`splits.walk`); otherwise they ask for nothing.

With `recompute` a forward keeps only its inputs, and the backward runs it again. Running statistics (batch-norm): in a
pipeline that flushes, all micro-batches of an update begin from the same ones and their mean is taken, as if all had
been computed at once; in one that never flushes, each continues from those of the one before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.algorithms.agenda import Chunk
from paceline.training.gradients.loss import backward, backward_from
from paceline.training.gradients.payload import GradientSum
from paceline.training.gradients.replica import Replica, take_gradients
from paceline.training.jobs.job import Batch
from paceline.training.parameters.rows import total_norm
from paceline.training.stages.cutting import Blueprint, Code
from paceline.training.stages.exporting import check_sizes
from paceline.training.stages.tracing import KnownResult
from paceline.training.stages.weight_versions import Weights

Values = list[Tensor]
T = TypeVar("T")
#: Asks for movements between the workers that share a stage, and is answered by tensors.
Moves = Generator[Any, Tensor, T]


class Parts(Protocol):
    """A worker's parts of a stage whose layers several workers share."""

    @property
    def module(self) -> nn.Module:
        """The model's modules, with the parts that this worker stores."""

    def forward(self, micro: int, replica: Replica, tensors: list[Tensor]) -> Moves[Any]:
        """Compute a micro-batch; return what the stage gives."""

    def backward(self, micro: int) -> Moves[list[Tensor | None]]:
        """Compute back from the gradients of what the stage gave; return those of what it took."""


@dataclass
class _ForwardValues:
    """The values that a forward keeps for its backward."""

    chunk: Chunk
    weight: float
    batch: Batch  # of the first and of the last stage, where it is computed again
    takes: Values
    chance: Tensor | None  # the generator's state, where it was sent along
    began: Values  # running statistics as its forward found them
    roots: list[Tensor] = field(default_factory=list)


@dataclass
class Sums:
    """The sums over the micro-batches of an update, besides gradients."""

    loss: float = 0.0
    weight: float = 0.0
    samples: int = 0
    buffers: list[Tensor] = field(default_factory=list)


class Moving:
    """A stage's running statistics. Every forward changes new tensors, since autograd keeps those that it saw."""

    def __init__(self, part: nn.Module, names: Sequence[str]) -> None:
        split = [name.rpartition(".") for name in names]
        self.buffers = [(part.get_submodule(path), name) for path, _, name in split]

    @property
    def values(self) -> list[Tensor]:
        return [owner.get_buffer(name) for owner, name in self.buffers]

    def begin(self, values: Sequence[Tensor]) -> None:
        """Continue from copies of these values."""
        for (owner, name), value in zip(self.buffers, values, strict=True):
            owner._buffers[name] = value.clone()


class Stage:
    """One stage of the model at its worker."""

    def __init__(
        self,
        code: Code,
        replica: Replica,
        blueprint: Blueprint,
        weights: Weights,
        moving: Sequence[str],
        parts: Parts | None = None,
    ) -> None:
        self.code, self.replica, self.weights, self.parts = code, replica, weights, parts
        self.call, self.exported = blueprint.call, blueprint.exported
        self.moving, self.flushes = Moving(code.part if parts is None else parts.module, moving), blueprint.flushes
        self.needs = list(blueprint.needs[code.number])  # which of what it takes wants a gradient
        self.recompute, self.carries_chance = blueprint.recompute[code.number], blueprint.carries_chance
        self.start = self.moving.values  # where the forwards of an update begin
        self.dtype = replica.parameters[0].dtype if replica.parameters else torch.get_default_dtype()
        self.kept: dict[int, _ForwardValues] = {}
        self.sums = Sums()
        #: The gradient of a whole update and its other sums, from when replicas have added it up until it is applied.
        self.summed: GradientSum | None = None
        self.answered = KnownResult()
        self.pending: list[DeferredGradient] = []  # of the first half of a backward
        self.deferred: dict[int, list[DeferredGradient]] = {}
        if blueprint.splits and replica.autocast is None:
            defer(code.part, {*replica.parameters} - {*code.tied}, lambda gradient: self.pending.append(gradient))

    # --- forward ----------------------------------------------------------------------------------------------------

    def forward(
        self, micro: int, chunk: Chunk, values: Values, batch: Batch, version: int, ahead: int
    ) -> Moves[Values]:
        """Run a micro-batch forward; return what goes to the next stage, [] from the last one."""
        weight = self.replica.chunk_weight(chunk, batch)
        began = self.start if self.flushes else self.moving.values
        context = _ForwardValues(chunk, weight, batch if self.recompute else None, values, None, began)
        if self.carries_chance and not self.code.first:
            context.chance = context.takes.pop()
        self.weights.bind_version(version, ahead)
        self.moving.begin(began)
        self.kept[micro] = context
        if self.recompute:
            with torch.no_grad():
                gives = self._computed(context, batch)
        else:
            gives = yield from self._run(micro, context, batch)
        self._count(context, gives)
        if self.recompute:
            context.roots = []
            context.takes = [] if self.code.first else context.takes  # copied again from the batch
        if self.code.last:
            return []
        outputs = [self._sent(value) for value in gives]
        return [*outputs, torch.get_rng_state()] if self.carries_chance else outputs

    def _sent(self, value: Tensor) -> Tensor:
        """Return a value as it is sent: a parameter as a copy, if it may change before the next stage is done."""
        changes = isinstance(value, nn.Parameter) and not self.flushes
        return value.detach().clone() if changes else dense(value.detach())

    def _run(self, micro: int, context: _ForwardValues, batch: Batch) -> Moves[list[Tensor]]:
        """Run the stage once; return what it gives, or the loss from the last one."""
        if self.parts is None:
            return self._computed(context, batch)
        batch = self._prepared(context, batch)
        return self._given(context, batch, (yield from self.parts.forward(micro, self.replica, context.takes)))

    def _computed(self, context: _ForwardValues, batch: Batch) -> list[Tensor]:
        """Run a stage that this worker has alone."""
        batch = self._prepared(context, batch)
        with self.replica.precision():
            result = self.code(*context.takes)
        return self._given(context, batch, result)

    def _prepared(self, context: _ForwardValues, batch: Batch) -> Batch:
        """Begin a micro-batch: its chance, and what the stage takes."""
        replica, code = self.replica, self.code
        if code.first or code.last:
            batch = replica.prepared(context.chunk, batch)
        else:
            replica.chance.begin(context.chunk.update, context.chunk.number)
        if code.first:
            context.takes = self._asked(batch)
        if context.chance is not None:
            torch.set_rng_state(context.chance)
        needs = self.needs if torch.is_grad_enabled() else [False] * len(context.takes)
        context.takes = [t.detach().requires_grad_(n) for t, n in zip(context.takes, needs, strict=True)]
        return batch

    def _given(self, context: _ForwardValues, batch: Batch, result: Any) -> list[Tensor]:
        """Keep what the stage gives, or the loss that the last one makes of it."""
        if self.code.last:
            result = [self.answered.loss(self.replica, batch, result, context.weight)]
        context.roots = list(result)
        return context.roots

    def _asked(self, batch: Batch) -> Values:
        tensors = self.call.tensors_of(self.replica.loss, batch)
        if self.exported is not None:
            check_sizes(self.exported, tensors)
        if self.recompute:  # a model that changes its inputs in place does so twice
            return [tensor.clone() for tensor in tensors]
        return tensors

    def _count(self, context: _ForwardValues, gives: list[Tensor]) -> None:
        sums = self.sums
        if self.code.last:
            sums.loss += context.weight * float(gives[0].detach())
        sums.weight += context.weight
        sums.samples += context.chunk.samples
        if self.flushes and self.start:
            mine = [b.to(self.dtype, copy=True).mul_(context.weight) for b in self.moving.values]
            sums.buffers = [a.add_(b) for a, b in zip(sums.buffers, mine, strict=True)] if sums.buffers else mine

    # --- backward ---------------------------------------------------------------------------------------------------

    def backward(self, micro: int, gradients: Sequence[Tensor | None], version: int) -> Moves[list[Tensor | None]]:
        """Return the gradients of what the stage took; those of weights add up in `parameter.grad`."""
        context = self.kept.pop(micro)
        self.weights.bind_version(version, 0)
        if self.recompute:
            with self._buffers_as(context.began):
                self._computed(context, context.batch)
        if self.code.last:
            (loss,) = context.roots
            backward_from(loss, context.weight)
        else:
            pairs = [(r, g) for r, g in zip(context.roots, gradients, strict=True) if r.requires_grad and g is not None]
            if pairs:
                backward(*zip(*pairs, strict=True))
        if self.parts is not None:
            input_gradients = yield from self.parts.backward(micro)
            return [] if self.code.first else [None if g is None else dense(g) for g in input_gradients]
        return [] if self.code.first else [_gradient(value) for value in context.takes]

    def backward_inputs(
        self, micro: int, gradients: Sequence[Tensor | None], version: int
    ) -> Moves[list[Tensor | None]]:
        """Run the first half of `backward`, and defer the gradients of weights."""
        input_gradients = yield from self.backward(micro, gradients, version)
        self.deferred[micro], self.pending = self.pending, []
        return input_gradients

    def backward_weights(self, micro: int) -> None:
        """Run the second half of `backward`."""
        for gradient in self.deferred.pop(micro):
            gradient()

    @contextlib.contextmanager
    def _buffers_as(self, began: Values) -> Iterator[None]:
        """Use the running statistics from before the first forward, so that recomputing does not move them twice."""
        before = self.moving.values
        self.moving.begin(began)
        yield
        self.moving.begin(before)

    # --- update -----------------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> list[nn.Parameter]:
        return self.weights.parameters

    def share(self) -> GradientSum:
        """Return the sums of this replica's micro-batches of an update; they now belong to the caller."""
        sums, self.sums = self.sums, Sums()
        return GradientSum(take_gradients(self.parameters), sums.buffers, sums.loss, sums.weight, sums.samples)

    def finalize(self, summed: GradientSum) -> None:
        """Accept the sums of all replicas, which the next update applies."""
        if self.replica.job.loss_denominator is not None and summed.weight:
            # In new memory: other replicas may still read these sums.
            summed.gradients = [None if g is None else g / summed.weight for g in summed.gradients]
            summed.buffers = [b / summed.weight for b in summed.buffers]
        self.summed = summed

    def squares(self) -> float:
        """Return the squared norm of this stage's gradient; not finite where it or the loss is not."""
        assert self.summed is not None
        present = [g for g in self.summed.gradients if g is not None]
        norm = float(total_norm(present)) if present else 0.0
        return norm * norm + 0.0 * self.summed.loss

    def update(self, scale: float, good: bool) -> GradientSum:
        """Make the next version with the gradient scaled, or left out; return the sums of its micro-batches."""
        assert self.summed is not None
        summed, self.summed = self.summed, None
        gradients, buffers = summed.gradients, summed.buffers
        if not good:
            gradients, buffers = [None] * len(gradients), []
        elif scale != 1.0:
            gradients = [None if g is None else g * scale for g in gradients]
        self.weights.step(gradients)
        for buffer, value in zip(self.start if buffers else [], buffers, strict=True):
            buffer.copy_(value if buffer.is_floating_point() else value.round())
        return summed

    def values(self) -> list[Tensor]:
        """Return the parameters, then the moving buffers."""
        return self.weights.values() + (self.start if self.flushes else self.moving.values)


def run_alone(moves: Moves[T]) -> T:
    """Run what a worker computes that shares its layers with no other."""
    try:
        next(moves)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("other workers share the stage's layers")


def _gradient(value: Tensor) -> Tensor | None:
    return None if value.grad is None else dense(value.grad)


def dense(value: Tensor) -> Tensor:
    """Return a value without gaps, as it can be sent, in the same memory order, since dropout draws in that order."""
    return value if value.is_contiguous() else value.clone()


# Backward in two halves: linear and convolutional modules that leave the gradients of their weights for later.
#
# Their backward computes only the gradient of the input, for which the stage before waits, and defers that of the
# weights, keeping the input and the gradient of the output. Nothing is computed twice. All other modules of a stage
# compute both at once, in the first half.

DeferredGradient = Callable[[], None]
Defer = Callable[[DeferredGradient], None]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, part: nn.Linear, keep: Defer) -> Tensor:
        ctx.part, ctx.keep = part, keep
        ctx.save_for_backward(x)
        return F.linear(x, part.weight, part.bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (g,), (x,), part = gradients, ctx.saved_tensors, ctx.part
        ctx.keep(partial(_weights_of_linear, part, x.detach(), g))
        return g.matmul(part.weight) if ctx.needs_input_grad[0] else None, None, None, None


def _weights_of_linear(part: nn.Linear, x: Tensor, g: Tensor) -> None:
    flat = g.reshape(-1, g.shape[-1])
    _add(part.weight, flat.t().mm(x.reshape(-1, x.shape[-1])))
    if part.bias is not None:
        _add(part.bias, flat.sum(0))


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, part: Any, keep: Defer) -> Tensor:
        ctx.part, ctx.keep = part, keep
        ctx.save_for_backward(x)
        result: Tensor = part._conv_forward(x, part.weight, part.bias)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (g,), (x,), part = gradients, ctx.saved_tensors, ctx.part
        ctx.keep(partial(_weights_of_convolution, part, x.detach(), g))
        gx = _convolution(part, x, g, [True, False, False])[0] if ctx.needs_input_grad[0] else None
        return gx, None, None, None


def _weights_of_convolution(part: Any, x: Tensor, g: Tensor) -> None:
    _, weight, bias = _convolution(part, x, g, [False, True, part.bias is not None])
    _add(part.weight, weight)
    if part.bias is not None:
        _add(part.bias, bias)


def _convolution(part: Any, x: Tensor, g: Tensor, which: list[bool]) -> Any:
    sizes = None if part.bias is None else list(part.bias.shape)
    return torch.ops.aten.convolution_backward(
        g,
        x,
        part.weight,
        sizes,
        part.stride,
        part.padding,
        part.dilation,
        False,
        [0] * len(part.stride),
        part.groups,
        which,
    )


def _add(parameter: Tensor, gradient: Tensor) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


FUNCTIONS = {nn.Linear: _Linear, nn.Conv1d: _Convolution, nn.Conv2d: _Convolution, nn.Conv3d: _Convolution}


def defer(part: nn.Module, those: Collection[nn.Parameter], keep: Defer) -> None:
    """Let every supported module in `part`, if all its parameters are among `those`, defer its weights' gradients."""
    anchor = torch.zeros((), requires_grad=True)  # makes autograd call backward where the input needs no gradient
    for module in part.modules():
        function = FUNCTIONS.get(type(module))
        if function is not None and all(p in those for p in module.parameters()) and _plain(module):
            module.forward = partial(_forward, function, anchor, module, keep)


def _plain(module: Any) -> bool:
    if any(getattr(module, name) is not module._parameters.get(name) for name in ("weight", "bias")):
        return False  # recomputed before each forward: pruned or normalised
    return isinstance(module, nn.Linear) or (module.padding_mode == "zeros" and not isinstance(module.padding, str))


def _forward(function: Any, anchor: Tensor, module: nn.Module, keep: Defer, x: Tensor) -> Tensor:
    result: Tensor = function.apply(x, anchor, module, keep)
    return result
