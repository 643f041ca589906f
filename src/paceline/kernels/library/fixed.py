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

from paceline.errors import JobError
from paceline.kernels.library.native import long, native, pointer
from paceline.kernels.library.shapes import Shape


def fixed(model: nn.Module, sample: Tensor) -> nn.Module:
    """A copy of the model for inference, whose Linear and Conv2d layers compute in fixed point. `sample`: inputs by
    which each layer's range is found; a hundred or so will do.
    """
    twin = copy.deepcopy(model).eval()
    layers: dict[str, nn.Linear | nn.Conv2d] = {
        name: m for name, m in twin.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)
    }
    ranges = _ranges(twin, layers, sample)
    for name, layer in layers.items():
        if name not in ranges:
            raise JobError(f"layer {name} did not take part when the model computed the sample")
        parent, _, last = name.rpartition(".")
        made = FixedLinear(layer, *ranges[name]) if isinstance(layer, nn.Linear) else FixedConv2d(layer, *ranges[name])
        setattr(twin.get_submodule(parent), last, made)
    if not layers:
        raise JobError("there is no Linear and no Conv2d layer in this model that could compute in fixed point")
    return twin


def _ranges(model: nn.Module, layers: Mapping[str, nn.Module], sample: Tensor) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}

    def watch(name: str):  # type: ignore[no-untyped-def]
        def see(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            low, high = found.get(name, (0.0, 0.0))  # nought is always one of the bytes: padding is nought
            found[name] = (min(low, float(inputs[0].min())), max(high, float(inputs[0].max())))

        return see

    hooks = [layer.register_forward_pre_hook(watch(name)) for name, layer in layers.items()]
    with torch.no_grad():
        model(sample)
    for hook in hooks:
        hook.remove()
    return found


class _Fixed(nn.Module):
    """Weights as packed signed bytes, [outputs, depth]."""

    def __init__(self, weights: Tensor, bias: Tensor | None, low: float, high: float) -> None:
        super().__init__()
        self.outputs, self.depth = weights.shape
        self.row = -(-self.depth // 4) * 4
        self.step = max(high - low, 1e-12) / 255
        self.zero = round(-low / self.step)
        scale = weights.detach().abs().amax(1).clamp_min(1e-12) / 127
        signed = (weights.detach() / scale[:, None]).round().to(torch.int8).contiguous()
        lanes = int(native().lanes())
        packed = torch.empty(-(-self.outputs // lanes) * lanes * self.row, dtype=torch.int8)
        # A block of two vectors of outputs may look one further.
        self.packed = torch.cat([packed, torch.zeros(lanes * self.row, dtype=torch.int8)])
        native().fixed_pack(pointer(signed), long(self.outputs), long(self.depth), pointer(self.packed))
        self.scale = scale * self.step
        shift = -self.zero * self.scale * signed.sum(1, dtype=torch.int32)
        self.shift = shift if bias is None else shift + bias.detach()

    def bytes_of(self, x: Tensor, depth: int, row: int) -> Tensor:
        rows = torch.empty(x.numel() // depth * row + 8, dtype=torch.uint8)
        native().fixed_bytes(
            pointer(x), long(x.numel() // depth), long(depth), ctypes.c_float(1 / self.step), ctypes.c_float(self.zero),
            pointer(rows), long(row), long(torch.get_num_threads()),
        )  # fmt: skip
        return rows

    def product(self, rows: Tensor, count: int, pixels: int) -> Tensor:
        threads = long(torch.get_num_threads())
        sums = torch.empty(count, self.outputs, dtype=torch.int32)
        native().fixed_product(
            pointer(rows), long(count), long(self.row), pointer(self.packed), long(self.outputs), pointer(sums), threads
        )
        out = torch.empty(count * self.outputs)
        native().fixed_scale(
            pointer(sums), long(count), long(self.outputs), pointer(self.scale), pointer(self.shift), pointer(out),
            long(pixels), threads,
        )  # fmt: skip
        return out


class FixedLinear(_Fixed):
    def __init__(self, given: nn.Linear, low: float, high: float) -> None:
        super().__init__(given.weight, given.bias, low, high)

    def forward(self, x: Tensor) -> Tensor:
        count = x.numel() // self.depth
        rows = self.bytes_of(x.float().contiguous(), self.depth, self.row)
        return self.product(rows, count, 1).view(*x.shape[:-1], self.outputs)


class FixedConv2d(_Fixed):
    def __init__(self, given: nn.Conv2d, low: float, high: float) -> None:
        if given.groups != 1 or set(given.dilation) != {1} or given.padding_mode != "zeros":
            raise JobError("fixed point knows Conv2d without groups and dilation, padded with noughts")
        if isinstance(given.padding, str) or len(set(given.padding)) > 1 or len(set(given.stride)) > 1:
            raise JobError("fixed point knows Conv2d whose stride and padding are the same both ways, as numbers")
        super().__init__(given.weight.flatten(1), given.bias, low, high)
        self.filters, self.stride, self.pad = given.weight.shape, given.stride[0], given.padding[0]

    def forward(self, x: Tensor) -> Tensor:
        k, _, r, s = self.filters
        n, c, h, w = x.shape
        shape = Shape(n, c, h, w, k, r, s, self.stride, self.pad)
        pixels = self.bytes_of(x.float().contiguous(), c * h * w, c * h * w)
        count = shape.n * shape.p * shape.q
        rows = torch.empty(count * self.row, dtype=torch.uint8)
        native().fixed_unroll(
            shape.struct(), pointer(pixels), pointer(rows), long(self.row), long(self.zero),
            long(torch.get_num_threads()),
        )  # fmt: skip
        return self.product(rows, count, shape.p * shape.q).view(shape.n, k, shape.p, shape.q)
