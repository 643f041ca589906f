"""What a worker that stores shares of parameters keeps between the chunks of an update (ZeRO's three stages).

stage    gathered parameters                            gradients
1        once in an update                              summed whole, scattered at its end
2        once in an update                              scattered in every backward
3        for each layer, forward and back, then gone    scattered in every backward
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.algorithms.splits import PARTIAL, WHOLE, Placement
from paceline.algorithms.splits.derivation import PARAMETER, Program, Step
from paceline.training.gradients.payload import GradientSum
from paceline.training.gradients.replica import Replica
from paceline.training.splits.exchanging import Request

Key = tuple[str, Placement]
TOTALS = "totals"  # the value in which loss, weight and moving buffers of all workers are added up


@dataclass
class Shares:
    """The state of one worker within an update."""

    stage: int
    #: Whole parameters, in stages 1 and 2.
    gathered: dict[Key, Tensor] = field(default_factory=dict)
    #: Gradients of whole parameters that were not scattered yet, in stage 1.
    unscattered: dict[str, Tensor] = field(default_factory=dict)

    def add(self, value: str, gradient: Tensor) -> None:
        """Keep a whole gradient until the end of the update."""
        before = self.unscattered.get(value)
        self.unscattered[value] = gradient if before is None else before.add_(gradient)

    def finish(
        self, replica: Replica, program: Program, named: dict[str, Tensor], computed: GradientSum
    ) -> Generator[Request, Tensor, GradientSum]:
        """End an update: scatter what was kept, and add up what payloads carry besides gradients."""
        self.gathered.clear()
        moves = [step for step in program.forward if step.value in program.needs and step.value.startswith(PARAMETER)]
        for move in moves if self.stage == 1 else []:
            shape = program.shapes[move.value]
            gradient = self.unscattered.pop(move.value, None)
            full = torch.zeros(shape, dtype=named[move.value].dtype) if gradient is None else gradient
            back = yield Request(move._replace(back=True), shape, full.contiguous(), shape)
            named[move.value].grad = back.reshape(named[move.value].shape).clone()
        gradients = replica.take() if self.stage == 1 else computed.gradients
        buffers = computed.buffers or [torch.zeros_like(b) for b in replica.moving]
        dtype = torch.float64
        numbers = torch.tensor([computed.loss, computed.weight], dtype=dtype)
        totals = torch.cat([numbers, *(b.to(dtype).flatten() for b in buffers)])
        step, shape = Step((), TOTALS, PARTIAL, WHOLE), tuple(totals.shape)
        full = yield Request(step, shape, totals, shape)
        summed, start = [], 2
        for buffer in buffers:
            model_dtype = replica.parameters[0].dtype
            summed.append(full[start : start + buffer.numel()].view(buffer.shape).to(model_dtype))
            start += buffer.numel()
        return GradientSum(gradients, summed, float(full[0]), float(full[1]), computed.samples)
