"""The codecs by the names that plans use: `ring:codec=int8`, `downpour:codec=topk:0.01`.

After a colon stands the one number that a codec may be given. A codec of your own is a class with the methods of
`Codec`, a file, and a row here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, isqrt

from paceline.algorithms.codecs import OWN, Codec
from paceline.algorithms.codecs.narrow import Bfloat16, Half, Int8
from paceline.algorithms.codecs.power_sgd import PowerSgd
from paceline.algorithms.codecs.quantized import OneBit, Qsgd, Ternary
from paceline.algorithms.codecs.sparse import RandomK, Threshold, TopK
from paceline.algorithms.collectives import Collective
from paceline.algorithms.collectives.whole_vectors import Gather
from paceline.errors import PlanError, suggest

DENSE = "dense"


@dataclass(frozen=True)
class Row:
    """A codec by name."""

    about: str
    make: Callable[..., Codec]
    #: The name of its number, what it is if it is not given, and what it may be; no name where it has none.
    option: str = ""
    default: float = 0
    least: float = 0
    most: float = math.inf
    only: tuple[int, ...] = ()


CODECS: dict[str, Row] = {
    "half": Row("16 bits a number: IEEE half precision", Half),
    "bfloat16": Row("16 bits a number: the range of a float, 8 bits of precision", Bfloat16),
    "int8": Row("8 bits a number, and an exponent for each row", Int8),
    "qsgd": Row("a few bits a number, rounded at random", Qsgd, "bits", 4, only=(2, 4, 8)),
    "ternary": Row("2 bits a number: -1, 0 or 1, at random", Ternary),
    "onebit": Row("a sign a number, and two means for each row", OneBit),
    "threshold": Row("numbers beyond a threshold, as plus or minus it", Threshold, "threshold", 0.001, 1e-30),
    "topk": Row("the largest numbers and their places", TopK, "density", 0.01, 1e-9, 1.0),
    "randomk": Row("numbers at random places, the same for all workers", RandomK, "density", 0.05, 1e-9, 1.0),
    "powersgd": Row("a product of two thin matrices", PowerSgd, "rank", 2, 1),
}


def parse(text: str) -> Codec | None:
    """Return the codec that a plan names; None for `dense`. Raise `PlanError` for a codec that there is not."""
    name, colon, number = text.partition(":")
    if text == DENSE:
        return None
    row = CODECS.get(name)
    if row is None:
        raise PlanError(f"there is no codec {name!r}; {suggest(name, (DENSE, *CODECS))}")
    if not colon:
        return row.make()
    if not row.option:
        raise PlanError(f"codec {name} has no number of its own; write codec={name}")
    return row.make(_number(name, row, number))


def _number(name: str, row: Row, text: str) -> float:
    """Read the number of a codec."""
    is_integer, shown = isinstance(row.default, int), f"as in codec={name}:{row.default:g}"
    try:
        number = int(text) if is_integer else float(text)
    except ValueError:
        what = "whole number" if is_integer else "number"
        raise PlanError(f"codec {name}: {row.option} {text!r} is not a {what}, {shown}") from None
    if row.only and number not in row.only:
        raise PlanError(f"codec {name}: {row.option} {number} is not one of {', '.join(map(str, row.only))}")
    if not (row.only or row.least <= number <= row.most) or not math.isfinite(number):
        to = f"from {row.least:g} to {row.most:g}" if row.most < math.inf else f"at least {row.least:g}"
        raise PlanError(f"codec {name}: {row.option} {number:g} has to be {to}, {shown}")
    return number


# How large coded gradients are, where no model is known: its parameters are taken for one square matrix.

BYTES = {"float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "int32": 4}
SENT = 0.01  # of the numbers, by codecs whose messages vary: what they are used for


def estimate(codec: Codec | None, dense: float, itemsize: int = 4) -> float:
    """Return about how many bytes a gradient takes that has `dense` bytes in memory."""
    if codec is None:
        return dense
    side = max(1, isqrt(round(dense / itemsize)))
    total = 0.0
    for number, field in enumerate(fields := codec.fields((side, side))):
        varies = codec.variable and number == len(fields) - 1
        total += field.length * (itemsize if field.dtype == OWN else BYTES[field.dtype]) * (SENT if varies else 1.0)
    return total * dense / (side * side * itemsize)


def exchanged(codec: Codec | None, collective: Collective, workers: int, size: float) -> tuple[Collective, float]:
    """Return what exchanges messages of `size` bytes in truth, and the bytes of the vector that it works on."""
    if codec is None or codec.adds:
        return collective, size
    return Gather(), workers * size


def most_gathered(message: float, dense: float) -> int:
    """Return up to how many workers gathered messages are fewer bytes than a ring sends of a dense gradient.

    Each of P workers sends P - 1 messages, or 2 (P - 1) / P of the gradient; for top-k this is a density below 1 / P.
    """
    return max(1, ceil(2 * dense / message) - 1)
