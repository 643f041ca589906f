"""Numbers as C text."""

from __future__ import annotations

from collections.abc import Sequence

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
