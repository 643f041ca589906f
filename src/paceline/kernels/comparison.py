"""Generated code compared with PyTorch: the gradient of a few samples, and of a whole batch, before the first update.

A compiler may be wrong, and what it makes of a text on one machine says nothing of the next. So this is done once for
each text on each machine, and a note of it lies beside the library. Rounding may decide on which side of a bend a
number is, such as ReLU's; so what differs is computed again with other weights, and is wrong only if it always differs.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from paceline import user_cache
from paceline.kernels.ir import CannotFuse

FEW = 2  # samples of the smaller batch, of which batch-norm needs as many
MOST = 10**9  # floating-point operations of the larger one, which PyTorch computes within a second
ATTEMPTS = 3  # with other weights each
SHAKEN = 1e-3  # of a weight, by which it is changed for another attempt
#: What rounding may change, relative to the length of a gradient, or to the longest one's where that is far longer.
ROUNDING = {torch.float32: 1e-3, torch.float64: 1e-9}
SHORT = 1e-2
ILL = 16  # times what PyTorch's own numbers, or rounded ones, differ from float64's: a network may amplify rounding

Loss = Callable[..., Any]
Numbers = dict[str, Tensor]  # the loss, gradients and moved statistics, by what they are called in a message


class WrongCode(CannotFuse):
    """Generated code whose gradient is not PyTorch's."""


class Twin(Protocol):
    """Copies of modules, of which numbers are computed."""

    def modules(self) -> list[nn.Module]: ...


AnyTwin = TypeVar("AnyTwin", bound=Twin)


# notes beside the library.


def compared(file: Path) -> int:
    """The size of the largest batch for which a library was compared; 0 if it was not."""
    try:
        return int(user_cache.read(_note(file)))
    except (OSError, ValueError):
        return 0


def note(file: Path, size: int) -> None:
    """Write that a library was compared for batches of this size."""
    with contextlib.suppress(OSError):  # it will be compared again
        user_cache.write(_note(file), str(size).encode())


def _note(file: Path) -> Path:
    return file.with_suffix(".compared")


# PyTorch's numbers.


def _as_it_is(saved: Tensor) -> Tensor:
    return saved


class _WithoutDropout(TorchFunctionMode):
    """Functions of dropout change nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d):
            return args[0]
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            args, kwargs = args[:4], {**kwargs, "dropout_p": 0.0, **dict(zip(["is_causal"], args[5:], strict=False))}
        return func(*args, **kwargs)


def without_dropout(module: nn.Module) -> nn.Module:
    """The module itself, whose layers drop nothing from now on."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        elif isinstance(part, nn.RNNBase | nn.MultiheadAttention):
            part.dropout = 0.0
    return module


class _Rounded:
    """Rounds what a backward pass reads of its forward pass towards zero, by at most a unit in the last place.

    All to the same side, since an approximation may be so: of a tanh that is 1, the number before 1.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.generator, self.unit = torch.Generator().manual_seed(0), torch.finfo(dtype).eps

    def __call__(self, saved: Tensor) -> Tensor:
        if not saved.is_floating_point():
            return saved
        drawn = torch.rand(saved.shape, generator=self.generator, dtype=saved.dtype)
        return saved * (1 - self.unit * drawn)


def by_autograd(
    module: nn.Module,
    loss_of: Loss,
    x: Tensor,
    y: Tensor,
    dtype: torch.dtype,
    unpack: Callable[[Tensor], Tensor] = _as_it_is,
) -> Numbers:
    """Loss, gradients and statistics that move, of a module without dropout, which has this type from now on.

    The module's own statistics stay as they are. `unpack` changes the values that the backward pass reads.
    """
    module.to(dtype)
    buffers = [(name, buffer, buffer.clone()) for name, buffer in module.named_buffers() if buffer.is_floating_point()]
    loss_of = copy.deepcopy(loss_of).to(dtype) if isinstance(loss_of, nn.Module) else loss_of
    x, y = (tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in (x, y))
    module.zero_grad()
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        with _WithoutDropout(), torch.autograd.graph.saved_tensors_hooks(_as_it_is, unpack):
            loss = loss_of(module(x), y)
        loss.backward()
    gradients = {f"the gradient of {n}": p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
    moved = {f"the buffer {name}": buffer.clone() for name, buffer, old in buffers if not torch.equal(buffer, old)}
    for _, buffer, old in buffers:
        buffer.copy_(old)
    return {"the loss": loss.detach(), **gradients, **moved}


# the comparison.


def fault(
    twin: Callable[[], AnyTwin], run: Callable[[AnyTwin], Iterable[Numbers]], loss_of: Loss, x: Tensor, y: Tensor
) -> str | None:
    """How numbers of generated code differ from PyTorch's beyond rounding, in words; empty if they do not.

    None where PyTorch cannot compute them: the module's own code fails, which generated code does not run, or its
    numbers are not finite.

    twin   makes copies of the modules
    run    computes the numbers of each copy by generated code
    """
    words = ""
    for attempt in range(ATTEMPTS):
        try:
            copies = twin()
            for module in copies.modules() if attempt else ():
                shake(module, attempt)
            references = [by_autograd(m, loss_of, x, y, next(m.parameters()).dtype) for m in copies.modules()]
        except Exception:  # of the user's code, whose own training says it
            return None
        if not all(bool(number.isfinite().all()) for each in references for number in each.values()):
            return None
        for module, numbers, reference in zip(copies.modules(), run(copies), references, strict=True):
            if words := _difference(module, numbers, reference, loss_of, x, y):
                break
        else:
            return ""
    return words


def _difference(module: nn.Module, numbers: Numbers, reference: Numbers, loss_of: Loss, x: Tensor, y: Tensor) -> str:
    lengths = {name: float(number.norm()) for name, number in reference.items()}
    longest = max((length for name, length in lengths.items() if name.startswith("the gradient")), default=0.0)
    exact: Numbers = {}
    rounded: Numbers = {}
    for name, expected in reference.items():
        if (number := numbers.get(name)) is None:
            continue
        gap, scale = float((number - expected).norm()), lengths[name]
        least = 1.0 if name == "the loss" else SHORT * longest
        unit = torch.finfo(number.dtype).eps * number.numel() ** 0.5  # all that is left of gradients that cancel out
        if gap <= ROUNDING[number.dtype] * max(scale, least) + ILL * unit:
            continue
        exact = exact or by_autograd(module, loss_of, x, y, torch.float64)
        # PyTorch's own error may be none where that of rounded values is not: 1 - tanh^2 of large numbers is 0 then.
        rounded = rounded or by_autograd(module, loss_of, x, y, torch.float64, _Rounded(number.dtype))
        errors = [float((each - exact[name]).norm()) for each in (number, expected, rounded[name])]
        if not errors[0] <= ILL * max(errors[1:]):
            return f"{name} is {gap:.2g} away from PyTorch's, whose size is {scale:.2g}"
    return ""


def shake(module: nn.Module, seed: int) -> None:
    """Change each weight a little."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.add_(SHAKEN * noise * (weight.abs() + weight.abs().mean()))
