"""Which jobs can be trained in one vectorised pass: those that differ in data only, not in what is computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from paceline.training.data.opening import open_source
from paceline.training.data.source import TensorSource
from paceline.training.gradients.likeness import canonical, of_module
from paceline.training.jobs.job import Job


class CannotStack(Exception):
    """A job that has to be trained separately; the message says why."""


#: Fields of a job that a stack does not know, and the value that asks for nothing.
PLAIN: dict[str, Any] = {
    "lr_scheduler": None,
    "gradient_clip_norm": None,
    "accumulate_grad_batches": 1,
    "batch_transform": None,
    "step": None,
    "loss_denominator": None,
    "precision": "32-true",
}


def shape_of(job: Job) -> tuple[str, TensorSource]:
    """Return what the members of a stack have in common, as a text, and the job's data. Raise CannotStack."""
    for field, plain in PLAIN.items():
        if getattr(job, field) != plain:
            raise CannotStack(f"{field}= is not stacked")
    if job.on_nan == "skip":
        raise CannotStack("on_nan='skip' is not stacked")
    source = open_source(job.data, job.seed)
    if not isinstance(source, TensorSource) or len(source.tensors) != 2:
        raise CannotStack("the data are not a pair of tensors")
    with torch.random.fork_rng(devices=[]):
        module = job.make_model()
        optimizer = job.make_optimizer(module, list(module.parameters()))
    groups = [len(group["params"]) for group in optimizer.param_groups]
    flags = [{k: v for k, v in group.items() if isinstance(v, bool | str)} for group in optimizer.param_groups]
    parts = (
        _structure(module),
        type(optimizer).__name__,
        groups,
        flags,
        canonical(job.loss),
        job.batch_size,
        job.device,
        source.fingerprint(),
    )
    return repr(parts), source


def _structure(module: nn.Module) -> list[Any]:
    """Return what the module computes, and the shapes of its tensors; rates of dropout may differ."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return [of_module(module), [(name, tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in tensors]]
