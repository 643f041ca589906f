"""A network in whole numbers: bytes between steps, signed weights of 8 or 4 bits, sums of 32 bits.

    number = (byte - zero) * scale        one scale and one zero for each value, from its range on training data
    weight = whole number * scale         one scale for each output; with shared exponents a power of two for the layer
    byte'  = (sum * factor + 2**(shift - 1) >> shift) + zero'      a factor for each output, one shift for the layer

The sum includes a bias from which `zero` times the sum of the weights is taken off, so padding is the byte `zero`. An
activation is a table of 256 bytes; ReLU needs none, because its least byte is zero'. The last step's results are whole
numbers of one scale. With shared exponents (the idea of Flexpoint) every scale is a power of two: all factors are 1,
and a byte is a sum shifted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.compression.network import (
    INPUT,
    Affine,
    CannotEmit,
    Function,
    Geometry,
    Image,
    MaxPooling,
    Network,
    Step,
    Sum,
    Window,
)
from paceline.compression.reading import function_of
from paceline.kernels.functions import numbers_of


class Range(NamedTuple):
    """The least and the largest number, nought included: padding is nought."""

    low: float
    high: float

    def joined(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))


BYTE = 255
FACTOR_BITS = 31  # of the largest factor of a layer
SUM_BITS = 20  # of the factors of a `Sum`, which are multiplied by differences of bytes
WIDE = 32767.0  # the largest result on the data that ranges were taken from
BIAS = 1 << 24  # the largest bias that a layer's scales allow
#: Arguments beyond which a function's result is within half a byte of its limit.
SATURATED = {"tanh": Range(-3.5, 3.5), "sigmoid": Range(-6.3, 6.3)}
CLIPS = tuple(c / 20 for c in range(9, 21))  # parts of the largest weight that may be the largest whole number


@dataclass(frozen=True)
class Precision:
    """How weights become whole numbers."""

    bits: int = 8
    shared_exponents: bool = False

    @property
    def largest(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def __str__(self) -> str:
        return f"int{self.bits}" + "-exponents" * self.shared_exponents


@dataclass(frozen=True)
class Scale:
    """What the bytes of a value stand for."""

    scale: float
    zero: int

    @staticmethod
    def of(value_range: Range, powers: bool) -> Scale:
        scale = max(value_range.high - value_range.low, 1e-9) / BYTE
        if powers:
            scale = 2.0 ** math.ceil(math.log2(scale))
        return Scale(scale, min(max(round(-value_range.low / scale), 0), BYTE))

    def numbers(self) -> Tensor:
        """What each of the 256 bytes stands for."""
        return (torch.arange(BYTE + 1, dtype=torch.float64) - self.zero) * self.scale


@dataclass(frozen=True)
class Requantisation:
    """How sums become bytes, or results."""

    factors: tuple[int, ...]
    shift: int
    zero: int
    #: The least byte: `zero` for ReLU, else 0.
    low: int = 0
    table: tuple[int, ...] = ()


@dataclass(frozen=True)
class IntegerStep:
    """A step of a network in whole numbers."""

    step: Step
    out: Requantisation
    #: Whether the results are whole numbers of 32 bits, not bytes.
    wide: bool = False
    weight: Tensor | None = None  # in the order of the float weight
    bias: tuple[int, ...] = ()
    bits: int = 8
    #: What a weight of 1 stands for, of each output.
    scales: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def shape(self) -> Image:
        return self.step.shape


@dataclass(frozen=True)
class IntegerNetwork:
    """All steps in whole numbers, and what their bytes stand for."""

    network: Network
    precision: Precision
    steps: tuple[IntegerStep, ...]
    scales: Mapping[str, Scale]
    #: What the bytes before an activation stand for, of steps with a table.
    arguments: Mapping[str, Scale]
    #: What a result of 1 stands for, and the result that stands for nought.
    result: Scale


def integers(network: Network, ranges: Mapping[str, tuple[Range, Range]], precision: Precision) -> IntegerNetwork:
    """Return the network in whole numbers, with the ranges that its values took on training data."""
    maker = _Maker(network, ranges, precision)
    steps = tuple(maker.step(step) for step in network.steps)
    last = steps[-1]
    result = maker.wide if last.wide else maker.scales[last.name]
    return IntegerNetwork(network, precision, steps, maker.scales, maker.arguments, result)


class _Maker:
    """Makes the steps one after the other; each needs the scales of its sources."""

    def __init__(self, network: Network, ranges: Mapping[str, tuple[Range, Range]], precision: Precision) -> None:
        self.network, self.found, self.precision = network, ranges, precision
        self.powers = precision.shared_exponents
        self.scales = {INPUT: Scale.of(ranges[INPUT][0], self.powers)}
        self.arguments: dict[str, Scale] = {}
        self.wide = Scale(1.0, 0)

    def step(self, step: Step) -> IntegerStep:
        match step:
            case Affine() | Window():
                return self._sums(step)
            case MaxPooling():
                self.scales[step.name] = self.scales[step.source]
                return IntegerStep(step, Requantisation((), 0, 0))
            case Sum():
                return self._sum(step)
            case Function():
                input_scale = self.scales[step.source]
                output_scale = Scale.of(self.found[step.name][1], self.powers)
                self.scales[step.name] = output_scale
                return IntegerStep(
                    step, Requantisation((), 0, 0, table=_table(step.function, input_scale, output_scale))
                )

    def _sums(self, step: Affine | Window) -> IntegerStep:
        input_scale = self.scales[step.source]
        weight = step.weight.double().reshape(len(step.weight), -1)
        bits = 8 if isinstance(step, Window) else self.precision.bits
        scale = _weight_scales(weight, (1 << (bits - 1)) - 1, self.powers)
        outputs = step.shape[0]
        bias = step.bias.double()
        least = bias.abs() / (input_scale.scale * BIAS)
        least = least.amax().expand(len(scale)) if len(scale) < outputs or self.powers else least
        scale = torch.maximum(scale, _up(least) if self.powers else least)
        largest = (1 << (bits - 1)) - 1
        quantized = (weight / scale[:, None]).round().clamp(-largest, largest)
        scale, total = scale.expand(outputs), quantized.sum(1).expand(outputs)
        whole_bias = (bias / (scale * input_scale.scale)).round() - input_scale.zero * total
        _check(step, quantized, whole_bias)
        wide = step is self.network.last and not step.function
        if wide:
            high = max(abs(bound) for bound in self.found[step.name][0])
            one = max(high, 1e-9) / WIDE
            self.wide = Scale(2.0 ** math.ceil(math.log2(one)) if self.powers else one, 0)
            out = _requantisation(scale * input_scale.scale / self.wide.scale, 0, 0, ())
        else:
            out = self._bytes(step, scale * input_scale.scale)
        signed = quantized.to(torch.int8).reshape(step.weight.shape)
        return IntegerStep(
            step, out, wide, signed, tuple(int(b) for b in whole_bias.tolist()), bits, tuple(scale.tolist())
        )

    def _bytes(self, step: Affine | Window | Sum, units: Tensor, bits: int = FACTOR_BITS) -> Requantisation:
        """How sums in these units become the bytes of a step's value."""
        before, after = self.found[step.name]
        output_scale = Scale.of(after, self.powers)
        self.scales[step.name] = output_scale
        if step.function in ("", "relu"):
            low = output_scale.zero if step.function else 0
            return _requantisation(units / output_scale.scale, output_scale.zero, low, (), bits)
        if (limit := _saturated(step.function)) is not None:
            before = Range(max(before.low, limit.low), min(before.high, limit.high))
        argument = self.arguments[step.name] = Scale.of(before, self.powers)
        return _requantisation(
            units / argument.scale, argument.zero, 0, _table(step.function, argument, output_scale), bits
        )

    def _sum(self, step: Sum) -> IntegerStep:
        units = torch.tensor([self.scales[step.left].scale, self.scales[step.right].scale], dtype=torch.float64)
        return IntegerStep(step, self._bytes(step, units, SUM_BITS))


def _saturated(function: str) -> Range | None:
    """The arguments between which a function is more than its limits."""
    return Range(*numbers_of(function)) if function.startswith("hardtanh") else SATURATED.get(function)


def _requantisation(
    ratios: Tensor, zero: int, low: int, table: tuple[int, ...], bits: int = FACTOR_BITS
) -> Requantisation:
    """Whole factors for ratios; ratios that are all the same power of two get the factor 1."""
    top = float(ratios.max())
    if len(set(ratios.tolist())) == 1 and math.log2(top).is_integer():
        shift = -int(math.log2(top))
        return Requantisation((1 << max(1 - shift, 0),) * len(ratios), max(shift, 1), zero, low, table)
    shift = min(bits - 1 - math.floor(math.log2(top)), 2 * FACTOR_BITS - 2)
    if shift < 1:
        raise CannotEmit("a layer's sums are finer than its bytes by more than 31 bits; train with smaller weights")
    limit = (1 << bits) - 1
    factors = tuple(min(round(ratio * 2.0**shift), limit) for ratio in ratios.tolist())
    return Requantisation(factors, shift, zero, low, table)


def _weight_scales(weight: Tensor, largest: int, powers: bool) -> Tensor:
    """The scale of each output's weights; of few bits the one that loses least, which may clip the largest weights."""
    if powers:
        return _up(weight.abs().amax() / largest).clamp_min(2.0**-100).expand(len(weight))
    high = weight.abs().amax(1).clamp_min(1e-30)
    if largest > 7:
        return high / largest
    best, least = high / largest, torch.full_like(high, math.inf)
    for clip in CLIPS:
        scale = clip * high / largest
        quantized = (weight / scale[:, None]).round().clamp(-largest, largest)
        lost = (quantized * scale[:, None] - weight).square().sum(1)
        best, least = torch.where(lost < least, scale, best), torch.minimum(lost, least)
    return best


def _up(values: Tensor) -> Tensor:
    """The next powers of two."""
    return torch.exp2(torch.ceil(torch.log2(values.clamp_min(2.0**-100))))


def _table(function: str, input_scale: Scale, output_scale: Scale) -> tuple[int, ...]:
    """A function's result for every byte."""
    results = function_of(function)(input_scale.numbers()) / output_scale.scale + output_scale.zero
    return tuple(int(b) for b in results.round().clamp(0, BYTE).tolist())


def _check(step: Affine | Window, weight: Tensor, bias: Tensor) -> None:
    """Refuse sums that 32 bits may not hold."""
    reach = float((weight.abs().sum(1) * BYTE).max() + bias.abs().max())
    if reach >= 2**31:
        raise CannotEmit(
            f"layer {step.name} sums {weight.shape[1]:,} products, which 32 bits may not hold; precision='float32' "
            "computes it"
        )


# The model that computes in PyTorch the same whole numbers as the C file.

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


# The values of a network's steps in float32, and the ranges that they take on training data.

EVALUATED_AT_ONCE = 512


def sums(step: Step, tensors: dict[str, Tensor]) -> Tensor:
    """What a step computes before its activation."""
    match step:
        case Affine(source=source, geometry=g, weight=weight, bias=bias):
            return functional.conv2d(tensors[source], weight, bias, g.stride, g.padding, g.dilation)
        case Window(source=source, geometry=g, weight=weight, bias=bias):
            channels = tensors[source].shape[1]
            each = weight.expand(channels, *g.kernel)[:, None]
            return functional.conv2d(tensors[source], each, bias, g.stride, g.padding, g.dilation, channels)
        case MaxPooling(source=source, geometry=g):
            return functional.max_pool2d(tensors[source], g.kernel, g.stride, g.padding, g.dilation)
        case Sum(left=left, right=right):
            return tensors[left] + tensors[right]
        case Function(source=source):
            return tensors[source]


def values(network: Network, x: Tensor) -> Iterator[tuple[Step, Tensor, Tensor]]:
    """Yield (step, before its activation, after it) for a batch of samples."""
    tensors = {INPUT: x.float().reshape(len(x), *network.inputs)}
    for step in network.steps:
        before = sums(step, tensors)
        function = "" if isinstance(step, MaxPooling) else step.function
        tensors[step.name] = after = function_of(function)(before) if function else before
        yield step, before, after


@torch.no_grad()
def compute(network: Network, x: Tensor) -> Tensor:
    """Return the network's results for a batch, as the model would give them."""
    result = x
    for _, _, after in values(network, x):
        result = after
    return result.reshape(len(x), *network.result)


@torch.no_grad()
def ranges(network: Network, x: Tensor) -> dict[str, tuple[Range, Range]]:
    """Return the range of each step before and after its activation, and that of the input."""
    step_ranges: dict[str, tuple[Range, Range]] = {}

    def see(name: str, before: Tensor, after: Tensor) -> None:
        new = _range(before), _range(after)
        old = step_ranges.get(name)
        step_ranges[name] = new if old is None else (old[0].joined(new[0]), old[1].joined(new[1]))

    for start in range(0, len(x), EVALUATED_AT_ONCE):
        part = x[start : start + EVALUATED_AT_ONCE]
        see(INPUT, part, part)
        for step, before, after in values(network, part):
            see(step.name, before, after)
    return step_ranges


def _range(x: Tensor) -> Range:
    return Range(min(float(x.min()), 0.0), max(float(x.max()), 0.0))
