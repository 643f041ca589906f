"""IDX files, the format of MNIST."""

from __future__ import annotations

import gzip
import math
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 20


def read_idx(file: Path) -> NDArray[np.uint8] | None:
    """Return the bytes of an IDX file, gzipped or not, as an array; None for a file that is not one."""
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
        head = opened.read(4)
        if head[:3] != b"\0\0\x08" or len(head) < 4:
            return None
        sizes = opened.read(4 * head[3])
        shape = [int.from_bytes(sizes[at : at + 4], "big") for at in range(0, len(sizes), 4)]
        size, raw = math.prod(shape), bytearray()
        if len(sizes) != 4 * head[3] or size > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            return None
        # A packed file of zeros unpacks to a thousand times its size: what the shape does not account for is not read.
        while len(raw) <= size and (block := opened.read(BLOCK)):
            raw += block
    if len(raw) != size:
        return None
    return np.frombuffer(raw, np.uint8).reshape(shape)
