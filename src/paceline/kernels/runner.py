"""Who runs a call: one process, the ranks of a node that share its memory, or nodes that share none.

node 0   its share of the batch ──▶ gradient ─┐
node 1   its share of the batch ──▶ gradient ─┴▶ one all-reduce of the flat gradient ──▶ the step, on each
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.kernels.compiled import Compiled, CompiledCall
from paceline.kernels.processor import Processor

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
