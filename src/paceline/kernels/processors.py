"""What compiles a plan for one kind of hardware and runs it there: CPUs here, and the processes that share a call.

node 0   its share of the batch ──▶ gradient ─┐
node 1   its share of the batch ──▶ gradient ─┴▶ one all-reduce of the flat gradient ──▶ the step, on each
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

import paceline.kernels.machine as machine
from paceline.kernels.build import compiler, library
from paceline.kernels.compiled import Compiled, CompiledCall
from paceline.kernels.layers.base import CannotFuse
from paceline.kernels.machine import peak
from paceline.kernels.memory import Target
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import CHUNKS, Plan
from paceline.kernels.printers.cpp import text

# What compiles a plan for one kind of hardware, and runs it there.


class CompiledText(Protocol):
    """A text, compiled."""

    file: Path
    #: Whether it was found in the cache.
    cached: bool


class Processor(Protocol):
    """A CPU or a GPU, for which texts are printed and compiled, and on which their calls run."""

    #: The device that all numbers of a call lie on.
    where: torch.device
    #: The gradients of a batch that are summed apart, at most, for any number of threads.
    chunks: int
    threads: int

    def target(self, real: str, batch_size: int) -> Target:
        """What a text for batches of so many samples is for; `real` is float or double."""
        ...

    def text(self, plan: Plan, rule: Rule) -> str:
        """The whole text of a plan and of the optimizer's rule."""
        ...

    def load(self, text: str) -> CompiledText:
        """Compiles a text, or finds it in the cache."""
        ...

    def arenas(self, plan: Plan, batch: int) -> int:
        """The number of groups of samples that need memory at once."""
        ...

    def run(self, compiled: Compiled, call: CompiledCall) -> None:
        """The call's updates; or, where its update is negative, the gradients of one batch."""
        ...

    def apply(self, compiled: Compiled, call: CompiledCall) -> None:
        """The optimizer's step alone, by the gradient of the first chunk."""
        ...

    def check_places(self, *tensors: Tensor) -> None:
        """Refuses tensors that lie where this processor does not take them from."""
        ...

    def explain(self, compiled: Compiled) -> list[str]:
        """Say which compiler made the code, where its text lies, and how samples are shared out."""
        ...

    def share(self, gflops: float) -> str:
        """How much of the hardware's peak a speed is, in words; empty if the peak is unknown."""
        ...


def how_made(compiled: Compiled) -> str:
    """Whether a program was compiled, in words."""
    return "from the cache" if compiled.program.cached else f"compiled in {compiled.seconds:.2f} s"


Sizes = Mapping[str, tuple[int, torch.dtype]]  # how many numbers of which type, by name


class TeamNode(Protocol):
    """The processes that share one memory and train as one team, as threads do."""

    #: Whether this process clears what all of them share, and speaks for the node.
    leads: bool

    def first(self) -> AbstractContextManager[None]:
        """A context that the leading process enters before the others, so that these find what it compiled."""
        ...

    def allocate(self, sizes: Sizes, where: torch.device) -> dict[str, Tensor]:
        """Zeros that all processes of the node see."""
        ...

    def barrier(self) -> None:
        """Waits until all processes of the node are here."""
        ...

    def work(self, run: Callable[[], None], team: Tensor) -> None:
        """Runs a call together with the others; `team` is the shared row of work."""
        ...

    def close(self) -> None:
        """Gives shared memory back; all processes together."""
        ...


class OneProcess:
    """A node of one process."""

    leads = True

    def first(self) -> AbstractContextManager[None]:
        return nullcontext()

    def allocate(self, sizes: Sizes, where: torch.device) -> dict[str, Tensor]:
        return {name: torch.zeros(count, dtype=dtype, device=where) for name, (count, dtype) in sizes.items()}

    def barrier(self) -> None:
        """There is no other process to wait for."""

    def work(self, run: Callable[[], None], team: Tensor) -> None:
        run()

    def close(self) -> None:
        """Nothing is shared."""


@dataclass(frozen=True)
class Nodes:
    """The nodes of an MPI program, each with a share of every batch."""

    number: int = 0  # of this node
    count: int = 1
    heads: Any = None  # an mpi4py communicator of each node's leading rank
    world: Any = None  # an mpi4py communicator of all ranks

    def all_reduce(self, numbers: Tensor) -> None:
        """The sum over all nodes, by way of the host's memory."""
        from mpi4py import MPI

        host = numbers.cpu()
        self.heads.Allreduce(MPI.IN_PLACE, host.numpy(), MPI.SUM)
        numbers.copy_(host)


class Runner:
    """Runs calls on a processor, by all processes of a node and by all nodes."""

    def __init__(self, processor: Processor, node: TeamNode | None = None, nodes: Nodes | None = None) -> None:
        self.processor, self.node, self.nodes = processor, node or OneProcess(), nodes or Nodes()

    def run(self, compiled: Compiled, call: CompiledCall) -> float:
        """Makes the call's updates; the sum of their losses."""
        self.node.barrier()
        if self.node.leads:
            compiled.memory["losses"].zero_()
        if self.nodes.count == 1:
            self._by_node(compiled, call)
        else:
            self._by_nodes(compiled, call)
        total = 0.0
        for part in self.losses(compiled).tolist():  # in the order in which generated code adds up those of a call
            total += part
        return total

    def losses(self, compiled: Compiled) -> Tensor:
        """The sum of the updates' losses, by lane."""
        return compiled.memory["losses"][self.processor.chunks * compiled.plan.target.lanes :]

    def _by_node(self, compiled: Compiled, call: CompiledCall) -> None:
        """Runs the call by all processes of this node."""
        team = compiled.memory["team"]
        if self.node.leads:
            team.zero_()
        self.node.barrier()
        self.node.work(lambda: self.processor.run(compiled, call), team)
        self.node.barrier()

    def _by_nodes(self, compiled: Compiled, call: CompiledCall) -> None:
        """Update by update: this node's share of the batch, the sum over all nodes, the optimizer's step."""
        node, nodes = self.node, self.nodes
        samples, order, first, updates, seed = call.samples, call.order, call.update, call.updates, call.seed
        gradient, losses = compiled.memory["gradients"][: compiled.plan.sizes["weights"]], self.losses(compiled)
        for update in range(updates):
            begin = update * call.batch
            size = min(call.batch, samples - begin)
            start, stop = (size * part // nodes.count for part in (nodes.number, nodes.number + 1))
            share, before = (stop - start) / size, losses.clone()
            call.order, call.samples = order + 8 * (begin + start), stop - start
            call.updates, call.update = 1, -1
            call.seed = _mixed(seed, first + update, nodes.number)
            if share:
                self._by_node(compiled, call)
            if node.leads:
                gradient.mul_(share) if share else gradient.zero_()
                losses.copy_(before + (losses - before) * share)
                nodes.all_reduce(gradient)
            node.barrier()
            call.update = first + update
            if node.leads and first >= 0:
                self.processor.apply(compiled, call)
            node.barrier()
        if node.leads:
            nodes.all_reduce(losses)
        node.barrier()


def _mixed(*numbers: int) -> int:
    """A seed of its own for each update on each node: dropout is drawn by seed and place in the call's batch."""
    seed = 0
    for number in numbers:
        seed = (seed * 0x9E3779B97F4A7C15 + number + 0x632BE59BD9B4E019) % 2**63
    return seed


# Generated kernels on a CPU: a shared library, whose functions threads call as one team.

FEW = 2  # samples that are quicker one by one


def vector_target(real: str, batch_size: int) -> Target:
    """Samples side by side; where a batch has too few, the neighbouring numbers of one sample."""
    return replace(machine.target(real), pixels=batch_size <= FEW)


def replica_target(real: str, batch_size: int) -> Target:
    """Copies of the model side by side."""
    return replace(machine.target(real), replicas=True)


class Library:
    """A text as a shared library: `run` makes a call's updates, `apply` the optimizer's step alone."""

    def __init__(self, functions: ctypes.CDLL, file: Path, cached: bool) -> None:
        self.functions, self.file, self.cached = functions, file, cached
        self.run, self.apply = functions.paceline_run, functions.paceline_apply
        for entry in (self.run, self.apply):
            entry.argtypes, entry.restype = [ctypes.c_void_p], None


def load(source: str) -> Library:
    """Compiles a text with the compiler at hand, or finds it in the cache."""
    return Library(*library(source))


@dataclass(frozen=True)
class Form:
    """The form that a plan's text has: for which vectors it is, how it is printed, how it becomes a library."""

    target: Callable[[str, int], Target] = vector_target
    text: Callable[[Plan, Rule], str] = text
    load: Callable[[str], Library] = load


class Cpu:
    """The cores that this process may use, `threads` of them at most."""

    where = torch.device("cpu")
    chunks = CHUNKS

    def __init__(self, threads: int, form: Form | None = None) -> None:
        self.threads = max(1, min(threads, machine.cores()))
        self.form = form or Form()

    def target(self, real: str, batch_size: int) -> Target:
        return self.form.target(real, batch_size)

    def text(self, plan: Plan, rule: Rule) -> str:
        return self.form.text(plan, rule)

    def load(self, text: str) -> Library:
        return self.form.load(text)

    def arenas(self, plan: Plan, batch: int) -> int:
        """One per thread; where samples wait for all others of the batch, one per group."""
        groups = batch if plan.target.replicas else -(-batch // plan.target.lanes)
        return groups if len(plan.phases) > 1 else self.threads

    def run(self, compiled: Compiled, call: CompiledCall) -> None:
        compiled.program.run(ctypes.byref(call))

    def apply(self, compiled: Compiled, call: CompiledCall) -> None:
        compiled.program.apply(ctypes.byref(call))

    def check_places(self, *tensors: Tensor) -> None:
        if any(tensor.device.type != "cpu" for tensor in tensors):
            x, y, *_ = tensors
            raise CannotFuse(
                f"x on {x.device}, y on {y.device}, and the module on the CPU: its kernels are for the CPU"
            )

    def explain(self, compiled: Compiled) -> list[str]:
        target = compiled.plan.target
        return [
            f"path: generated C++, {how_made(compiled)}, by {compiler()}",
            f"text: {compiled.program.file.with_suffix('.cpp')}",
            f"lanes: {target.lanes} samples side by side, in vectors of {target.bytes} bytes; "
            f"{self.threads} thread{'s' * (self.threads > 1)}, at most {CHUNKS} chunks a batch",
        ]

    def share(self, gflops: float) -> str:
        share = gflops / peak(1).gflops / self.threads
        cores = f"{self.threads} core{'s' * (self.threads > 1)}"
        return f", {share:.0%} of the multiply-adds that {cores} could do at most"
