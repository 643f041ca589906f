"""IDX files, the format of MNIST."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def read_idx(file: Path) -> NDArray[np.uint8] | None:
    """Return the bytes of an IDX file, gzipped or not, as an array; None for a file that is not one."""
    raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    if raw[:3] != b"\0\0\x08" or len(raw) < 4:
        return None
    start = 4 + 4 * raw[3]
    shape = [int.from_bytes(raw[at : at + 4], "big") for at in range(4, start, 4)]
    if len(raw) != start + int(np.prod(shape)):
        return None
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
