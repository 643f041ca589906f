"""Arguments are checked before a call, since generated code checks nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.kernels.ir import Lookup
from paceline.kernels.layers.base import CannotFuse
from paceline.kernels.plan import Plan


def device_of(model: nn.Module) -> torch.device:
    """The one device that all parameters lie on."""
    places = {p.device for p in model.parameters()}
    if len(places) > 1 or any(place.type not in ("cpu", "cuda") for place in places):
        raise CannotFuse(f"parameters on {', '.join(map(str, places))}: kernels are for one CPU or one GPU")
    return places.pop() if places else torch.device("cpu")


def check_kinds(plan: Plan, labels: bool, y: Tensor, order: Tensor) -> None:
    """Refuses targets and orders of a wrong type, before a conversion hides it."""
    if order.is_floating_point() or order.dtype == torch.bool or order.dim() != (2 if plan.target.replicas else 1):
        raise CannotFuse(
            f"an order of {order.dtype} and shape {tuple(order.shape)}: it is the samples' numbers, in a row"
        )
    if labels and y.is_floating_point():
        raise CannotFuse(f"targets of {y.dtype}: cross entropy has a kernel for class numbers, which are whole")


def check_batches(plan: Plan, samples: int, batch: int) -> None:
    """Refuses an order whose batches leave batch-norm a single sample."""
    if plan.program.batch_norm and 1 in (min(batch, samples), samples % batch):
        raise CannotFuse(
            f"{samples} samples in batches of {batch} leave one sample alone, which has no variance for the batch-norm "
            f"{plan.program.batch_norm}; take another batch_size"
        )


def check_samples(plan: Plan, labels: bool, x: Tensor, y: Tensor, order: Tensor) -> None:
    """Refuses all that would make the generated code read or write outside its memory. `labels`: class numbers."""
    if len(x) != len(y) or not order.numel():
        raise CannotFuse(f"{len(x)} samples, {len(y)} targets and an order of {order.numel()}: nothing to train on")
    if int(order.min()) < 0 or int(order.max()) >= len(x):
        raise CannotFuse(f"an order from {int(order.min())} to {int(order.max())}, of {len(x)} samples")
    rows = [s.rows for s in plan.program.forward if isinstance(s, Lookup)]
    if rows and x.numel() and not (int(x.min()) >= 0 and int(x.max()) < min(rows)):
        raise CannotFuse(f"tokens from {int(x.min())} to {int(x.max())}, for an embedding of {min(rows)} rows")
    if labels and y.numel() and not (int(y.min()) >= 0 and int(y.max()) < plan.program.outputs):
        raise CannotFuse(
            f"class numbers from {int(y.min())} to {int(y.max())}, for a network of {plan.program.outputs} outputs"
        )
    if labels and y.dim() != 1:
        raise CannotFuse(f"targets of shape {tuple(y.shape)}: cross entropy has a kernel for one class per sample")
    if not labels and tuple(y.shape[1:]) != plan.program.result:
        raise CannotFuse(f"targets of shape {tuple(y.shape[1:])}, for outputs of shape {plan.program.result}")
