"""Jobs of one shape trained in generated code that all share: as many at a time as there are cores, one on each.

A member has the numbers of its separate training with compute="fused". Where a network's weights outgrow the nearest
cache when every lane has its own, this is faster than lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from torch import Tensor, nn

from paceline.algorithms.agenda import Agenda
from paceline.kernels import machine
from paceline.kernels.alike import fuse_alike
from paceline.kernels.weights import remember, remembered
from paceline.training.data.source import TensorSource
from paceline.training.gradients.stacks.members import Members
from paceline.training.jobs.job import Job


class CoreStack(Members):
    """Trains each member on a core of its own."""

    def __init__(self, jobs: Sequence[Job], source: TensorSource, agenda: Agenda, beside: Sequence[Job] = ()) -> None:
        """`beside` are jobs of this shape that will be trained by the same text later."""
        super().__init__(jobs, source, agenda)
        loss = jobs[0].loss
        assert loss is not None
        makers = [partial(job.make_optimizer, module) for job, module in zip(jobs, self.modules, strict=True)]
        first = self.modules[0]
        others = [job.make_optimizer(first, list(first.parameters())) for job in beside]
        size = jobs[0].batch_size
        self.fused = fuse_alike(self.modules, loss, makers, size, self.x[:size], self.y[:size], others)

    def advance(self, updates: int) -> list[float]:
        """Train until so many updates are made; return the mean loss of the new ones for each member."""
        with ThreadPoolExecutor(machine.cores()) as pool:  # the generated code does not hold the interpreter's lock
            losses = list(pool.map(lambda place: self._advance(place, updates), range(len(self.jobs))))
        self.updates = updates
        return losses

    def _advance(self, place: int, updates: int) -> float:
        at, total = self.updates, 0.0
        while at < updates:
            stop = min(updates, (at // self.agenda.updates_per_epoch + 1) * self.agenda.updates_per_epoch)
            epoch, first, _ = self.agenda.span(at)
            _, _, last = self.agenda.span(stop - 1)
            order: Tensor = self.orders[place].span(epoch, first, last)
            total += self.fused[place].train_epoch(self.x, self.y, order, self.jobs[place].seed) * (stop - at)
            at = stop
        return total / max(1, updates - self.updates)

    def keep(self, places: Sequence[int]) -> None:
        """Keep these members alone."""
        self.choose(places)
        self.fused = [self.fused[place] for place in places]

    def state(self, place: int) -> dict[str, Any]:
        """Return what a member goes on from."""
        values = {name: value.clone() for name, value in self.modules[place].state_dict().items()}
        fused = self.fused[place]
        (named_views,) = remembered(fused.compiled(self.x), fused.weights)
        memory = {name: [view.clone() for view in views] for name, views in named_views.items()}
        return {"updates": self.updates, "values": values, "memory": memory}

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Let all members go on from states of the same number of updates."""
        self.updates = int(states[0]["updates"])
        for module, fused, state in zip(self.modules, self.fused, states, strict=True):
            module.load_state_dict(state["values"])
            remember(fused.compiled(self.x), fused.weights, [state["memory"]])
            fused.updates = self.updates

    def module(self, place: int) -> nn.Module:
        """Return a member's module as it is now."""
        return self.modules[place]
