"""Gradients from generated machine code: compute="fused", under any plan."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.chance import mix
from paceline.algorithms.rules import Rule
from paceline.errors import JobError, JobWarning, users_code
from paceline.kernels import CannotFuse, Fused, NoCompiler, fuse, fuse_ranks
from paceline.kernels.compiled import Compiled, CompiledCall
from paceline.kernels.exchange import PLACE, places_of
from paceline.kernels.graph import describe
from paceline.kernels.losses import loss_kind
from paceline.kernels.one_pass import ServedRule, ServedStep, served_step
from paceline.kernels.optimizers import rule_of
from paceline.kernels.processors import Cpu
from paceline.kernels.ranks import own_rank
from paceline.kernels.resident import Clipping, GradientsByNumber, Resident, UpdateLoop, norm, ways
from paceline.kernels.serve import Served, address_of, program
from paceline.training.data.shards import Shards
from paceline.training.data.source import Reader, Source, TensorSource
from paceline.training.gradients.loss import split_batch
from paceline.training.gradients.native_step import agrees, row_of
from paceline.training.gradients.probe import known
from paceline.training.gradients.replica import Replica, clipped, take_gradients
from paceline.training.jobs.job import Batch, Job
from paceline.training.parameters.layout import trainable
from paceline.training.parameters.optimizers import Optimizer, has_hooks

# The job's `gradient_clip_norm` in generated code, where that has the bits of `gradients.replica.clipped`.

#: Of vectors whose norms are compared: any number that a vector of the processor may leave over, and many numbers.
COUNTS = (*range(1, 50), 1003, 20_011)
DRAWS = 6


def native_clipping(
    places: np.ndarray, shapes: Sequence[torch.Size], dtype: torch.dtype, limit: float
) -> Clipping | None:
    """Return what clips gradients of these shapes at these places; None where PyTorch's bits are not found."""
    counts = {*map(prod, shapes), *COUNTS}
    way = next((way for way in range(ways(dtype)) if _adds_alike(way, dtype, sorted(counts))), None)
    if way is None or not _clips_alike(shapes, dtype, limit, way):
        return None
    return Clipping.of(places, dtype, limit, way)


def _adds_alike(way: int, dtype: torch.dtype, counts: Sequence[int]) -> bool:
    """Whether this is the way in which PyTorch sums squares."""
    draw = torch.Generator().manual_seed(1)
    vectors = (torch.randn(count, dtype=dtype, generator=draw) for count in counts for _ in range(DRAWS))
    return all(norm(way, x) == float(torch.linalg.vector_norm(x)) for x in vectors)


@torch.no_grad()
def _clips_alike(shapes: Sequence[torch.Size], dtype: torch.dtype, limit: float, way: int) -> bool:
    """Whether gradients of these shapes have PyTorch's bits: large ones, which are clipped, and small ones."""
    counts = list(map(prod, shapes))
    starts = np.cumsum([0, *counts[:-1]]).tolist()
    rows = [(0, start, 1, count, count) for start, count in zip(starts, counts, strict=True)]
    clipping = Clipping.of(np.array(rows, PLACE), dtype, limit, way)
    draw = torch.Generator().manual_seed(1)
    for size in (limit, 1e-9 * limit):
        flat = torch.randn(sum(counts), dtype=dtype, generator=draw) * size
        theirs = clipped([part.view(shape) for part, shape in zip(flat.split(counts), shapes, strict=True)], limit)
        clipping.apply(flat)
        if not torch.equal(flat, torch.cat([g.flatten() for g in theirs if g is not None])):
            return False
    return True


FusedNetwork = Fused  # a network with its optimizer, of this process or of all ranks of an MPI program


class FusedGradients:
    """Computes gradients by code that was generated for the module, on the device where the module is."""

    calls_modules = False

    def __init__(self, job: Job, module: nn.Module) -> None:
        self.fused = network(job, module)
        self.names = {id(p): name for name, p in module.named_parameters()}
        #: Where samples are read from, and what reads them by their numbers; None where batches are made.
        self._source: Source | None = None
        self._by_number: GradientsByNumber | None = None

    def batch(self, replica: Replica, reader: Reader, chunk: Chunk) -> Batch:
        """Return the numbers of a chunk's samples, if generated code can read the samples where they lie."""
        if self._source is not reader.source:
            self._source, tensors = reader.source, readable(self.fused, replica.job, reader.source)
            self._by_number = GradientsByNumber(self.fused, *tensors) if tensors else None
        return reader.batch(chunk) if self._by_number is None else reader.order.indices(chunk)

    def backward(self, replica: Replica, chunk: Chunk, batch: Batch, weight: float) -> float:
        seed = mix(replica.job.seed, chunk.update, chunk.number) & (2**63 - 1)
        if self._by_number is not None:
            loss, gradients = self._by_number.compute(batch, seed)
        else:
            (x,), y = split_batch(replica.prepared(chunk, batch))
            loss, gradients = self.fused.loss_and_gradients(x, y, seed)
        pairs = [(p, g) for p in replica.parameters if (g := gradients.get(self.names[id(p)])) is not None]
        weighted = torch._foreach_mul([gradient for _, gradient in pairs], weight)
        for (parameter, _), gradient in zip(pairs, weighted, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        return loss

    def take(self, replica: Replica) -> list[Tensor | None]:
        return take_gradients(replica.parameters)

    def stepper(self, replica: Replica, optimizer: Optimizer) -> FusedStep | None:
        """Return the generated step, where the optimizer has a text and nothing listens to its own."""
        if not isinstance(self.fused.processor, Cpu) or self.fused.optimizer is None or has_hooks(optimizer):
            return None
        return FusedStep(self.fused, optimizer, replica.parameters)

    def served(
        self, replica: Replica, source: Source, optimizer: Optimizer, rule: Rule, in_place: bool
    ) -> ServedNetwork | None:
        """Return the network for updates at a server, where generated code makes the steps of rule and optimizer with
        their bits. `in_place` says that all workers write into one memory, where there are no versions.
        """
        step, row = served_step(optimizer), row_of(rule)
        if not isinstance(self.fused.processor, Cpu) or has_hooks(optimizer) or step is None or row is None:
            return None
        tensors, (text, constants) = readable(self.fused, replica.job, source), row
        if not tensors or not agrees(optimizer, self.fused.weights.dtype, step, text, rule, constants):
            return None
        network = ServedNetwork(self.fused, step, text, constants, in_place, *tensors)
        if replica.job.gradient_clip_norm is not None:
            network.clipping = clipping_of(replica, network.made)
            if network.clipping is None:
                return None
        return network


class ServedNetwork:
    """A network whose gradients go to a server, as a call of generated code computes them."""

    def __init__(
        self,
        fused: FusedNetwork,
        step: ServedStep,
        rule: ServedRule,
        constants: tuple[float, ...],
        in_place: bool,
        x: Tensor,
        y: Tensor,
    ) -> None:
        self.fused, self.step, self.rule, self.constants = fused, step, rule, constants
        self.made, self._tensors = fused.compiled(x[:1]), (x, y)
        self._updates = program(fused.weights.dtype, step, rule, in_place)
        #: How gradients are clipped; None where they are taken as they are.
        self.clipping: Clipping | None = None
        #: Of the function that computes gradients.
        self.address = address_of(self.made.program.run)

    def call(self, seed: int, doing: np.ndarray) -> tuple[CompiledCall, object]:
        """Return a call for gradients, and what has to live as long as it does.

        seed    of the job
        doing   the integer, in memory that others may read, that says which batch is being computed
        """
        call, keepalive = self.fused.call_for(self.made, *self._tensors)
        call.seed, call.doing, call.updates, call.update, call.stride = seed, doing.ctypes.data, 1, -1, 1
        return call, (keepalive, doing)

    @torch.no_grad()
    def make(self, call: CompiledCall, served: Served, order: Tensor, batch: int) -> None:
        """Make updates of the batches of `order`, one epoch's, until the call ends."""
        self.made.take_weights()
        call.order, call.samples, call.batch = order.data_ptr(), len(order), batch
        self.fused.give_arenas(self.made, call)
        self._updates(call, served)


class FusedStep:
    """The optimizer's step by generated code, on parameters and state that lie in its memory.

    An update that is made alone is stepped by the same code as those of a call, so both have the same bits.
    """

    def __init__(self, fused: FusedNetwork, optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
        self.fused, self.optimizer, self.parameters = fused, optimizer, parameters
        self._resident: Resident | None = None

    def __call__(self) -> None:
        """Apply the gradients that the parameters have."""
        self.resident().step([(p, p.grad) for p in self.parameters if p.grad is not None])

    def resident(self, x: Tensor | None = None) -> Resident:
        """Return the module in generated code's memory, laid out for samples such as `x`, or those seen first."""
        if self._resident is None:
            self._resident = Resident(self.fused, self.optimizer, x)
        return self._resident

    def loop(self, x: Tensor, y: Tensor, seed: int, doing: np.ndarray, most: int) -> UpdateLoop:
        """Return what makes up to `most` updates in one call from these samples; `doing` says which is being made."""
        return UpdateLoop(self.resident(x[:1]), x, y, seed, doing, most)


def clipping_of(replica: Replica, compiled: Compiled) -> Clipping | None:
    """Return how generated code clips gradients as the job asks; None where it has not the same bits."""
    parameters = trainable(replica.module)
    memory, limit = compiled.memory["gradients"], replica.job.gradient_clip_norm
    places = places_of(compiled.gradients, memory, dict.fromkeys(parameters, 0))
    if limit is None or places is None:
        return None
    return native_clipping(places, [p.shape for p in parameters.values()], memory.dtype, limit)


def readable(fused: FusedNetwork, job: Job, source: Source) -> tuple[Tensor, Tensor] | None:
    """Return inputs and targets if generated code can read them where they lie; None where they change on the way."""
    if not isinstance(source, TensorSource | Shards) or job.batch_transform is not None:
        return None
    if job.loss_denominator is not None or (tensors := source.tensors) is None:
        return None
    x, y = tensors
    dtype = fused.weights.dtype if x.is_floating_point() else torch.int64
    # Another type is converted batch by batch: all of it would be a copy of the data.
    return (x, y) if isinstance(fused.processor, Cpu) and x.dtype == dtype and x.is_contiguous() else None


def network(job: Job, module: nn.Module) -> FusedNetwork:
    """Return the network as each worker computes it, with the job's optimizer if that has a text."""
    assert job.loss is not None
    make: Callable[..., Optimizer] | None = partial(job.make_optimizer, module)
    try:
        rule_of(job.make_optimizer(module, list(trainable(module).values())), 0.0)
    except CannotFuse:
        make = None
    return fuse(module, job.loss, make, job.batch_size, threads=torch.get_num_threads())


def by_one(job: Job, module: nn.Module) -> FusedNetwork:
    """Return the network with its optimizer, as this process trains it alone."""
    assert job.loss is not None
    return fuse(module, job.loss, partial(job.make_optimizer, module), job.batch_size * job.accumulate_grad_batches)


def by_ranks(job: Job, module: nn.Module) -> FusedNetwork:
    """Return the network as all ranks of an MPI program train it: on the CPU, or each on a GPU."""
    assert job.loss is not None
    where = torch.device(job.device)
    if where.type == "cuda":
        module.to(where if where.index is not None else torch.device("cuda", own_rank() % torch.cuda.device_count()))
    return fuse_ranks(
        module, job.loss, partial(job.make_optimizer, module), job.batch_size * job.accumulate_grad_batches
    )


def fused_if_possible(job: Job, users_job: Job, module: nn.Module, source: Source, native: bool) -> Job:
    """Return the job where its network has kernels; without a compiler, a job whose gradients PyTorch computes."""
    if native:
        raise JobError("plan ddp is PyTorch's own, autograd included; compute='fused' goes with every other plan")
    try:
        known("fusible", job, users_job, lambda: check_fusible(job, module, source))
    except NoCompiler as error:
        warnings.warn(f"{error}; this run does", JobWarning, stacklevel=4)
        return job.with_(compute="autograd")
    return job


def check_fusible(job: Job, module: nn.Module, source: Source) -> None:
    """Raise `JobError` for a network without kernels, before anything is started.

    The kernels are compiled here, so that workers find them in the cache.
    """
    x, y = first_batch(job, source)
    if job.device != "cpu":  # whose kernels the workers make, since this process keeps away from the GPU
        check_described(job, module, x)
        return
    network(job, module).prepare(x, y)


def check_described(job: Job, module: nn.Module, x: Tensor) -> None:
    """Raise `JobError` for a loss, or a layer of the module, that has no kernel."""
    assert job.loss is not None
    loss_kind(job.loss)
    describe(module, tuple(x.shape[1:]), not x.is_floating_point())


def check_settings(job: Job) -> None:
    """Raise `JobError` for settings of a job by which generated code cannot compute, whatever its network is."""
    if job.loss is None:
        raise JobError(
            "compute='fused' needs loss=, since it reads it instead of running it; step= is compute='autograd'"
        )
    if job.precision != "32-true":
        raise JobError(f"compute='fused' computes in the model's own precision, not in {job.precision}")


def first_batch(job: Job, source: Source) -> tuple[Tensor, Tensor | None]:
    """Return inputs and targets of the first batch; raise `JobError` for what generated code does not take."""
    check_settings(job)
    with users_code("the first batch"):
        batch = source.batch(torch.arange(min(len(source), job.batch_size)), 0)
        if job.batch_transform is not None:
            batch = job.batch_transform(batch)
        inputs, y = split_batch(batch)
    if len(inputs) != 1 or not isinstance(inputs[0], torch.Tensor):
        raise JobError("compute='fused' takes one tensor as the network's input; compute='autograd' takes any")
    return inputs[0], y if isinstance(y, Tensor) else None
