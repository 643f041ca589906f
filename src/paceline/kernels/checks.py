"""Arguments are checked before a call, since generated code checks nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.kernels.ir import Lookup, Loss
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
    for it in (s for s in plan.program.forward if isinstance(s, Lookup)):
        _check_rows(it, x.reshape(len(x), -1)[:, list(it.columns)] if it.numbers else x)
    program = plan.program
    if labels:
        ignored = next(s.ignored for s in program.forward if isinstance(s, Loss))
        counted = y if y.numel() and int(y.min()) >= 0 else y[y != ignored]
        if counted.numel() and not (int(counted.min()) >= 0 and int(counted.max()) < program.outputs):
            raise CannotFuse(
                f"class numbers from {int(counted.min())} to {int(counted.max())}, for a network of {program.outputs} "
                "outputs"
            )
        if tuple(y.shape[1:]) != program.places:
            expected = "one class per sample" if not program.places else f"classes of shape {program.places} per sample"
            raise CannotFuse(f"targets of shape {tuple(y.shape)}: this network and its loss want {expected}")
    elif tuple(y.shape[1:]) != program.result:
        raise CannotFuse(f"targets of shape {tuple(y.shape[1:])}, for outputs of shape {program.result}")


def _check_rows(it: Lookup, numbers: Tensor) -> None:
    """Refuses numbers that an embedding has no row for."""
    if not numbers.numel():
        return
    least, most = float(numbers.min()), float(numbers.max())
    if least < 0 or most >= it.rows:
        raise CannotFuse(f"tokens from {least:.0f} to {most:.0f}, for an embedding of {it.rows} rows")
    if numbers.is_floating_point() and not torch.equal(numbers, numbers.round()):
        raise CannotFuse(f"{it.layer}: an embedding gets numbers that are not whole")
