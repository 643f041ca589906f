"""Clipping in generated code has the bits of PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.kernels.clipping import norm, ways
from paceline.kernels.exchange import PLACE
from paceline.training.gradients.fused_replica import COUNTS, native_clipping
from paceline.training.gradients.replica import clipped

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPES = [torch.Size(shape) for shape in ((3,), (), (9, 7), (4, 2, 3, 3), (61, 20))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1e-4, 0.02, 1.0, 1e12, float("inf"), float("nan")])
def test_gradients_in_padded_rows(size: float, dtype: torch.dtype) -> None:
    draw, rows = torch.Generator().manual_seed(5), []
    padded = torch.zeros(8192, dtype=dtype)
    views, start = [], 0
    for shape in SHAPES:
        high, wide = (shape[:-1].numel(), shape[-1]) if shape else (1, 1)
        rows.append((0, start, high, wide, wide + 5))
        views.append(padded[start : start + high * (wide + 5)].view(high, wide + 5)[:, :wide])
        start += high * (wide + 5) + 3
    clipping = native_clipping(np.array(rows, PLACE), SHAPES, dtype, 0.7)
    assert clipping is not None
    for _ in range(20):
        for view in views:
            view.copy_(torch.randn(view.shape, dtype=dtype, generator=draw) * size)
        theirs = clipped([v.reshape(shape).clone() for v, shape in zip(views, SHAPES, strict=True)], 0.7)
        clipping.apply(padded)
        for mine, other in zip(views, theirs, strict=True):
            assert other is not None
            assert torch.equal(mine.nan_to_num(0.5), other.view(mine.shape).nan_to_num(0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_one_way_of_adding_squares_is_pytorchs(dtype: torch.dtype) -> None:
    """The others are told from it by the vectors that are compared."""
    draw = torch.Generator().manual_seed(7)
    vectors = [torch.randn(count, dtype=dtype, generator=draw) for count in COUNTS for _ in range(9)]
    alike = [all(norm(way, x) == float(torch.linalg.vector_norm(x)) for x in vectors) for way in range(ways(dtype))]
    assert sum(alike) == 1
