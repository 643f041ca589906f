"""What workers do under a programme. Each is a learner and a shard: it computes its chunks, and holds a slice of every
vector.

    parameters    | worker 0 | worker 1 | worker 2 |     whole in every replica while it evaluates
    gradient      |    .     |    .     |    .     |
    direction     |    .     |    .     |    .     |
    s0, y0, ...   |    .     |    .     |    .     |

The bits of a product depend on where vectors are cut, so everybody cuts them by the same rule, and sums the parts in
the order of one table.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.algorithms.collectives import segment_cuts
from paceline.algorithms.coordinators import GRADIENT, PARAMETERS, Algebra, Axpy, Coordinator, Copy, Dot
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.layout import Layout
from paceline.training.parameters.worker_state import WorkerState


class VectorSlice:
    """One worker. All evaluations of an update start from the same moving buffers; those that the first one leaves are
    kept.
    """

    def __init__(self, learner: Learner, layout: Layout, coordinator: Coordinator, worker: int, workers: int) -> None:
        self.learner, (self.layout,) = learner, layout.shards
        self.parameters = [p.detach() for p in learner.replica.parameters]
        length = self.layout.buffers[0].start if self.layout.buffers else self.layout.length
        cuts = segment_cuts(length, workers, layout.bytes_per_number)
        self.slice = slice(cuts[worker], cuts[worker + 1])
        self.whole = torch.zeros(self.layout.length, dtype=layout.dtype)
        self.vectors = {name: torch.zeros_like(self.whole[self.slice]) for name in coordinator.vectors}
        self.load(PARAMETERS, self.parameters)
        self.buffers = [b.clone() for b in learner.replica.moving]
        self.kept: list[Tensor] | None = None  # none before the update's first evaluation

    def finalize(self, gradient: GradientSum) -> None:
        """Keep this worker's slice of the batch's gradient."""
        self.load(GRADIENT, self.learner.finalize(gradient))
        if self.kept is None:
            self.kept = [b.clone() for b in self.learner.replica.moving]
        self.learner.set_buffers(self.buffers)

    def load(self, name: str, tensors: Sequence[Tensor | None]) -> None:
        """Keep one's slice of a whole vector; a parameter without a gradient has zeros there."""
        for view, tensor in zip(self.layout.parameter_views(self.whole), tensors, strict=True):
            view.zero_() if tensor is None else view.copy_(tensor)
        self.vectors[name].copy_(self.whole[self.slice])

    def offer(self, flat: Tensor) -> None:
        """Lay down one's slice of the parameters, so that the sum of all workers' vectors is the whole."""
        flat.zero_()
        flat[self.slice] = self.vectors[PARAMETERS]

    def take(self, flat: Tensor) -> None:
        """Take the whole parameters into the replica."""
        for parameter, view in zip(self.parameters, self.layout.parameter_views(flat), strict=True):
            parameter.copy_(view)

    def perform(self, command: Algebra) -> None:
        target = self.vectors[command.target]
        if isinstance(command, Copy):
            target.copy_(self.vectors[command.source])
        elif isinstance(command, Axpy):
            target.add_(self.vectors[command.other], alpha=command.factor)
        else:
            target.mul_(command.factor)

    def dot(self, command: Dot) -> float:
        """This slice's part of the product, in float64 whatever the vectors are."""
        return float(torch.dot(self.vectors[command.one].double(), self.vectors[command.other].double()))

    def end(self) -> None:
        """The update is made."""
        assert self.kept is not None
        self.learner.set_buffers(self.kept)
        self.buffers, self.kept = self.kept, None

    def worker_state(self) -> WorkerState:
        """The worker's slices between two updates; the replica itself belongs to the learner."""
        return WorkerState({f"vector.{name}": vector for name, vector in self.vectors.items()})

    def restore(self, worker_state: WorkerState) -> None:
        for name, vector in self.vectors.items():
            vector.copy_(worker_state.tensors[f"vector.{name}"])
        self.buffers = [b.clone() for b in self.learner.replica.moving]
