"""The job's `gradient_clip_norm` in generated code, where that has the bits of `gradients.replica.clipped`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch

from paceline.kernels.clipping import Clipping, norm, ways
from paceline.kernels.exchange import PLACE
from paceline.training.gradients.replica import clipped

#: Of vectors whose norms are compared: any number that a vector of the processor may leave over, and many numbers.
COUNTS = (*range(1, 50), 1003, 20_011)
DRAWS = 6


def native_clipping(
    places: np.ndarray, shapes: Sequence[torch.Size], dtype: torch.dtype, limit: float
) -> Clipping | None:
    """Return what clips gradients of these shapes at these places; None where PyTorch's bits are not found."""
    counts = {*map(prod, shapes), *COUNTS}
    way = next((way for way in range(ways(dtype)) if _adds_alike(way, dtype, sorted(counts))), None)
    if way is None or not _clips_alike(shapes, dtype, limit, way):
        return None
    return Clipping.of(places, dtype, limit, way)


def _adds_alike(way: int, dtype: torch.dtype, counts: Sequence[int]) -> bool:
    """Whether this is the way in which PyTorch sums squares."""
    draw = torch.Generator().manual_seed(1)
    vectors = (torch.randn(count, dtype=dtype, generator=draw) for count in counts for _ in range(DRAWS))
    return all(norm(way, x) == float(torch.linalg.vector_norm(x)) for x in vectors)


@torch.no_grad()
def _clips_alike(shapes: Sequence[torch.Size], dtype: torch.dtype, limit: float, way: int) -> bool:
    """Whether gradients of these shapes have PyTorch's bits: large ones, which are clipped, and small ones."""
    counts = list(map(prod, shapes))
    starts = np.cumsum([0, *counts[:-1]]).tolist()
    rows = [(0, start, 1, count, count) for start, count in zip(starts, counts, strict=True)]
    clipping = Clipping.of(np.array(rows, PLACE), dtype, limit, way)
    draw = torch.Generator().manual_seed(1)
    for size in (limit, 1e-9 * limit):
        flat = torch.randn(sum(counts), dtype=dtype, generator=draw) * size
        theirs = clipped([part.view(shape) for part, shape in zip(flat.split(counts), shapes, strict=True)], limit)
        clipping.apply(flat)
        if not torch.equal(flat, torch.cat([g.flatten() for g in theirs if g is not None])):
            return False
    return True
