"""A network's steps as calls in C: in float32, and in bytes where the network is one of whole numbers."""

from __future__ import annotations

from math import prod

import torch
from torch.nn import functional

from paceline.compression.emission.kernels import LANES, MOST_PIXELS, Kernel, pixels_at_once, table
from paceline.compression.emission.writer import FileWriter, Windows, floating, padded_shape, text, windows
from paceline.compression.integers import IntegerNetwork, IntegerStep
from paceline.compression.network import Affine, Function, MaxPooling, Network, Sum, Window
from paceline.compression.reading import ARGUMENT
from paceline.kernels.functions import applied, is_formula
from paceline.kernels.ir import Expression, FunctionCall, Number, Op
from paceline.names import comment

# An integer network's steps as calls in C.

RESULT = "scores"


def write_byte_steps(writer: FileWriter, it: IntegerNetwork, kernel: Kernel) -> None:
    """Add every step's arrays and call."""
    for number, step in enumerate(it.steps, 1):
        writer.calls.append(f"/* {comment(step.name)} */\n    {_call(writer, it, step, number, kernel)}")
        writer.done(step.step)


def _call(writer: FileWriter, network: IntegerNetwork, it: IntegerStep, number: int, kernel: Kernel) -> str:
    step = it.step
    match step:
        case Affine() | Window():
            source, lines = _padded_bytes(writer, network, step)
            target = RESULT if it.wide else writer.place(step.name)
            image = padded_shape(network.network.shape(step.source), step.geometry)
            affine = isinstance(step, Affine)
            grid = windows(image, step.geometry, step.shape, joined=affine)
            form = kernel.affine if affine else kernel.window
            return lines + form(writer, it, number, grid, source, target)
        case MaxPooling():
            return _max_pooling_of_bytes(writer, network, step, number)
        case Function():
            writer.uses(text("bytes_function.c"))
            source, target = writer.places[step.source], writer.place(step.name)
            return f"function({source}, {target}, {prod(step.shape)}, {table(writer, it, number)});"
        case Sum():
            return _sum(writer, network, it, step, number)


def _padded_bytes(writer: FileWriter, network: IntegerNetwork, step: Affine | Window) -> tuple[str, str]:
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


def _max_pooling_of_bytes(writer: FileWriter, network: IntegerNetwork, step: MaxPooling, number: int) -> str:
    writer.uses(text("bytes_highest.c"))
    return _highest(writer, network.network, step, number, 1, 0, 0, 0, 0, 0, 0)


def _highest(writer: FileWriter, network: Network, step: MaxPooling, number: int, *arithmetic: int) -> str:
    """Write a max pooling; `arithmetic` is what its layer has beside the windows."""
    channels, height, width = network.shape(step.source)
    (rows, columns), (down, right) = step.geometry.kernel, step.geometry.stride
    (top, left), (row, column) = step.geometry.padding, step.geometry.dilation
    grid = Windows(step.shape[1], step.shape[2], channels, rows, columns, 1, down, right, row, column)
    layer = writer.layer(f"layer_{number}", grid, *arithmetic)
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


FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno")


def _needed(network: Network) -> dict[str, int]:
    """The activations of a network by number; 0 is none."""
    names = {step.function for step in network.steps if not isinstance(step, MaxPooling)}
    return {name: number for number, name in enumerate(sorted(names | {""}))}


def functions(network: Network) -> str:
    """Vectors, and the activations that the network needs, by number."""
    texts, cases = [text("floats_relu.c")], ""
    for name, number in _needed(network).items():
        if not name:
            continue
        word = NAMES.get(name, name)
        if is_formula(name):
            word = f"formula_{number}"
            texts.append(f"ALWAYS Lanes {word}(Lanes x) {{ return {_lanes(applied(name, ARGUMENT))}; }}\n")
        elif name != "relu":
            texts.append(text(f"floats_{name}.c"))
        cases += f"    if (which == {number}) return {word}(x);\n"
    chosen = f"ALWAYS Lanes activated(int which, Lanes x) {{\n    (void)which;\n{cases}    return x;\n}}\n"
    return text("floats.c") + "".join(texts) + chosen


#: Where a function in C has another name than the activation.
NAMES = {"tanh": "hyperbolic"}
CALLED = {"relu": "relu", "exp": "exponential"}


def _lanes(value: Expression) -> str:
    """A formula on vectors."""
    match value:
        case Number(number):
            return f"((Lanes){{0}} + {floating(number)})"
        case Op(sign, left, right):
            return f"({_lanes(left)} {sign} {_lanes(right)})"
        case FunctionCall(function, argument):
            return f"{CALLED[function]}({_lanes(argument)})"
    return "x"


def write_float_steps(writer: FileWriter, network: Network) -> None:
    """Add every step's arrays and call."""
    for number, step in enumerate(network.steps, 1):
        match step:
            case Affine():
                call = _affine(writer, network, step, number)
            case Window():
                call = _window(writer, network, step, number)
            case MaxPooling():
                call = _max_pooling(writer, network, step, number)
            case Function():
                writer.uses(text("floats_function.c"))
                source, target = writer.places[step.source], writer.place(step.name)
                call = f"applied({source}, {target}, {prod(step.shape)}, {_needed(network)[step.function]});"
            case Sum():
                writer.uses(text("floats_sum.c"))
                left, right, target = writer.places[step.left], writer.places[step.right], writer.place(step.name)
                call = f"summed({left}, {right}, {target}, {prod(step.shape)}, {_needed(network)[step.function]});"
        writer.calls.append(f"/* {comment(step.name)} */\n    {call}")
        writer.done(step)


def _padded(writer: FileWriter, network: Network, step: Affine | Window) -> tuple[str, str]:
    source, (top, left) = writer.places[step.source], step.geometry.padding
    if not (top or left):
        return source, ""
    writer.uses(text("floats_pad.c"))
    channels, height, width = image = network.shape(step.source)
    target = writer.temporary(step.name, padded_shape(image, step.geometry))
    return target, f"padded({source}, {target}, {height}, {width * channels}, {top}, {left * channels});\n    "


def _affine(writer: FileWriter, network: Network, step: Affine, number: int) -> str:
    source, lines = _padded(writer, network, step)
    grid = windows(padded_shape(network.shape(step.source), step.geometry), step.geometry, step.shape)
    rest = -grid.outputs % LANES
    weight = step.weight.permute(0, 2, 3, 1).reshape(grid.outputs, -1)
    blocks = functional.pad(weight, (0, 0, 0, rest)).reshape(-1, LANES, weight.shape[1]).permute(0, 2, 1)
    layer = _layer(writer, number, grid, blocks, functional.pad(step.bias, (0, rest)), _needed(network)[step.function])
    target = writer.place(step.name)
    writer.uses(text("floats_affine.c"))
    if grid.height * grid.width == 1:
        return f"{lines}affine_row({layer}, {source}, {target});"
    return f"{lines}affine_image({layer}, {source}, {target}, {pixels_at_once(grid.width, MOST_PIXELS)});"


def _layer(
    writer: FileWriter, number: int, grid: Windows, weight: torch.Tensor, bias: torch.Tensor, function: int
) -> str:
    names = (
        writer.array("float", f"weight_{number}", weight.flatten().tolist()),
        writer.array("float", f"bias_{number}", bias.tolist()),
    )
    return f"&{writer.layer(f'layer_{number}', grid, *names, function)}"


def _window(writer: FileWriter, network: Network, step: Window, number: int) -> str:
    source, lines = _padded(writer, network, step)
    image = padded_shape(network.shape(step.source), step.geometry)
    grid = windows(image, step.geometry, step.shape, joined=False)
    layer = _layer(writer, number, grid, step.weight.permute(1, 2, 0), step.bias, _needed(network)[step.function])
    writer.uses(text("floats_affine.c"))
    writer.uses(text("floats_window.c"))
    return f"{lines}window({layer}, {source}, {writer.place(step.name)}, {int(len(step.weight) > 1)});"


def _max_pooling(writer: FileWriter, network: Network, step: MaxPooling, number: int) -> str:
    writer.uses(text("floats_highest.c"))
    return _highest(writer, network, step, number, 0, 0, 0)
