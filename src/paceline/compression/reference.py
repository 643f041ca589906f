"""The model that computes in PyTorch the same whole numbers as the C file."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.compression.integers import BYTE, IntegerNetwork, IntegerStep, Requantisation
from paceline.compression.network import INPUT, Affine, Function, Geometry, MaxPooling, Sum, Window

BATCH = 1000


class IntegerModel(nn.Module):
    """An integer network as a module: `forward` takes and gives float32, `scores` gives the whole numbers.

    Sums are computed in float64, which holds them exactly, so that PyTorch's convolutions can be used.
    """

    def __init__(self, integers: IntegerNetwork) -> None:
        super().__init__()
        self.integers = integers

    def forward(self, x: Tensor) -> Tensor:
        """Return the results as the trained model gives them, in float32."""
        parts = [self.scores(part) for part in x.split(BATCH)]
        result = self.integers.result
        return (torch.cat(parts) - result.zero).float() * torch.tensor(result.scale, dtype=torch.float32)

    def bytes_of(self, x: Tensor) -> Tensor:
        """Return the input as bytes, by the same operations of float32 as in C."""
        input_scale = self.integers.scales[INPUT]
        inverse, half = torch.tensor(1 / input_scale.scale), torch.tensor(input_scale.zero + 0.5)
        scaled = x.float() * inverse.float() + half.float()
        return torch.where(scaled > 0, scaled, 0.0).clamp_max(BYTE + 0.5).floor().clamp_max(BYTE).to(torch.int64)

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        """Return the results as whole numbers."""
        network = self.integers.network
        values = {INPUT: self.bytes_of(x).reshape(len(x), *network.inputs)}
        for step in self.integers.steps:
            values[step.name] = self._value(step, values)
        return values[network.last.name].reshape(len(x), *network.result)

    def _value(self, it: IntegerStep, values: dict[str, Tensor]) -> Tensor:
        step = it.step
        if isinstance(step, MaxPooling):
            g = step.geometry
            bytes_ = values[step.source].double()
            return functional.max_pool2d(bytes_, g.kernel, g.stride, g.padding, g.dilation).long()
        if isinstance(step, Function):
            return torch.tensor(it.out.table)[values[step.source]]
        if isinstance(step, Sum):
            left, right = (values[name] - self.integers.scales[name].zero for name in step.sources)
            return _bytes(left * it.out.factors[0] + right * it.out.factors[1], it.out)
        zero = self.integers.scales[step.source].zero
        total = _convolved(values[step.source], it, step, zero) + torch.tensor(it.bias)[:, None, None]
        scaled = total * torch.tensor(it.out.factors)[:, None, None]
        if not it.wide:
            return _bytes(scaled, it.out)
        return (scaled + (1 << (it.out.shift - 1))) >> it.out.shift


def _convolved(x: Tensor, it: IntegerStep, step: Affine | Window, zero: int) -> Tensor:
    assert it.weight is not None
    g: Geometry = step.geometry
    top, left = g.padding
    padded = functional.pad(x, (left, left, top, top), value=zero).double()
    weight, groups = it.weight.double(), 1
    if isinstance(step, Window):
        groups = x.shape[1]
        weight = weight.expand(groups, *g.kernel)[:, None]
    return functional.conv2d(padded, weight, None, g.stride, 0, g.dilation, groups).round().long()


def _bytes(scaled: Tensor, out: Requantisation) -> Tensor:
    """Sums times factors as bytes, through the table if there is one."""
    quantized = (((scaled + (1 << (out.shift - 1))) >> out.shift) + out.zero).clamp(out.low, BYTE)
    return torch.tensor(out.table)[quantized] if out.table else quantized
