"""A network's steps in float32 as calls in C."""

from __future__ import annotations

from math import prod

import torch
from torch.nn import functional

from paceline.compression.emission.kernels import LANES, MOST_PIXELS, pixels_at_once
from paceline.compression.emission.writer import Windows, Writer, padded_shape, text, windows
from paceline.compression.network import Affine, Function, Highest, Network, Sum, Window

FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno")
#: Activations by their function in C.
NAMES = {
    "relu": "relu",
    "sigmoid": "sigmoid",
    "tanh": "hyperbolic",
    "gelu": "gelu",
    "gelu_tanh": "gelu_tanh",
    "silu": "silu",
}
NUMBERS = {"": 0, **{name: number for number, name in enumerate(NAMES, 1)}}


def functions(network: Network) -> str:
    """Vectors, and the activations that the network needs, by number."""
    needed = sorted({step.function for step in network.steps if not isinstance(step, Highest) and step.function})
    cases = "".join(f"    if (which == {NUMBERS[name]}) return {NAMES[name]}(x);\n" for name in needed)
    chosen = f"ALWAYS Lanes activated(int which, Lanes x) {{\n    (void)which;\n{cases}    return x;\n}}\n"
    return text("floats.c") + "".join(text(f"floats_{name}.c") for name in needed) + chosen


def write_steps(writer: Writer, network: Network) -> None:
    """Add every step's arrays and call."""
    for number, step in enumerate(network.steps, 1):
        match step:
            case Affine():
                call = _affine(writer, network, step, number)
            case Window():
                call = _window(writer, network, step, number)
            case Highest():
                call = _highest(writer, network, step, number)
            case Function():
                writer.uses(text("floats_function.c"))
                source, target = writer.places[step.source], writer.place(step.name)
                call = f"applied({source}, {target}, {prod(step.shape)}, {NUMBERS[step.function]});"
            case Sum():
                writer.uses(text("floats_sum.c"))
                left, right, target = writer.places[step.left], writer.places[step.right], writer.place(step.name)
                call = f"summed({left}, {right}, {target}, {prod(step.shape)}, {NUMBERS[step.function]});"
        writer.calls.append(f"/* {step.name} */\n    {call}")
        writer.done(step)


def _padded(writer: Writer, network: Network, step: Affine | Window) -> tuple[str, str]:
    source, (top, left) = writer.places[step.source], step.geometry.padding
    if not (top or left):
        return source, ""
    writer.uses(text("floats_pad.c"))
    channels, height, width = image = network.shape(step.source)
    target = writer.temporary(step.name, padded_shape(image, step.geometry))
    return target, f"padded({source}, {target}, {height}, {width * channels}, {top}, {left * channels});\n    "


def _affine(writer: Writer, network: Network, step: Affine, number: int) -> str:
    source, lines = _padded(writer, network, step)
    found = windows(padded_shape(network.shape(step.source), step.geometry), step.geometry, step.shape)
    rest = -found.outputs % LANES
    weight = step.weight.permute(0, 2, 3, 1).reshape(found.outputs, -1)
    blocks = functional.pad(weight, (0, 0, 0, rest)).reshape(-1, LANES, weight.shape[1]).permute(0, 2, 1)
    layer = _layer(writer, number, found, blocks, functional.pad(step.bias, (0, rest)), step.function)
    target = writer.place(step.name)
    writer.uses(text("floats_affine.c"))
    if found.height * found.width == 1:
        return f"{lines}affine_row({layer}, {source}, {target});"
    return f"{lines}affine_image({layer}, {source}, {target}, {pixels_at_once(found.width, MOST_PIXELS)});"


def _layer(writer: Writer, number: int, found: Windows, weight: torch.Tensor, bias: torch.Tensor, function: str) -> str:
    names = (
        writer.array("float", f"weight_{number}", weight.flatten().tolist()),
        writer.array("float", f"bias_{number}", bias.tolist()),
    )
    return f"&{writer.layer(f'layer_{number}', found, *names, NUMBERS[function])}"


def _window(writer: Writer, network: Network, step: Window, number: int) -> str:
    source, lines = _padded(writer, network, step)
    image = padded_shape(network.shape(step.source), step.geometry)
    found = windows(image, step.geometry, step.shape, joined=False)
    layer = _layer(writer, number, found, step.weight.permute(1, 2, 0), step.bias, step.function)
    writer.uses(text("floats_affine.c"))
    writer.uses(text("floats_window.c"))
    return f"{lines}window({layer}, {source}, {writer.place(step.name)}, {int(len(step.weight) > 1)});"


def _highest(writer: Writer, network: Network, step: Highest, number: int) -> str:
    writer.uses(text("floats_highest.c"))
    channels, height, width = network.shape(step.source)
    (rows, columns), (down, right), (top, left), (row, column) = (
        step.geometry.kernel, step.geometry.stride, step.geometry.padding, step.geometry.dilation,
    )  # fmt: skip
    found = Windows(step.shape[1], step.shape[2], channels, rows, columns, 1, down, right, row, column)
    layer = writer.layer(f"layer_{number}", found, 0, 0, 0)
    source, target = writer.places[step.source], writer.place(step.name)
    return f"highest(&{layer}, {source}, {target}, {height}, {width}, {top}, {left});"
