"""Inference in fixed point: signed bytes for weights, bytes for what goes in, sums of 32 bits.

    number = (byte - zero) * scale          one scale and zero for what goes into a layer, as a sample of data had it
    weight = signed byte * scale[output]    a scale for each output

The sum over bytes times signed bytes is exact; `zero` times the sum of weights is taken off with the bias.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.errors import JobError
from paceline.kernels.library.convolution import Shape, check_numbers
from paceline.kernels.library.native import long, native, pointer

FEW = 1 << 21  # products


def fixed(model: nn.Module, sample: Tensor) -> nn.Module:
    """A copy of the model for inference, whose Linear and Conv2d layers compute in fixed point. `sample`: inputs by
    which each layer's range is found; a hundred or so will do.
    """
    check_numbers("fixed point", sample, *model.parameters())
    if not sample.numel() or not bool(torch.isfinite(sample).all()):
        raise JobError(
            "fixed point takes its ranges from a sample of data: it may not be empty, and its numbers finite"
        )
    twin = copy.deepcopy(model).eval()
    layers: dict[str, nn.Linear | nn.Conv2d] = {
        name: m for name, m in twin.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)
    }
    ranges = _ranges(twin, layers, sample)
    for name, layer in layers.items():
        if name not in ranges:
            raise JobError(f"layer {name} did not take part when the model computed the sample")
        parent, _, last = name.rpartition(".")
        replacement = (
            FixedLinear(layer, *ranges[name]) if isinstance(layer, nn.Linear) else FixedConv2d(layer, *ranges[name])
        )
        setattr(twin.get_submodule(parent), last, replacement)
    if not layers:
        raise JobError("there is no Linear and no Conv2d layer in this model that could compute in fixed point")
    return twin


def _ranges(model: nn.Module, layers: Mapping[str, nn.Module], sample: Tensor) -> dict[str, tuple[float, float]]:
    """The least and the largest input of each layer, over the samples given."""
    ranges: dict[str, tuple[float, float]] = {}

    def watch(name: str):  # type: ignore[no-untyped-def]
        def see(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            low, high = ranges.get(name, (0.0, 0.0))  # nought is always one of the bytes: padding is nought
            ranges[name] = (min(low, float(inputs[0].min())), max(high, float(inputs[0].max())))

        return see

    hooks = [layer.register_forward_pre_hook(watch(name)) for name, layer in layers.items()]
    with torch.no_grad():
        model(sample)
    for hook in hooks:
        hook.remove()
    return ranges


class _Fixed(nn.Module):
    """What both kinds of layers share: weights as signed bytes, [outputs, depth], and the scales of their sums."""

    def __init__(self, weights: Tensor, bias: Tensor | None, low: float, high: float) -> None:
        super().__init__()
        self.outputs, self.depth = weights.shape
        self.step = max(high - low, 1e-12) / 255
        self.zero = round(-low / self.step)
        scale = weights.detach().abs().amax(1).clamp_min(1e-12) / 127
        self.signed = (weights.detach() / scale[:, None]).round().to(torch.int8)
        shift = -self.zero * scale * self.step * self.signed.sum(1, dtype=torch.int32)
        panel = 2 * int(native().lanes())
        rest = -self.outputs % panel
        self.scale = functional.pad(scale * self.step, (0, rest))
        self.shift = functional.pad(shift if bias is None else shift + bias.detach(), (0, rest))

    @staticmethod
    def threads(products: int) -> ctypes.c_long:
        """How many threads are worth it: few products are computed faster by one."""
        return long(torch.get_num_threads() if products > FEW else 1)


class FixedLinear(_Fixed):
    """A dense layer in signed bytes."""

    def __init__(self, layer: nn.Linear, low: float, high: float) -> None:
        super().__init__(layer.weight, layer.bias, low, high)
        self.row, panel = -(-self.depth // 4) * 4, 2 * int(native().lanes())
        padded = functional.pad(self.signed, (0, self.row - self.depth, 0, -self.outputs % panel))
        self.panels = padded.view(-1, panel, self.row // 4, 4).permute(0, 2, 1, 3).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        x = x.float().contiguous()
        count = x.numel() // self.depth
        out, room = torch.empty(*x.shape[:-1], self.outputs), torch.empty(count * self.row, dtype=torch.uint8)
        native().fixed_linear(
            pointer(x),
            long(count),
            long(self.depth),
            ctypes.c_float(1 / self.step),
            ctypes.c_float(self.zero),
            pointer(room),
            long(self.row),
            pointer(self.panels),
            long(self.outputs),
            pointer(self.scale),
            pointer(self.shift),
            pointer(out),
            self.threads(count * self.outputs * self.row),
        )
        return out


class FixedConv2d(_Fixed):
    """A convolution in signed bytes."""

    def __init__(self, layer: nn.Conv2d, low: float, high: float) -> None:
        if layer.groups != 1 or set(layer.dilation) != {1} or layer.padding_mode != "zeros":
            raise JobError("fixed point knows Conv2d without groups and dilation, padded with noughts")
        if isinstance(layer.padding, str) or len(set(layer.padding)) > 1 or len(set(layer.stride)) > 1:
            raise JobError("fixed point knows Conv2d whose stride and padding are the same both ways, as numbers")
        super().__init__(layer.weight.flatten(1), layer.bias, low, high)
        self.filters, self.stride, self.pad = layer.weight.shape, layer.stride[0], layer.padding[0]
        k, c, r, across = self.filters
        signed = self.signed.view(self.filters)
        # Four neighbouring pixels at once, or four channels of a pixel: the one that wastes less.
        self.unit = 4 if -(-c // 4) * across < c * -(-across // 4) else 1
        if self.unit == 1:
            self.fours = functional.pad(signed, (0, -across % 4)).contiguous()
        else:
            padded = functional.pad(signed, (0, 0, 0, 0, 0, -c % 4))
            self.fours = padded.view(k, -1, 4, r, across).permute(0, 1, 3, 4, 2).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        x = x.float().contiguous()
        k, _, r, s = self.filters
        n, c, h, w = x.shape
        shape = Shape(n, c, h, w, k, r, s, self.stride, self.pad)
        out = torch.empty(n, k, shape.p, shape.q)
        channels = -(-c // self.unit) * self.unit
        beyond = self.unit * (32 * self.stride + s) + 128  # that vectors read past the last image
        room = torch.empty(n * channels * (h + 2 * self.pad) * (w + 2 * self.pad) + beyond, dtype=torch.uint8)
        native().fixed_conv(
            shape.struct(),
            pointer(x),
            ctypes.c_float(1 / self.step),
            long(self.zero),
            long(self.unit),
            pointer(room),
            pointer(self.fours),
            pointer(self.scale),
            pointer(self.shift),
            pointer(out),
            self.threads(out.numel() * self.fours[0].numel()),
        )
        return out
