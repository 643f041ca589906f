"""Backward in two halves: linear and convolutional modules that leave the gradients of their weights for later.

Their backward computes only the gradient of the input, for which the stage before waits, and defers that of the
weights, keeping the input and the gradient of the output. Nothing is computed twice. All other modules of a stage
compute both at once, in the first half.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DeferredGradient = Callable[[], None]
Defer = Callable[[DeferredGradient], None]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, part: nn.Linear, keep: Defer) -> Tensor:
        ctx.part, ctx.keep = part, keep
        ctx.save_for_backward(x)
        return F.linear(x, part.weight, part.bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (g,), (x,), part = gradients, ctx.saved_tensors, ctx.part
        ctx.keep(partial(_weights_of_linear, part, x.detach(), g))
        return g.matmul(part.weight) if ctx.needs_input_grad[0] else None, None, None, None


def _weights_of_linear(part: nn.Linear, x: Tensor, g: Tensor) -> None:
    flat = g.reshape(-1, g.shape[-1])
    _add(part.weight, flat.t().mm(x.reshape(-1, x.shape[-1])))
    if part.bias is not None:
        _add(part.bias, flat.sum(0))


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, part: Any, keep: Defer) -> Tensor:
        ctx.part, ctx.keep = part, keep
        ctx.save_for_backward(x)
        result: Tensor = part._conv_forward(x, part.weight, part.bias)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (g,), (x,), part = gradients, ctx.saved_tensors, ctx.part
        ctx.keep(partial(_weights_of_convolution, part, x.detach(), g))
        gx = _convolution(part, x, g, [True, False, False])[0] if ctx.needs_input_grad[0] else None
        return gx, None, None, None


def _weights_of_convolution(part: Any, x: Tensor, g: Tensor) -> None:
    _, weight, bias = _convolution(part, x, g, [False, True, part.bias is not None])
    _add(part.weight, weight)
    if part.bias is not None:
        _add(part.bias, bias)


def _convolution(part: Any, x: Tensor, g: Tensor, which: list[bool]) -> Any:
    sizes = None if part.bias is None else list(part.bias.shape)
    return torch.ops.aten.convolution_backward(
        g,
        x,
        part.weight,
        sizes,
        part.stride,
        part.padding,
        part.dilation,
        False,
        [0] * len(part.stride),
        part.groups,
        which,
    )


def _add(parameter: Tensor, gradient: Tensor) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


FUNCTIONS = {nn.Linear: _Linear, nn.Conv1d: _Convolution, nn.Conv2d: _Convolution, nn.Conv3d: _Convolution}


def defer(part: nn.Module, those: Collection[nn.Parameter], keep: Defer) -> None:
    """Let every supported module in `part`, if all its parameters are among `those`, defer its weights' gradients."""
    anchor = torch.zeros((), requires_grad=True)  # makes autograd call backward where the input needs no gradient
    for module in part.modules():
        function = FUNCTIONS.get(type(module))
        if function is not None and all(p in those for p in module.parameters()) and _plain(module):
            module.forward = partial(_forward, function, anchor, module, keep)


def _plain(module: Any) -> bool:
    if any(getattr(module, name) is not module._parameters.get(name) for name in ("weight", "bias")):
        return False  # recomputed before each forward: pruned or normalised
    return isinstance(module, nn.Linear) or (module.padding_mode == "zeros" and not isinstance(module.padding, str))


def _forward(function: Any, anchor: Tensor, module: nn.Module, keep: Defer, x: Tensor) -> Tensor:
    result: Tensor = function.apply(x, anchor, module, keep)
    return result
