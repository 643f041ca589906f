"""Jobs of one shape trained side by side in generated code: a lane of the processor's vectors for each.

A member has the numbers of its separate training with compute="fused". What differs between members is data:
parameters, the optimizer's settings, seed, rates of dropout, order of samples. Members that leave are compacted away
as soon as fewer vectors do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from paceline.algorithms.agenda import Agenda
from paceline.kernels import fuse_replicas, machine
from paceline.kernels.replicas import Replicas
from paceline.kernels.weights import REALS
from paceline.training.data.source import TensorSource
from paceline.training.gradients.stacks.members import Members
from paceline.training.jobs.job import Job

#: What an optimizer remembers of a model: by torch's name, a tensor for each of the model's weights.
Memory = dict[str, list[Tensor]]


class LaneStack(Members):
    """Trains each member in a lane of the processor's vectors."""

    def __init__(self, jobs: Sequence[Job], source: TensorSource, agenda: Agenda) -> None:
        super().__init__(jobs, source, agenda)
        self.lanes = machine.target(REALS[next(self.modules[0].parameters()).dtype]).lanes
        self._pack([])

    def _pack(self, states: Sequence[Memory]) -> None:
        """Deal the members out to as few vectors as hold them."""
        self.blocks: list[tuple[list[int], Replicas]] = []
        for first in range(0, len(self.jobs), self.lanes):
            places = list(range(first, min(first + self.lanes, len(self.jobs))))
            makers = [partial(self.jobs[place].make_optimizer, self.modules[place]) for place in places]
            loss = self.jobs[0].loss
            assert loss is not None
            fused = fuse_replicas([self.modules[p] for p in places], loss, makers, self.jobs[0].batch_size)
            if states:
                fused.remember(self.x, [states[place] for place in places], self.updates)
            self.blocks.append((places, fused))

    def advance(self, updates: int) -> list[float]:
        """Train until so many updates are made; return the mean loss of the new ones for each member."""
        totals, begun = [0.0] * len(self.jobs), self.updates
        while self.updates < updates:
            stop = min(updates, (self.updates // self.agenda.updates_per_epoch + 1) * self.agenda.updates_per_epoch)
            for places, replicas in self.blocks:
                orders = torch.stack([self._samples(place, stop) for place in places])
                seeds = [self.jobs[place].seed for place in places]
                for place, loss in zip(places, replicas.train_epochs(self.x, self.y, orders, seeds), strict=True):
                    totals[place] += loss * (stop - self.updates)
            self.updates = stop
        return [total / max(1, updates - begun) for total in totals]

    def _samples(self, place: int, stop: int) -> Tensor:
        """Return the numbers of a member's samples from now on to an update of the same pass."""
        epoch, first, _ = self.agenda.span(self.updates)
        _, _, last = self.agenda.span(stop - 1)
        return self.orders[place].span(epoch, first, last)

    def keep(self, places: Sequence[int]) -> None:
        """Keep these members alone."""
        states = self.states() if len(places) < len(self.jobs) else []
        self.choose(places)
        if states and places:
            self._pack([states[place] for place in places])

    def states(self) -> list[Memory]:
        """Return what the optimizer remembers of each member."""
        return [state for _, replicas in self.blocks for state in replicas.remembered(self.x)]

    def state(self, place: int) -> dict[str, Any]:
        """Return what a member goes on from."""
        values = {name: value.clone() for name, value in self.modules[place].state_dict().items()}
        return {"updates": self.updates, "values": values, "memory": self.states()[place]}

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Let all members go on from states of the same number of updates."""
        self.updates = int(states[0]["updates"])
        for module, state in zip(self.modules, states, strict=True):
            module.load_state_dict(state["values"])
        self._pack([state["memory"] for state in states])

    def module(self, place: int) -> nn.Module:
        """Return a member's module as it is now."""
        return self.modules[place]
