"""An integer network's steps as calls in C."""

from __future__ import annotations

from math import prod

from paceline.compression.emission.kernels import Kernel, table
from paceline.compression.emission.writer import FileWriter, Windows, padded_shape, text, windows
from paceline.compression.integers import IntegerNetwork, IntegerStep
from paceline.compression.network import Affine, Function, MaxPooling, Sum, Window
from paceline.names import comment

RESULT = "scores"


def write_steps(writer: FileWriter, it: IntegerNetwork, kernel: Kernel) -> None:
    """Add every step's arrays and call."""
    for number, step in enumerate(it.steps, 1):
        writer.calls.append(f"/* {comment(step.name)} */\n    {_call(writer, it, step, number, kernel)}")
        writer.done(step.step)


def _call(writer: FileWriter, network: IntegerNetwork, it: IntegerStep, number: int, kernel: Kernel) -> str:
    step = it.step
    match step:
        case Affine() | Window():
            source, lines = _padded(writer, network, step)
            target = RESULT if it.wide else writer.place(step.name)
            image = padded_shape(network.network.shape(step.source), step.geometry)
            affine = isinstance(step, Affine)
            grid = windows(image, step.geometry, step.shape, joined=affine)
            form = kernel.affine if affine else kernel.window
            return lines + form(writer, it, number, grid, source, target)
        case MaxPooling():
            return _max_pooling(writer, network, step, number)
        case Function():
            writer.uses(text("bytes_function.c"))
            source, target = writer.places[step.source], writer.place(step.name)
            return f"function({source}, {target}, {prod(step.shape)}, {table(writer, it, number)});"
        case Sum():
            return _sum(writer, network, it, step, number)


def _padded(writer: FileWriter, network: IntegerNetwork, step: Affine | Window) -> tuple[str, str]:
    """Where a step's padded source lies, and the call that makes it; empty for a step without padding."""
    source, (top, left) = writer.places[step.source], step.geometry.padding
    if not (top or left):
        return source, ""
    writer.uses(text("bytes_pad.c"))
    channels, height, width = image = network.network.shape(step.source)
    target = writer.temporary(step.name, padded_shape(image, step.geometry))
    zero = network.scales[step.source].zero
    call = f"padded({source}, {target}, {height}, {width * channels}, {top}, {left * channels}, {zero});\n    "
    return target, call


def _max_pooling(writer: FileWriter, network: IntegerNetwork, step: MaxPooling, number: int) -> str:
    writer.uses(text("bytes_highest.c"))
    channels, height, width = network.network.shape(step.source)
    (rows, columns), (down, right), (top, left), (row, column) = (
        step.geometry.kernel,
        step.geometry.stride,
        step.geometry.padding,
        step.geometry.dilation,
    )
    grid = Windows(step.shape[1], step.shape[2], channels, rows, columns, 1, down, right, row, column)
    layer = writer.layer(f"layer_{number}", grid, 1, 0, 0, 0, 0, 0, 0)
    source, target = writer.places[step.source], writer.place(step.name)
    return f"highest(&{layer}, {source}, {target}, {height}, {width}, {top}, {left});"


def _sum(writer: FileWriter, network: IntegerNetwork, it: IntegerStep, step: Sum, number: int) -> str:
    writer.uses(text("bytes_sum.c"))
    factors = writer.array("int32_t", f"factor_{number}", it.out.factors)
    grid = Windows(1, 1, 1, 1, 1, prod(step.shape), 0, 0, 0, 0)
    out = it.out
    layer = writer.layer(
        f"layer_{number}", grid, out.shift, out.zero, out.low, 0, 0, factors, table(writer, it, number)
    )
    left, right = writer.places[step.left], writer.places[step.right]
    zeros = ", ".join(str(network.scales[name].zero) for name in step.sources)
    return f"summed(&{layer}, {left}, {right}, {writer.place(step.name)}, {zeros});"
