"""A network's steps in float32 as calls in C."""

from __future__ import annotations

from math import prod

import torch
from torch.nn import functional

from paceline.compression.emission.kernels import LANES, MOST_PIXELS, pixels_at_once
from paceline.compression.emission.writer import FileWriter, Windows, floating, padded_shape, text, windows
from paceline.compression.network import Affine, Function, MaxPooling, Network, Sum, Window
from paceline.compression.reading import ARGUMENT
from paceline.kernels.formulas import applied, is_formula
from paceline.kernels.ir import Expression, FunctionCall, Number, Op
from paceline.names import comment

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


def write_steps(writer: FileWriter, network: Network) -> None:
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
    channels, height, width = network.shape(step.source)
    (rows, columns), (down, right), (top, left), (row, column) = (
        step.geometry.kernel,
        step.geometry.stride,
        step.geometry.padding,
        step.geometry.dilation,
    )
    grid = Windows(step.shape[1], step.shape[2], channels, rows, columns, 1, down, right, row, column)
    layer = writer.layer(f"layer_{number}", grid, 0, 0, 0)
    source, target = writer.places[step.source], writer.place(step.name)
    return f"highest(&{layer}, {source}, {target}, {height}, {width}, {top}, {left});"
