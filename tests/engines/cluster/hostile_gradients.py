"""Coded gradients as a worker might send them that is broken or hostile. Shared with benchmarks/compression."""

from __future__ import annotations

import random
import struct

EDGES = (-1, 0, 1, 2**30, 2**31 - 1, -(2**31))


def wrong(frame: bytes, chance: random.Random) -> bytes:
    """Return a frame with something wrong in it: its length, some of its bits, or numbers at the edge."""
    kind = chance.randrange(6)
    if kind == 0:
        return frame[: chance.randrange(1, len(frame))]
    if kind == 1:
        return frame + chance.randbytes(chance.randrange(1, 5000))
    if kind == 2:
        return chance.randbytes(len(frame))
    changed = bytearray(frame)
    if kind == 3:
        for _ in range(chance.randrange(1, 20)):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    elif kind == 4:
        for _ in range(chance.randrange(1, 8)):
            place = chance.randrange(len(changed) // 4) * 4
            struct.pack_into("<i", changed, place, chance.choice(EDGES))
    else:
        start = chance.randrange(len(changed))
        changed[start : start + chance.randrange(1, 200)] = b"\xff" * chance.randrange(1, 200)
    return bytes(changed)
