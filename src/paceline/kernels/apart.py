"""A network trained by nodes that share no memory, GPUs or machines, each with a share of every batch.

node 0   its share of the batch ──▶ gradient ─┐
node 1   its share of the batch ──▶ gradient ─┴▶ one all-reduce of the flat gradient ──▶ the step, on each
"""

from __future__ import annotations

import ctypes
from typing import Any

from torch import Tensor

from paceline.kernels.compiled import Compiled
from paceline.kernels.fused import Fused


class Apart(Fused):
    world: Any  # an mpi4py communicator of all ranks
    heads: Any  # of the nodes' first ranks
    number: int  # of this node
    nodes: int

    def close(self) -> None:
        """Give back what MPI lent; together, and before MPI ends."""

    def _run(self, made: Compiled, call: Any) -> None:
        if self.nodes == 1:
            super()._run(made, call)
        else:
            self._run_apart(made, call)

    def _run_apart(self, made: Compiled, call: Any) -> None:
        """Update by update: this node's share of the batch, the sum of all nodes, the step."""
        whole, order, first, updates, seed = call.samples, call.order, call.update, call.updates, call.seed
        gradient = made.memory["gradients"][: made.plan.sizes["weights"]]
        losses = made.memory["losses"][self.chunks * made.plan.target.lanes :]
        for update in range(updates):
            begin = update * call.batch
            size = min(call.batch, whole - begin)
            mine = [size * part // self.nodes for part in (self.number, self.number + 1)]
            share = (mine[1] - mine[0]) / size
            before = losses.clone()
            call.order, call.samples, call.updates, call.update = (
                order + 8 * (begin + mine[0]),
                mine[1] - mine[0],
                1,
                -1,
            )
            call.seed = _mixed(seed, first + update, self.number)
            if share:
                super()._run(made, call)
            if self.leads:
                gradient.mul_(share) if share else gradient.zero_()
                losses.copy_(before + (losses - before) * share)
                self._added(gradient)
            self._meet()
            call.update = first + update
            if self.leads and first >= 0:
                self._apply(made, call)
            self._meet()
        if self.leads:
            self._added(losses)
        self._meet()

    def _added(self, numbers: Tensor) -> None:
        """What all nodes have, by way of the host's memory."""
        from mpi4py import MPI

        here = numbers.cpu()
        self.heads.Allreduce(MPI.IN_PLACE, here.numpy(), MPI.SUM)
        numbers.copy_(here)

    def _apply(self, made: Compiled, call: Any) -> None:
        """The optimizer's step, by the gradient that lies with the first chunk."""
        made.apply(ctypes.byref(call))


def _mixed(*numbers: int) -> int:
    """Of an update on a node: chance in the text is that of a seed and a place in the batch."""
    found = 0
    for number in numbers:
        found = (found * 0x9E3779B97F4A7C15 + number + 0x632BE59BD9B4E019) % 2**63
    return found
