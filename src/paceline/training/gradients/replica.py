"""A replica is one worker's copy of the model, with the gradients of its chunks and the randomness that they draw."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.chance import mix
from paceline.algorithms.rules import Averaging, Rule
from paceline.errors import JobError
from paceline.training.data.source import Reader
from paceline.training.gradients.loss import backward_from, loss_function
from paceline.training.gradients.native_step import native_step
from paceline.training.jobs.job import PRECISIONS, Batch, Job, seeded_elsewhere
from paceline.training.parameters.layout import not_trained, trainable
from paceline.training.parameters.optimizers import Optimizer
from paceline.training.parameters.rows import coalesced, total_norm
from paceline.training.parameters.store import LocalStore
from paceline.training.parameters.worker_state import WorkerState, copy_into, state_of_tensors

# Randomness as a function of (seed, update, chunk, module), never of the worker or of time.
#
# Reseeding the default generator costs about a microsecond (torch.manual_seed, which visits every device, costs a
# hundred), so it is done at the start of every chunk and again before every module that draws. So a chunk draws
# the same numbers at every worker, in every part of the model.

_DRAWING = (nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention, nn.RReLU)


class Chance:
    """Seeds a module's randomness by the chunk that `begin` names.

    Without `by_module` only the chunk's start is seeded: a hook of a module would cut compiled code in two.
    """

    def __init__(
        self, module: nn.Module, seed: int, device: torch.device | None = None, *, by_module: bool = True
    ) -> None:
        self._start = mix(seed, 0)
        self._chunk = self._turn = self._before = 0
        self._seed = _seeder(device)
        for number, part in enumerate(module.modules(), start=1):
            if by_module and draws(part):
                part.register_forward_pre_hook(self._reseeder(number))

    def begin(self, update: int, chunk: int, call: tuple[int, int] | None = None) -> None:
        """Seed the generators for a chunk; or for one `call`: of which part of the model, and after how many others."""
        self._turn += 1
        self._chunk = mix(self._start, update, chunk)
        self._before = call[1] if call else 0
        self._seed(mix(self._chunk, *call) if call else self._chunk)

    def again(self) -> None:
        """Seed the generators as at the start of the chunk."""
        self._seed(self._chunk)

    def _reseeder(self, number: int):  # type: ignore[no-untyped-def]
        salts = [mix(number)]  # of the first, second ... call in a chunk: one dropout used twice draws twice
        turn = call = 0

        def reseed(part: nn.Module, inputs: object) -> None:
            nonlocal turn, call
            if not part.training:
                return
            now = -self._turn if torch._C._current_graph_task_id() >= 0 else self._turn  # again, for a checkpoint
            turn, call = now, call + 1 if turn == now else self._before
            while call >= len(salts):
                salts.append(mix(number, len(salts)))
            self._seed(self._chunk ^ salts[call])

        return reseed


def _seeder(device: torch.device | None) -> Callable[[int], object]:
    """Return a function that seeds the CPU's generator, and the device's where the module is on a GPU."""
    host = torch.default_generator.manual_seed
    if device is None or device.type != "cuda":
        return host
    seed_device = torch.cuda.default_generators[device.index or 0].manual_seed

    def seed_both(seed: int) -> None:
        host(seed)
        seed_device(seed)

    return seed_both


def draws(part: nn.Module) -> bool:
    """Return whether a module draws random numbers in training."""
    if not isinstance(part, _DRAWING):
        return False
    dropout = getattr(part, "dropout", getattr(part, "p", 1.0))
    return isinstance(part, nn.RReLU) or dropout > 0


def reseed(part: nn.Module, inputs: tuple[object, ...]) -> None:
    """Seed as a call of the module would, where its parts are called instead of it."""
    for hook in part._forward_pre_hooks.values():
        hook(part, inputs)


# Ends a child process that the user's code forked and let return into the training, where it would train as well.

NUMBER = 8  # bytes of a process number


def watched() -> tuple[int, mmap.mmap]:
    """Return this process, and the memory in which its children leave their number; to be called before users' code."""
    process = os.getpid()
    return process, _shared(process)


def check(process: int, returned: mmap.mmap) -> None:
    """Let a child of the process end here, and raise `JobError` in the process itself once one has returned."""
    if os.getpid() != process:
        returned[:] = os.getpid().to_bytes(NUMBER, "little")
        os._exit(1)
    if child := int.from_bytes(returned[:], "little"):
        returned[:] = bytes(NUMBER)  # the next training of this process begins without it
        raise JobError(
            f"the job's code forked process {child} and let it return into the training, which would then run twice; "
            "end a child by os._exit(), or start it by subprocess or multiprocessing"
        )


@cache
def _shared(process: int) -> mmap.mmap:
    return mmap.mmap(-1, NUMBER)


CPU = torch.device("cpu")
NOTHING: contextlib.AbstractContextManager[object] = contextlib.nullcontext()


class GradientMethod(Protocol):
    """Computes a replica's gradients."""

    #: Whether it calls the replica's modules, with their hooks; generated code does not.
    calls_modules: bool

    def batch(self, replica: Replica, reader: Reader, chunk: Chunk) -> Batch:
        """Return the samples of a chunk, in the form that `backward` takes."""

    def backward(self, replica: Replica, chunk: Chunk, batch: Batch, weight: float) -> float:
        """Add weight x gradient of the chunk's mean loss to the gradients; return that mean loss, 0 without weight."""

    def take(self, replica: Replica) -> list[Tensor | None]:
        """Return the gradients, which now belong to the caller; None for parameters that got none."""

    def stepper(self, replica: Replica, optimizer: Optimizer) -> Callable[[], object] | None:
        """Return what steps the replica's parameters in place of the optimizer; None where that steps itself."""


class Autograd:
    """Computes gradients by PyTorch's autograd, which adds them up in `parameter.grad`."""

    calls_modules = True

    def batch(self, replica: Replica, reader: Reader, chunk: Chunk) -> Batch:
        return reader.batch(chunk)

    def backward(self, replica: Replica, chunk: Chunk, batch: Batch, weight: float) -> float:
        if not weight:
            return 0.0  # the loss would be divided by 0
        # A step may have backward passes of its own, and clear what they leave: it finds no gradient of chunks before.
        before = [] if replica.job.step is None else take_gradients(replica.parameters)
        loss = replica.forward(replica.module, chunk, batch)
        backward_from(loss, weight)
        for parameter, earlier in zip(replica.parameters, before, strict=bool(before)):
            if earlier is not None:
                parameter.grad = earlier if parameter.grad is None else earlier + parameter.grad
        return float(loss.detach())

    def take(self, replica: Replica) -> list[Tensor | None]:
        return take_gradients(replica.parameters)

    def stepper(self, replica: Replica, optimizer: Optimizer) -> Callable[[], object] | None:
        return native_step(optimizer)


AUTOGRAD = Autograd()


class Replica:
    """The module of one worker. Gradients of successive chunks add up until `take`.

    `moving` names the buffers that training changes, such as batch-norm statistics.
    """

    def __init__(
        self,
        job: Job,
        module: nn.Module,
        moving: tuple[str, ...],
        device: torch.device = CPU,
        gradients: GradientMethod = AUTOGRAD,
    ) -> None:
        self.job = job
        self.device = device
        self.gradients = gradients
        self.module = module.to(device)
        self.parameters = list(trainable(module).values())
        self.autocast = PRECISIONS[job.precision]
        buffers = not_trained(module)
        self.moving = [buffers[name] for name in moving]
        self._compiled = False

    def compile(self, options: Mapping[str, Any]) -> None:
        """Let `torch.compile` compile the module, in place: its parameters keep their names."""
        self.module.compile(**options)
        self._compiled = True

    @cached_property
    def chance(self) -> Chance:
        """The module's randomness, tied to chunks on first use: a module that computes nothing here keeps its own."""
        by_module = self.gradients.calls_modules and not self._compiled
        return Chance(self.module, self.job.seed, self.device, by_module=by_module)

    @cached_property
    def loss(self) -> Callable[[nn.Module, Batch], Tensor]:
        return loss_function(self.job)

    def values(self) -> list[Tensor]:
        """Return the parameters, then the moving buffers."""
        return [p.detach() for p in self.parameters] + self.moving

    def worker_state(self) -> WorkerState:
        return state_of_tensors("values", self.values())

    def restore(self, worker_state: WorkerState) -> None:
        copy_into(self.values(), worker_state.many("values"))

    def local_store(self, optimizer: Optimizer, rule: Rule | Averaging) -> LocalStore:
        """Return a store of these parameters, which no other worker reads or writes."""
        step = self.gradients.stepper(self, optimizer)
        return LocalStore(self.parameters, optimizer, self.job.lr_scheduler, rule, step)

    def backward(self, chunk: Chunk, batch: Batch, weight: float) -> float:
        """Add weight x gradient of the chunk's mean loss to the gradients; return that mean loss."""
        return self.gradients.backward(self, chunk, batch, weight)

    def take(self) -> list[Tensor | None]:
        """Return the gradients, which now belong to the caller; None for parameters that got none."""
        return self.gradients.take(self)

    def forward(self, module: nn.Module, chunk: Chunk, batch: Batch) -> Tensor:
        """Return the chunk's loss, with the chunk's randomness and the job's precision."""
        process, returned = watched()
        batch = self.prepared(chunk, batch)
        with self.precision():
            loss = self.loss(module, batch)
        check(process, returned)
        return loss

    def prepared(self, chunk: Chunk, batch: Batch) -> Batch:
        """Return the chunk's batch as the model sees it, on its device."""
        batch = self.transformed(chunk, batch)
        return batch if self.device.type == "cpu" else to_device(batch, self.device)

    def precision(self) -> contextlib.AbstractContextManager[object]:
        if self.autocast is None:
            return NOTHING
        return torch.autocast(self.device.type, dtype=self.autocast)

    def transformed(self, chunk: Chunk, batch: Batch) -> Batch:
        """Return the batch, augmented where the job asks for it. From here on, randomness is this chunk's."""
        self.chance.begin(chunk.update, chunk.number)
        if self.job.batch_transform is None:
            return batch
        with seeded_elsewhere(mix(self.job.seed, chunk.update, chunk.number)):
            return self.job.batch_transform(batch)

    def chunk_weight(self, chunk: Chunk, batch: Batch) -> float:
        """Return the chunk's share of its update by samples, or what the job's own `weight` gives for the batch."""
        return chunk.weight if self.job.loss_denominator is None else float(self.job.loss_denominator(batch))


def take_gradients(parameters: list[nn.Parameter]) -> list[Tensor | None]:
    """Return the parameters' gradients and clear `parameter.grad`."""
    gradients = [coalesced(p.grad) for p in parameters]
    for parameter in parameters:
        # Dropped and not zeroed: the caller owns the tensors now, and the next backward makes new ones.
        parameter.grad = None
    return gradients


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Copy a batch from pinned memory, so that the copy runs while the host does other things.

    Lists, tuples and dictionaries are copied with what is in them, and objects with a method `to` (packed sequences,
    the batches of a tokenizer) by it. Anything else stays as it is.
    """
    if isinstance(batch, Tensor):
        return (batch.pin_memory() if device.type == "cuda" else batch).to(device, non_blocking=True)
    if callable(move := getattr(batch, "to", None)):
        return move(device)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        moved = [to_device(value, device) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch


def clipped(gradients: list[Tensor | None], limit: float | None) -> list[Tensor | None]:
    """Return all gradients, scaled so that their total norm is at most `limit`.

    They are in new memory, since another worker may still be reading the old.
    """
    present = [g for g in gradients if g is not None]
    if limit is None or not present:
        return gradients
    scale = torch.clamp(limit / (total_norm(present) + 1e-6), max=1.0)
    return [None if g is None else g * scale for g in gradients]
