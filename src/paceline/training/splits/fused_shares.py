"""Chunks of a worker under ZeRO by generated code (`compute="fused"`), which takes a network's parameters whole.

gather every parameter, once in an update ──▶ one call: loss and gradients ──▶ scatter gradients, by the stage's rule

Stage 3 has no parameter whole for longer than its layer needs it, and other splits move values within what would be one
call: there PyTorch computes, layer by layer.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.chance import mix
from paceline.algorithms.splits.derivation import PARAMETER
from paceline.training.gradients.fused_replica import network
from paceline.training.gradients.loss import split_batch
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Batch, Job
from paceline.training.splits.exchanging import Request
from paceline.training.splits.shares import Shares
from paceline.training.splits.walk import SplitModel, Walk, add_gradient

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
            if not step.value or step.back or (step.value, step.target) in self.shares.gathered:
                continue
            name, shape = step.value.removeprefix(PARAMETER), model.program.shapes[step.value]
            moved = yield Request(step, shape, model.stored(name).detach(), self.shapes[step.value])
            self.shares.gathered[step.value, step.target] = moved
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
            if self.shares.stage == 1:
                self.shares.add(step.value, gradient)
            else:
                back = yield Request(step, shape, gradient.contiguous(), self.shapes[step.value])
                add_gradient(model.stored(name), back)
        return loss


LARGEST = 2**63 - 1
