"""Generated code compared with PyTorch: the gradient of a few samples, and of a whole batch, before the first update.

A compiler may be wrong, and what it makes of a text on one machine says nothing of the next. So this is done once for
each text on each machine, and a note of it lies beside the library.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from paceline.kernels.build import write
from paceline.kernels.layers.base import CannotFuse

FEW = 2  # samples of the smaller batch, of which batch-norm needs as many
#: What rounding may change, relative to the length of a gradient, and relative to all gradients' where one is smaller.
ROUNDING = {torch.float32: 1e-3, torch.float64: 1e-9}
SMALLER = 1e-2
ILL = 16  # times PyTorch's own distance from float64, which a network that amplifies rounding may be away

Pairs = Sequence[tuple[Tensor, Tensor]]  # a gradient of generated code, and the tensor whose gradient it is


class WrongCode(CannotFuse):
    """Generated code whose gradient is not PyTorch's."""


# --- notes beside the library ---


def compared_sizes(file: Path) -> list[int]:
    """The sizes of the batches that a library was compared for."""
    try:
        found = json.loads(_note(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return found if isinstance(found, list) else []


def note_size(file: Path, size: int) -> None:
    """Writes that a library was compared for batches of this size."""
    with contextlib.suppress(OSError):
        write(_note(file), json.dumps(sorted({*compared_sizes(file), size})).encode())


def _note(file: Path) -> Path:
    return file.with_suffix(".compared")


# --- PyTorch's gradients ---


class _WithoutDropout(TorchFunctionMode):
    """Functions of dropout change nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d):
            return args[0]
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            args, kwargs = args[:4], {**kwargs, "dropout_p": 0.0}
        return func(*args, **kwargs)


def without_dropout(module: nn.Module) -> nn.Module:
    """The module itself, whose layers drop nothing from now on."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        elif isinstance(part, nn.RNNBase | nn.MultiheadAttention):
            part.dropout = 0.0
    return module


def by_autograd(module: nn.Module, loss_of: Callable[..., Any], x: Tensor, y: Tensor) -> float | None:
    """The loss of a module without dropout, whose gradients its tensors have from now on; None where it has none."""
    for parameter in module.parameters():
        parameter.grad = None
    try:
        with torch.enable_grad(), _WithoutDropout():
            loss = loss_of(module(x), y)
        loss.backward()
    except Exception:  # the user's code, which generated code does not run: there is nothing to compare with
        return None
    return float(loss.detach())


# --- the comparison ---


def difference(module: nn.Module, pairs: Pairs, loss_of: Callable[..., Any], x: Tensor, y: Tensor, loss: float) -> str:
    """How loss and gradients of generated code differ from PyTorch's beyond rounding, in words; empty if they do not."""
    wanted = by_autograd(module, loss_of, x, y)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    known = [(names[id(p)], found, p.grad) for found, p in pairs if id(p) in names and p.grad is not None]
    gradients = [gradient for _, _, gradient in known]
    if wanted is None or not all(bool(torch.isfinite(g).all()) for g in (*gradients, torch.tensor(wanted))):
        return ""
    whole = max((float(gradient.norm()) for gradient in gradients), default=0.0)
    for name, found, gradient in known:
        gap, scale = float((found - gradient).norm()), max(float(gradient.norm()), SMALLER * whole)
        if not gap <= ROUNDING[gradient.dtype] * scale + torch.finfo(gradient.dtype).tiny:
            return f"the gradient of {name} is {gap:.2g} away from PyTorch's, whose length is {scale:.2g}"
    if not abs(loss - wanted) <= ROUNDING[x.dtype if x.is_floating_point() else torch.float32] * max(abs(wanted), 1.0):
        return f"the loss is {loss:.6g}, and PyTorch's {wanted:.6g}"
    return ""


def amplifies(module: nn.Module, pairs: Pairs, loss_of: Callable[..., Any], x: Tensor, y: Tensor) -> bool:
    """Whether PyTorch's own gradients are as far from float64's, or rounding decides what is close to a bend."""
    own = [parameter.grad.clone() if parameter.grad is not None else None for _, parameter in pairs]
    double = [t.double() if t.is_floating_point() else t for t in (x, y)]
    if by_autograd(module.double(), loss_of, *double) is None:
        return False
    for (found, parameter), mine in zip(pairs, own, strict=True):
        exact = parameter.grad
        if exact is not None and mine is not None and not (
            float((found - exact).norm()) <= ILL * float((mine - exact).norm())
        ):  # fmt: skip
            return False
    return True


def some(order: Tensor, size: int) -> Iterator[Tensor]:
    """The first samples of an order, and its last ones: what is close to a bend in the first is not in all others."""
    row = order if order.dim() == 1 else order[0]
    yield row[:size]
    yield row[-size:]
