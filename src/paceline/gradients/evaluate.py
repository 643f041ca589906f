"""How good a module is on the test data."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from paceline.data.source import Source
from paceline.gradients.replica import CPU, loss_function, split_batch, to_device
from paceline.jobs.job import Job

BATCH = 1000


@torch.no_grad()
def evaluate(job: Job, module: nn.Module, source: Source, device: torch.device = CPU) -> dict[str, float]:
    """test_loss, test_accuracy where the output is one score per class, and the job's own metrics."""
    if device != CPU:
        module = copy.deepcopy(module).to(device)
    was_training = module.training
    module.eval()
    step = loss_function(job)
    sums: dict[str, float] = {}
    for start in range(0, len(source), BATCH):
        indices = torch.arange(start, min(start + BATCH, len(source)))
        batch = to_device(source.batch(indices, 0), device)
        if job.step is not None:
            found = {"test_loss": float(step(module, batch))}
        else:
            assert job.loss is not None
            inputs, target = split_batch(batch)
            output = module(*inputs)
            found = {"test_loss": float(job.loss(output, target)), **_accuracy(output, target)}
            found.update({name: _number(name, metric(output, target)) for name, metric in job.metrics.items()})
        for name, value in found.items():
            sums[name] = sums.get(name, 0.0) + value * len(indices)
    module.train(was_training)
    return {name: value / len(source) for name, value in sums.items()}


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"the metric {name!r} returned {value!r:.60}, which is not one number") from error


def _accuracy(output: Any, target: Any) -> dict[str, float]:
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return {}
    if output.dim() != 2 or target.dim() != 1 or target.is_floating_point():
        return {}
    return {"test_accuracy": float((output.argmax(1) == target).float().mean())}
