"""How sums of products are computed in whole numbers: a row per kernel, with the order of its weights.

small     loops that all layers share, for few bytes of code
plain     the same loops, optimised by the compiler
vectors   sixteen outputs in the lanes of a vector (AVX-512 with VNNI), each layer by itself; plain loops elsewhere
cortex    two products at once (SMLAD of a Cortex-M4), four outputs side by side; plain loops elsewhere
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn import functional

from paceline.compression.emission.writer import FileWriter, Windows, packed, text
from paceline.compression.integers import IntegerStep
from paceline.compression.network import Window

LANES, FOUR = 16, 4
MOST_PIXELS = 8
VECTORS = "#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__) && defined(__AVX512BW__) && defined(__AVX512VL__)"

#: Adds a layer's arrays and returns the call; the arguments are (writer, step, number, windows, source, target).
Form = Callable[[FileWriter, IntegerStep, int, Windows, str, str], str]


@dataclass(frozen=True)
class Kernel:
    """One way to compute sums of products."""

    name: str
    about: str
    affine: Form
    window: Form
    #: Compiler flags of its own.
    flags: tuple[str, ...]


def parts(weight: Tensor, grid: Windows) -> Tensor:
    """Weights in the order in which a window's numbers lie: [outputs, rows, columns, length]."""
    return weight.permute(0, 2, 3, 1).reshape(len(weight), grid.rows, grid.columns, grid.length)


def padded_outputs(numbers: tuple[int, ...], lanes: int = LANES) -> list[int]:
    """Numbers of each output, with noughts up to a multiple of the lanes."""
    return [*numbers, *[0] * (-len(numbers) % lanes)]


def requantised(writer: FileWriter, it: IntegerStep, number: int, lanes: int) -> tuple[str, str, str]:
    """The bias, the factors and the table of a layer, each an array's name or 0."""
    bias = writer.array("int32_t", f"bias_{number}", padded_outputs(it.bias, lanes))
    ones = all(factor == 1 for factor in it.out.factors)
    factor = "0" if ones else writer.array("int32_t", f"factor_{number}", padded_outputs(it.out.factors, lanes))
    return bias, factor, table(writer, it, number)


def table(writer: FileWriter, it: IntegerStep, number: int) -> str:
    """The array of an activation, which layers of the same table share; 0 for none."""
    if not it.out.table:
        return "0"
    table_name = next((name for name, numbers in writer.tables.items() if numbers == it.out.table), None)
    if table_name is None:
        table_name = writer.array("uint8_t", f"table_{number}", it.out.table)
        writer.tables[table_name] = it.out.table
    return table_name


def _layer(writer: FileWriter, it: IntegerStep, number: int, grid: Windows, weight: list[int], lanes: int = 1) -> str:
    name = writer.array("int8_t", f"weight_{number}", weight)
    out = it.out
    rest = (out.shift, out.zero, out.low, name, *requantised(writer, it, number, lanes))
    return f"&{writer.layer(f'layer_{number}', grid, *rest)}"


def _signed(it: IntegerStep) -> Tensor:
    assert it.weight is not None
    return it.weight.int()


def _nibbles(rows: Tensor) -> list[int]:
    """Weights two by two; the last of an odd number stands beside a nought."""
    even = functional.pad(rows, (0, rows.shape[-1] % 2)).reshape(-1, 2)
    return [packed(first, second) for first, second in even.tolist()]


def _targets(it: IntegerStep, target: str) -> str:
    """The places of bytes and of results, of which one is 0: a compiler sees that it is never written."""
    return f"0, {target}" if it.wide else f"{target}, 0"


def small_affine(writer: FileWriter, it: IntegerStep, number: int, grid: Windows, source: str, target: str) -> str:
    """Output by output, part by part."""
    weight = parts(_signed(it), grid)
    function = "affine_4" if it.bits == 4 else "affine"
    writer.uses(text(f"bytes_{function.replace('affine', 'affine_small')}.c"))
    numbers = _nibbles(weight) if it.bits == 4 else weight.flatten().tolist()
    return f"{function}({_layer(writer, it, number, grid, numbers)}, {source}, {_targets(it, target)});"


def small_window(writer: FileWriter, it: IntegerStep, number: int, grid: Windows, source: str, target: str) -> str:
    """Place by place of the window; channels side by side where they have weights of their own."""
    assert isinstance(it.step, Window)
    writer.uses(text("bytes_window_small.c"))
    numbers = _signed(it).permute(1, 2, 0).flatten().tolist()
    depthwise = int(len(it.step.weight) > 1)
    return f"window({_layer(writer, it, number, grid, numbers)}, {source}, {_targets(it, target)}, {depthwise});"


def pixels_at_once(width: int, most: int) -> int:
    """How many pixels of a line at once waste the fewest: a part of the line, if that is possible."""
    return min(range(1, min(width, most) + 1), key=lambda p: (-(-width // p) * (p + 2), -p))


def _uses_vectors(writer: FileWriter, what: str) -> None:
    """Note the functions on vectors, and what takes their place on other machines."""
    head = "#include <immintrin.h>\n#define ALWAYS static inline __attribute__((always_inline))\n"
    writer.uses(f"\n{VECTORS}\n{head}{text('bytes_vectors.c')}#endif\n")
    writer.uses(f"\n{VECTORS}{text(f'bytes_{what}_vectors.c')}#else{text(f'bytes_{what}_lanes.c')}#endif\n")


def _blocks(it: IntegerStep, grid: Windows, lanes: int) -> list[int]:
    """Weights in blocks of outputs; four bytes of the window are one word of a lane."""
    fours = 8 if it.bits == 4 else 4
    weight = parts(_signed(it), grid)
    weight = functional.pad(weight, (0, -grid.length % fours, 0, 0, 0, 0, 0, -grid.outputs % lanes))
    # [block, output, rows, columns, group, four] -> [block, rows, columns, group, output, four]
    blocks = weight.reshape(-1, lanes, grid.rows, grid.columns, weight.shape[-1] // 4, 4).permute(0, 2, 3, 4, 1, 5)
    if it.bits == 4:  # the lower halves are one group of four, the upper ones the next
        twos = blocks.reshape(-1, 2, lanes * 4).permute(0, 2, 1).reshape(-1, 2)
        return [packed(first, second) for first, second in twos.tolist()]
    return [int(number) for number in blocks.flatten().tolist()]


def cortex_affine(writer: FileWriter, it: IntegerStep, number: int, grid: Windows, source: str, target: str) -> str:
    """Blocks of four outputs; a window is gathered first where its parts would waste more bytes apart than together."""
    joined = replace(grid, rows=1, columns=1, length=grid.rows * grid.columns * grid.length)
    saves = grid.rows * grid.columns * _groups(it, grid.length) > _groups(it, joined.length)
    layer = _layer(writer, it, number, grid, _blocks(it, joined if saves else grid, FOUR))
    window = writer.temporary(f"{it.name} window", (joined.length, 1, 1)) if saves else "0"
    writer.uses(text("bytes_affine_cortex.c"))
    return f"affine_fours({layer}, {source}, {_targets(it, target)}, {it.bits}, {window});"


def _groups(it: IntegerStep, length: int) -> int:
    """The words that so many bytes are computed as."""
    return -(-length // 8) * 2 if it.bits == 4 else -(-length // 4)


def vectors_affine(writer: FileWriter, it: IntegerStep, number: int, grid: Windows, source: str, target: str) -> str:
    """Blocks of sixteen outputs."""
    numbers = _blocks(it, grid, LANES)
    layer = _layer(writer, it, number, grid, numbers, LANES)
    _uses_vectors(writer, "affine")
    if it.wide or grid.height * grid.width == 1:
        each = f"{grid.outputs} * k"
        if grid.height * grid.width == 1:
            return f"affine_row({layer}, {source}, {_targets(it, target)}, {it.bits});"
        at = f"{source} + k / {grid.width} * {grid.down} + k % {grid.width} * {grid.right}"
        return (
            f"for (int k = 0; k < {grid.height * grid.width}; k++)\n"
            f"        affine_row({layer}, {at}, {_targets(it, f'{target} + {each}')}, {it.bits});"
        )
    return f"affine_image({layer}, {source}, {target}, {it.bits}, {pixels_at_once(grid.width, MOST_PIXELS)});"


def vectors_window(writer: FileWriter, it: IntegerStep, number: int, grid: Windows, source: str, target: str) -> str:
    """Sixteen channels in the lanes of a vector."""
    if it.wide:
        return small_window(writer, it, number, grid, source, target)
    assert isinstance(it.step, Window)
    numbers = _signed(it).permute(1, 2, 0).flatten().tolist()
    layer = _layer(writer, it, number, grid, numbers, LANES)
    _uses_vectors(writer, "window")
    return (
        f"window_image({layer}, {source}, {target}, {int(len(it.step.weight) > 1)}, {pixels_at_once(grid.width, 4)});"
    )


SMALL = Kernel("small", "loops that all layers share", small_affine, small_window, ("-Os",))
PLAIN = Kernel("plain", "the same loops, optimised", small_affine, small_window, ("-O3", "-march=native"))
WIDE = Kernel("vectors", "AVX-512 with VNNI", vectors_affine, vectors_window, ("-O3", "-march=native"))
M4 = ("-mcpu=cortex-m4", "-mthumb", "-DNET_BYTES_ONLY")
CORTEX = Kernel("cortex", "two products at once", cortex_affine, small_window, ("-O3", *M4))
CORTEX_SMALL = Kernel("small", "loops that all layers share", small_affine, small_window, ("-Os", *M4))
