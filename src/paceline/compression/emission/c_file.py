"""The whole C file: arrays, functions, `net_run` and a `main` that checks itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from paceline.compression.emission import loops, steps
from paceline.compression.emission.kernels import Kernel
from paceline.compression.emission.writer import FileWriter, array, floating, text
from paceline.compression.integers import IntegerModel, IntegerNetwork, compute
from paceline.compression.network import INPUT, Image, LayerProgram, Network
from paceline.kernels.build import KEEPS_CALLS

TESTS = 8  # samples that a file keeps to check itself
TOLERANCE = 1e-3  # of float32 results, relative to the largest one


@dataclass(frozen=True)
class CFile:
    """A network as C: its text, how it is compiled, and what it needs."""

    text: str
    flags: tuple[str, ...]
    #: Bytes of values between layers, in static memory.
    memory: int
    whole_numbers: bool = False
    #: Whether `net_run` takes whole numbers, such as the words of a text.
    tokens: bool = False


def integer_file(network: IntegerNetwork, kernel: Kernel, samples: Tensor) -> CFile:
    """Write an integer network; `samples` are some inputs, of which the file keeps the first ones as tests."""
    writer = FileWriter(network.network)
    steps.write_byte_steps(writer, network, kernel)
    input_scale, result = network.scales[INPUT], network.result
    shape, last = network.network.inputs, network.steps[-1]
    numbers = _numbers(network.network)
    numbers |= {"NET_INPUT_ZERO": str(input_scale.zero), "NET_RESULT_ZERO": str(result.zero)}
    floats = {"NET_INPUT_INVERSE": 1 / input_scale.scale, "NET_RESULT_SCALE": result.scale}
    copied = "" if last.wide else _copied(writer.places[last.name], prod(last.shape))
    run = RUN_BYTES.format(place=writer.places[INPUT], calls="\n    ".join(writer.calls), copied=copied)
    convert = CONVERT.format(place=writer.places[INPUT], into=_from_model(shape, "arena"), out=_to_model(last.shape))
    body = [
        _defines(numbers, floats),
        text("bytes.c"),
        f"\nstatic uint8_t arena[{writer.arena.size}];\n",
        *writer.functions,
        "\n",
        *writer.arrays,
        SPLIT.format(run=run),
        "\n#ifndef NET_BYTES_ONLY",
        text("bytes_input.c"),
        convert,
        "#endif\n",
        _byte_tests(network, samples),
        text("main.c"),
    ]
    return _whole(body, kernel.flags, writer.arena.size, whole_numbers=True)


def float_file(network: Network, samples: Tensor) -> CFile:
    """Write a network in float32."""
    writer = FileWriter(network)
    steps.write_float_steps(writer, network)
    shape = network.last.shape
    tests = samples[:TESTS].float()
    expected = compute(network, tests).reshape(len(tests), -1)
    tolerance = max(float(expected.abs().max()), 1e-3) * TOLERANCE
    numbers = _numbers(network) | {"NET_TESTS": str(len(tests)), "NET_FROM_FIRST": "0"}
    run = RUN_FLOATS.format(
        into=_from_model(network.inputs, writer.places[INPUT], "{x}"),
        calls="\n    ".join(writer.calls),
        out=_to_model(shape, writer.places[network.last.name]),
    )
    body = [
        _defines(numbers, {"NET_TOLERANCE": tolerance}),
        steps.functions(network),
        *writer.functions,
        f"\nstatic float arena[{writer.arena.size}];\n",
        *writer.arrays,
        run,
        TESTS_BEGIN,
        _two("float", "net_test_inputs", "NET_INPUTS", tests.reshape(len(tests), -1)),
        _two("float", "net_test_outputs", "NET_OUTPUTS", expected),
        "#endif\n",
        text("main_floats.c"),
    ]
    return _whole(body, steps.FLAGS, 4 * writer.arena.size)


def program_file(it: LayerProgram, model: Callable[[Tensor], Tensor], samples: Tensor) -> CFile:
    """Write a program in float32, with what the model gives for the first samples as tests."""
    writer = loops.LoopsWriter(it)
    writer.write()
    tests = samples[:TESTS]
    with torch.no_grad():
        expected = model(tests).float().reshape(len(tests), -1)
    if it.end:  # the file gives scores: what is apart from the first one is the same as of logarithms
        expected = expected.log() if it.end == "softmax" else expected
        finite = expected.isfinite().all(1)
        tests, expected = tests[finite], expected[finite] - expected[finite, :1]
    kind = "int32_t" if it.tokens else "float"
    counts = {"inputs": it.numbers_in, "outputs": it.numbers_out, "tests": len(tests), "from_first": int(bool(it.end))}
    run = RUN_LOOPS.format(kind=kind, lines="\n".join(writer.lines), result=writer.whole(it.output))
    tolerance = max(float(expected.abs().max()), 1e-3) * TOLERANCE
    body = [
        _defines({f"NET_{word.upper()}": str(count) for word, count in counts.items()}, {"NET_TOLERANCE": tolerance}),
        loops.functions(it),
        f"\nstatic float arena[{max(writer.arena.size, 1)}];\n",
        *writer.arrays,
        run,
        TESTS_BEGIN,
        _two(kind, "net_test_inputs", "NET_INPUTS", tests.reshape(len(tests), -1)),
        _two("float", "net_test_outputs", "NET_OUTPUTS", expected),
        "#endif\n",
        text("main_floats.c"),
    ]
    return _whole(body, loops.FLAGS, 4 * writer.arena.size, tokens=it.tokens)


HEAD = """/* A network, made by Paceline.
 *
 * gcc -std=c99 {flags} net.c -o net && ./net      compares the results of {tests} samples with the recorded ones
 * -DNET_LIBRARY leaves `main` and these samples out, -DNET_BYTES_ONLY leaves `net_run` out.
 * The values between layers are static: one call at a time.
 */
#include <stdint.h>
#include <string.h>

"""
RUN_BYTES = """
/* The results of one sample as whole numbers; the input's bytes have the channels of a pixel side by side. */
static void net_compute(int32_t scores[NET_OUTPUTS]) {{
    {calls}
{copied}}}

void net_run_bytes(const uint8_t input[NET_INPUTS], int32_t scores[NET_OUTPUTS]) {{
    memcpy({place}, input, NET_INPUTS);
    net_compute(scores);
}}
"""
SPLIT = "\nvoid net_run_bytes(const uint8_t input[NET_INPUTS], int32_t scores[NET_OUTPUTS]);\n{run}"
CONVERT = """
/* The results of one sample, in the order of the model's input and output. */
void net_run(const float input[NET_INPUTS], float output[NET_OUTPUTS]);
void net_run(const float input[NET_INPUTS], float output[NET_OUTPUTS]) {{
    int32_t scores[NET_OUTPUTS];
    uint8_t *bytes = {place};
{into}    net_compute(scores);
{out}}}
"""
RUN_FLOATS = """
/* The results of one sample, in the order of the model's input and output. */
void net_run(const float input[NET_INPUTS], float output[NET_OUTPUTS]);
void net_run(const float input[NET_INPUTS], float output[NET_OUTPUTS]) {{
{into}    {calls}
{out}}}
"""
RUN_LOOPS = """
/* The result of one sample, in the order of the model's input and output. */
void net_run(const {kind} input[NET_INPUTS], float output[NET_OUTPUTS]);
void net_run(const {kind} input[NET_INPUTS], float output[NET_OUTPUTS]) {{
{lines}
    memcpy(output, {result}, 4 * NET_OUTPUTS);
}}
"""
TESTS_BEGIN = "\n#ifndef NET_LIBRARY\n"


def _whole(body: Sequence[str], flags: tuple[str, ...], memory: int, **kind: bool) -> CFile:
    """The file of these parts, whose first lines say how it is compiled."""
    flags = (*flags, KEEPS_CALLS)
    return CFile(HEAD.format(flags=" ".join(flags), tests=TESTS) + "".join(body), flags, memory, **kind)


def _numbers(network: Network) -> dict[str, str]:
    return {"NET_INPUTS": str(prod(network.inputs)), "NET_OUTPUTS": str(prod(network.last.shape))}


def _defines(numbers: dict[str, str], floats: dict[str, float]) -> str:
    lines = [f"#define {name} {value}\n" for name, value in numbers.items()]
    lines += [f"#define {name} {floating(_single(value))} /* {value:.6g} */\n" for name, value in floats.items()]
    return "".join(lines) + "\n"


def _single(value: float) -> float:
    """The nearest float32."""
    return float(torch.tensor(value, dtype=torch.float32))


def _copied(place: str, count: int) -> str:
    return f"    const uint8_t *last = {place};\n    for (int k = 0; k < {count}; k++) scores[k] = last[k];\n"


def _loops(shape: Image, line: str) -> str:
    """A loop over an image's channels and pixels; `{m}` is the model's order and `{c}` has channels side by side."""
    channels, height, width = shape
    if channels == 1 or height * width == 1:
        return f"    for (int k = 0; k < {prod(shape)}; k++) {line.format(m='k', c='k')}\n"
    pixels = height * width
    inner = line.format(m=f"c * {pixels} + k", c=f"k * {channels} + c")
    return f"    for (int c = 0; c < {channels}; c++)\n        for (int k = 0; k < {pixels}; k++) {inner}\n"


def _from_model(shape: Image, place: str, number: str = "") -> str:
    if number:
        return f"    float *numbers = {place};\n" + _loops(shape, "numbers[{c}] = input[{m}];")
    return _loops(shape, "bytes[{c}] = net_byte(input[{m}]);")


def _to_model(shape: Image, place: str = "") -> str:
    if place:
        return f"    const float *last = {place};\n" + _loops(shape, "output[{m}] = last[{c}];")
    return _loops(shape, "output[{m}] = (float)(scores[{c}] - NET_RESULT_ZERO) * NET_RESULT_SCALE;")


def _byte_tests(network: IntegerNetwork, samples: Tensor) -> str:
    model, tests = IntegerModel(network), samples[:TESTS].float()
    inputs = model.bytes_of(tests).reshape(len(tests), *network.network.inputs).permute(0, 2, 3, 1)
    scores = model.scores(tests).reshape(len(tests), *network.network.last.shape).permute(0, 2, 3, 1)
    return "".join(
        (
            TESTS_BEGIN,
            f"#define NET_TESTS {len(tests)}\n",
            _two("uint8_t", "net_test_inputs", "NET_INPUTS", inputs.reshape(len(tests), -1)),
            _two("int32_t", "net_test_scores", "NET_OUTPUTS", scores.reshape(len(tests), -1)),
            "#endif\n",
        )
    )


def _two(kind: str, name: str, size: str, rows: Tensor) -> str:
    """A constant array of two dimensions."""
    array_text = array(kind, name, rows.flatten().tolist())
    first, _, rest = array_text.partition(f"{name}[{rows.numel()}]")
    lines = rest.partition("{\n")[2].rpartition("};")[0]
    each = len(rows[0])
    flat = [word for line in lines.splitlines() for word in line.strip().rstrip(",").split(", ")]
    body = ",\n".join("    {" + ",\n     ".join(_wrapped(flat[k : k + each])) + "}" for k in range(0, len(flat), each))
    return f"{first}{name}[NET_TESTS][{size}] = {{\n{body}\n}};\n"


def _wrapped(words: list[str], most: int = 16) -> list[str]:
    return [", ".join(words[k : k + most]) for k in range(0, len(words), most)]
