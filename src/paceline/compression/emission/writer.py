"""The parts of a C file that steps add to: arrays, layers, calls, and the functions that calls need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.compression.network import INPUT, Geometry, Image, Network, Step

# --- Where values lie: one arena, in which a value's place is free again after its last reader ------------------------

SLACK = 8  # numbers that a kernel may read, and multiply by 0, after the end of a value
ALIGNMENT = 16


@dataclass
class Arena:
    """Places in order; `size` is what they need at most."""

    size: int = 0
    #: (offset, end) of what is in use, by name.
    used: dict[str, tuple[int, int]] = field(default_factory=dict)

    def take(self, name: str, count: int) -> int:
        """Return the lowest place where so many numbers fit."""
        length, at = count + SLACK, 0
        for begin, end in sorted(self.used.values()):
            if at + length <= begin:
                break
            at = max(at, -(-end // ALIGNMENT) * ALIGNMENT)
        self.used[name] = (at, at + length)
        self.size = max(self.size, at + length)
        return at

    def free(self, name: str) -> None:
        """Give a place back."""
        self.used.pop(name)


# --- Numbers as C text ------------------------------------------------------------------------------------------------

WIDTH = 118


def array(kind: str, name: str, numbers: Sequence[int] | Sequence[float]) -> str:
    """A constant array."""
    words = [_word(n) for n in numbers]
    lines, line = [], "   "
    for word in words:
        if len(line) + len(word) + 2 > WIDTH:
            lines.append(line)
            line = "   "
        line += f" {word},"
    lines.append(line)
    return f"static const {kind} {name}[{len(words)}] = {{\n" + "\n".join(lines) + "\n};\n"


def _word(number: float) -> str:
    return str(number) if isinstance(number, int) else floating(number)


def floating(number: float) -> str:
    """A float32 constant, exactly."""
    return f"{float.hex(number)}f"


def packed(first: int, second: int) -> int:
    """Two weights of four bits as a signed byte, the first in its lower half."""
    byte = (first & 15) | (second & 15) << 4
    return byte - 256 if byte > 127 else byte


TEXT = Path(__file__).parent / "text"


def text(name: str) -> str:
    """A file of C."""
    return (TEXT / name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Windows:
    """How a layer's window moves over memory, in numbers: what `Layer` of the C text has."""

    height: int
    width: int
    outputs: int
    rows: int
    columns: int
    length: int
    down: int
    right: int
    row: int
    column: int

    def __str__(self) -> str:
        return ", ".join(str(getattr(self, name)) for name in self.__dataclass_fields__)


def padded_shape(image: Image, geometry: Geometry) -> Image:
    """The shape of an image within its margin."""
    (top, left), (channels, height, width) = geometry.padding, image
    return channels, height + 2 * top, width + 2 * left


def windows(image: Image, geometry: Geometry, result: Image, joined: bool = True) -> Windows:
    """The windows over a padded image; with `joined`, bytes that lie together in memory are one part of the window."""
    channels, _, width = image
    (rows, columns), (dy, dx), (sy, sx) = geometry.kernel, geometry.dilation, geometry.stride
    line = width * channels
    outputs, high, wide = result
    down, right, row, column = sy * line, sx * channels, dy * line, dx * channels
    if not joined:
        return Windows(high, wide, outputs, rows, columns, 1, down, right, row, column)
    if dx > 1 and columns > 1:
        return Windows(high, wide, outputs, rows, columns, channels, down, right, row, column)
    length = columns * channels
    if rows > 1 and dy == 1 and columns == width:
        return Windows(high, wide, outputs, 1, 1, rows * length, down, right, 0, 0)
    return Windows(high, wide, outputs, rows, 1, length, down, right, row, 0)


@dataclass
class FileWriter:
    """A file under way."""

    network: Network
    arrays: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    #: The texts of the functions that are called, in the order of their definition.
    functions: list[str] = field(default_factory=list)
    arena: Arena = field(default_factory=Arena)
    #: The numbers of activations' tables, by the name of their array.
    tables: dict[str, tuple[int, ...]] = field(default_factory=dict)
    #: Where each value lies.
    places: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place(INPUT)

    def place(self, name: str) -> str:
        """Take a place for a value."""
        channels, height, width = self.network.shape(name)
        self.places[name] = self._at(self.arena.take(name, channels * height * width))
        return self.places[name]

    def temporary(self, name: str, image: Image) -> str:
        """Take a place for the time of one step."""
        channels, height, width = image
        return self._at(self.arena.take(f"{name} padded", channels * height * width))

    def done(self, step: Step) -> None:
        """Free the places that no later step reads."""
        for name in [name for name in self.arena.used if name.endswith(" padded")]:
            self.arena.free(name)
        later = self.network.steps[self.network.steps.index(step) + 1 :]
        needed = {source for after in later for source in after.sources} | {self.network.last.name}
        for name in [name for name in self.arena.used if name not in needed]:
            self.arena.free(name)

    @staticmethod
    def _at(offset: int) -> str:
        return f"arena + {offset}"

    def array(self, kind: str, name: str, numbers: Sequence[int] | Sequence[float]) -> str:
        """Add a constant array and return its name."""
        self.arrays.append(array(kind, name, numbers))
        return name

    def layer(self, name: str, grid: Windows, *rest: object) -> str:
        """Add a layer and return its name."""
        self.arrays.append(f"static const Layer {name} = {{{grid}, {', '.join(map(str, rest))}}};\n")
        return name

    def uses(self, functions: str) -> None:
        """Note the text of functions that are called."""
        if functions not in self.functions:
            self.functions.append(functions)
