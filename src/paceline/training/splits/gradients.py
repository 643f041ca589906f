"""The gradients of a replica that is one worker's part of a model, by PyTorch or by generated code."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.chance import mix
from paceline.algorithms.splits.derivation import PARAMETER, Program
from paceline.algorithms.splits.movements import ADD_TOTALS, TOTALS
from paceline.errors import JobError
from paceline.training.data.source import Reader
from paceline.training.gradients.fused_replica import network
from paceline.training.gradients.loss import split_batch
from paceline.training.gradients.payload import GradientSum
from paceline.training.gradients.replica import Replica, take_gradients
from paceline.training.jobs.job import Batch, Job
from paceline.training.parameters.layout import Layout
from paceline.training.splits.exchanging import Request, Shares, largest
from paceline.training.splits.slicing import Stored, outline, stored_by
from paceline.training.splits.walk import SplitModel, Walk, add_gradient
from paceline.training.stages.exporting import ExportedGraph
from paceline.training.stages.tracing import TracedCall, retrace

T = TypeVar("T")
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class SplitBlueprint:
    """How a model is split, with all that workers need to do it in the same way."""

    call: TracedCall
    exported: ExportedGraph | None
    #: A program for each size of chunk, by the shapes of the tensors that the model takes.
    programs: Mapping[Shapes, Program]
    #: The shapes of the model's whole parameters and buffers.
    shapes: Mapping[str, tuple[int, ...]]
    moving: tuple[str, ...]
    #: The stage of ZeRO; 0 where no worker stores shares of parameters.
    stage: int = 0

    @property
    def program(self) -> Program:
        """The program of a full chunk."""
        return next(iter(self.programs.values()))

    @property
    def stored(self) -> dict[str, Stored]:
        """How workers store each parameter and buffer."""
        return stored_by(self.program)

    def bytes_sent(self, layout: Layout) -> int:
        """Return the most bytes that a worker sends in one exchange: of a chunk, or of totals."""
        size = max(layout.bytes_per_number, 8)  # whole numbers may be larger than the model's own
        totals = {TOTALS: (2 + sum(prod(self.shapes[name]) for name in self.moving),)}
        totals_bytes = largest([ADD_TOTALS], totals, self.program.workers, size)
        return max(totals_bytes, *(largest_of(program, size) for program in self.programs.values()))


def largest_of(program: Program, size: int) -> int:
    """Return the most bytes that a worker sends in one exchange of a program."""
    return largest(program.steps, program.shapes, program.workers, size)


class SplitReplica:
    """One worker's part of the model, its programs and its gradients (`GradientMethod`)."""

    calls_modules = True

    def __init__(self, job: Job, module: nn.Module, blueprint: SplitBlueprint, place: int) -> None:
        """
        Args:
            module: the model with this worker's parts of parameters and buffers (`slicing.sliced`).
            place: the worker's place in its group.
        """
        outer = outline(module, blueprint.shapes).train()
        traced = retrace(outer, blueprint.call, blueprint.exported)
        traced.module = module.train()
        self.shares = Shares(blueprint.stage) if blueprint.stage else None
        self.models = {
            shapes: SplitModel(traced, program, place, blueprint.shapes, self.shares)
            for shapes, program in blueprint.programs.items()
        }
        self.fused: FusedShares | None = None
        if job.compute == "fused":
            assert self.shares is not None
            self.fused = FusedShares(job, module, next(iter(self.models.values())), self.shares)
        self.moving = blueprint.moving
        self.replica = Replica(job, module, blueprint.moving, gradients=self)
        assert self.replica.chance
        seed_alike(module, outer)
        #: Carries out a movement together with the other workers; set by the engine that has them.
        self.move: Callable[[Request], Tensor] = _alone

    def walk(self, chunk: Chunk, batch: Batch, weight: float) -> Walk:
        """Compute a chunk: the walk seeds its chance, asks for movements, and ends with the chunk's mean loss."""
        replica = self.replica
        prepared = replica.prepared(chunk, batch)
        _, tensors = TracedCall.of(replica.loss, prepared)
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        if shapes not in self.models:
            sizes = " or ".join(" and ".join(map(str, each)) for each in self.models)
            raise JobError(
                f"the model was split for inputs of {sizes}, and some are {' and '.join(map(str, shapes))}; make all "
                "samples of one size, or take a plan that does not split layers"
            )
        if self.fused is not None:
            return (yield from self.fused.walk(self.models[shapes], replica, chunk, prepared, weight))
        return (yield from self.models[shapes].walk(replica, prepared, tensors, weight))

    def idle(self) -> Walk:
        """Take part in the movements of a chunk for which this worker has no samples."""
        return next(iter(self.models.values())).idle()

    def finish(self, computed: GradientSum) -> Generator[Request, Tensor, GradientSum]:
        """End an update: add up what this worker has computed with what others have, where chunks are its own."""
        if self.shares is None:
            return computed
        model = next(iter(self.models.values()))
        named = {PARAMETER + name: model.stored(name) for name in model.program.stored}
        return (yield from self.shares.finish(self.replica, model.program, named, computed))

    def batch(self, replica: Replica, reader: Reader, chunk: Chunk) -> Batch:
        return reader.batch(chunk)

    def backward(self, replica: Replica, chunk: Chunk, batch: Batch, weight: float) -> float:
        """Compute a chunk together with the other workers of the group; return its mean loss."""
        return self.drive(self.walk(chunk, batch, weight))

    def drive(self, walk: Generator[Request, Tensor, T]) -> T:
        """Run a walk to its end together with the other workers of the group."""
        try:
            answer = self.move(next(walk))  # no name for a request, which would keep its tensor while the walk goes on
            while True:
                answer = self.move(walk.send(answer))
        except StopIteration as ended:
            result: T = ended.value
            return result

    def take(self, replica: Replica) -> list[Tensor | None]:
        return take_gradients(replica.parameters)

    def stepper(self, replica: Replica, optimizer: Optimizer) -> None:
        return None


def seed_alike(module: nn.Module, outer: nn.Module) -> None:
    """Seed the modules that were traced as those that compute: unfolded layers call the former's hooks."""
    for one, other in zip(outer.modules(), module.modules(), strict=True):
        one._forward_pre_hooks = other._forward_pre_hooks


def _alone(request: Request) -> Tensor:
    raise AssertionError("a part of a model computes together with the others")


# Chunks of a worker under ZeRO by generated code (`compute="fused"`), which takes a network's parameters whole.
#
# gather every parameter, once in an update ──▶ one call: loss and gradients ──▶ scatter gradients, by the stage's rule
#
# Stage 3 has no parameter whole for longer than its layer needs it, and other splits move values within what would be
# one call: there PyTorch computes, layer by layer.

STAGES = (1, 2)  # of ZeRO, in which parameters are whole while an update is computed


class FusedShares:
    """A network of whole parameters, beside the shares that a worker stores."""

    def __init__(self, job: Job, module: nn.Module, model: SplitModel, shares: Shares) -> None:
        self.shares, self.shapes = shares, model.shapes
        memo: dict[int, object] = {}
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            sharded = model.program.stored[name].is_split if name in model.program.stored else False
            full = torch.empty(self.shapes[PARAMETER + name], dtype=tensor.dtype) if sharded else None
            memo[id(tensor)] = tensor if full is None else nn.Parameter(full, tensor.requires_grad)
        self.whole = copy.deepcopy(module, memo)
        self.parameters = dict(self.whole.named_parameters())
        self.network = network(job, self.whole)

    def walk(self, model: SplitModel, replica: Replica, chunk: Chunk, batch: Batch, weight: float) -> Walk:
        """Compute a chunk: the walk asks for each parameter whole, and ends with the chunk's mean loss."""
        for step in model.steps:
            if not step.value or step.back or not self.shares.moves(step):
                continue
            name, shape = step.value.removeprefix(PARAMETER), model.program.shapes[step.value]
            moved = yield Request(step, shape, model.stored(name).detach(), self.shapes[step.value])
            self.shares.keep(step, moved)
            self.parameters[name].data.copy_(moved)
        (x,), y = split_batch(batch)
        loss, gradients = self.network.loss_and_gradients(
            x, y, mix(replica.job.seed, chunk.update, chunk.number) & LARGEST
        )
        for step in model.steps:
            if not step.value or not step.back:
                continue
            name, shape = step.value.removeprefix(PARAMETER), model.program.shapes[step.value]
            gradient: Tensor = (
                gradients[name] * weight if name in gradients else torch.zeros_like(self.parameters[name])
            )
            if self.shares.moves(step):
                back = yield Request(step, shape, gradient.contiguous(), self.shapes[step.value])
                add_gradient(model.stored(name), back)
            else:
                self.shares.add(step.value, gradient)
        return loss


LARGEST = 2**63 - 1
