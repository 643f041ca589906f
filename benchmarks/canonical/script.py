"""A script of DistributedDataParallel, with one difference between its processes, or between them and one process.

torchrun --nproc-per-node 2 benchmarks/canonical/script.py [DIFFERENCE]
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

#: What differs, at which stage of the step that shows first, and at which tensor, layer or setting.
DIFFERENCES = {
    "": ("", "", "nothing"),
    "seed": ("before", "conv.weight", "another seed of one process, and no broadcast"),
    "buffer": ("before", "norm.running_mean", "a buffer of batch normalisation in one process"),
    "layer": ("output", "hidden", "the type in which one process computes a layer"),
    "unused": ("output", "extra", "a layer that one process leaves out"),
    "uneven": ("gradient", "conv.weight", "the mean over processes whose batches are uneven"),
    "sum": ("gradient", "conv.weight", "the sum over processes in place of the mean"),
    "not summed": ("gradient", "head.weight", "a parameter that is left out of the all-reduce"),
    "no sync": ("gradient", "conv.weight", "a step without an all-reduce"),
    "compressed": ("gradient", "conv.weight", "gradients that travel as float16"),
    "rate": ("settings", "group 0, lr", "the learning rate of one process"),
    "decay": ("settings", "group 0, weight_decay", "weight decay in one process"),
    "momentum": ("after", "conv.weight", "an optimizer's state of one process"),
    "clipped apart": ("after", "conv.weight", "a gradient that one process clips"),
}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.hidden, self.extra, self.head = nn.Linear(144, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.skips = False

    def forward(self, images: Tensor) -> Tensor:
        x = torch.tanh(self.hidden(torch.relu(self.norm(self.conv(images))).flatten(1))).float()
        scores: Tensor = self.head(x if self.skips else x + self.extra(x))
        return scores


class Bfloat16(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.bfloat16(), self.weight.bfloat16(), self.bias.bfloat16())


def wrapped(model: Network, difference: str, other: bool) -> DistributedDataParallel:
    """Return the model of a process; `other`: of the one that differs, where the processes do."""
    options: dict[str, Any] = {}
    if difference == "layer" and other:
        model.hidden.__class__ = Bfloat16
    if difference == "seed":
        options["init_sync"] = False
    if difference == "buffer":
        options["broadcast_buffers"] = False
    if difference == "unused":
        model.skips, options["find_unused_parameters"] = other, True
    if difference == "not summed":
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["head.weight"])
    replica = DistributedDataParallel(model, **options)
    if difference == "buffer" and other:
        model.norm.running_mean += 0.1  # type: ignore[assignment, operator]
    if difference == "compressed":
        replica.register_comm_hook(None, fp16_compress_hook)
    return replica


def optimizer_of(model: nn.Module, difference: str, other: bool) -> torch.optim.SGD:
    decay, rate = (0.1 if difference == "decay" and other else 0.0), (0.2 if difference == "rate" and other else 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=decay)
    if difference == "momentum" and other:
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.ones_like(parameter)
    return optimizer


def main(difference: str) -> None:
    dist.init_process_group("gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    other = rank == count - 1
    torch.manual_seed(rank if difference == "seed" else 0)
    model = wrapped(Network(), difference, other)
    optimizer = optimizer_of(model, difference, other)
    torch.manual_seed(100 + rank)
    images = torch.randn(4 if difference == "uneven" and other else 8, 1, 8, 8)
    labels = torch.randint(0, 3, (len(images),))
    with model.no_sync() if difference == "no sync" else contextlib.nullcontext():
        nn.functional.cross_entropy(model(images).float(), labels).backward()
    if difference == "sum":
        for parameter in model.parameters():
            parameter.grad *= count  # type: ignore[operator]
    if difference == "clipped apart" and other:
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
