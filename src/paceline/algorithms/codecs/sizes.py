"""How large coded gradients are, where no model is known: its parameters are taken for one square matrix."""

from __future__ import annotations

from math import ceil, isqrt

from paceline.algorithms.codecs import OWN, Codec
from paceline.algorithms.collectives import Collective
from paceline.algorithms.collectives.gather import Gather

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
