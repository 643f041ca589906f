"""Native loops and PyTorch's way have the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.algorithms.codecs import Codec
from paceline.algorithms.codecs.catalogue import parse
from paceline.kernels.codecs import native
from paceline.training.gradients.loops import Loops

TEXTS = [
    "half",
    "bfloat16",
    "int8",
    "qsgd:2",
    "qsgd",
    "qsgd:8",
    "ternary",
    "onebit",
    "threshold:1.5",
    "topk:0.1",
    "topk:1",
    "topk",
]
CHANCE = 0x9E3779B97F4A7C15
SHAPES = [(1, 1), (3, 17), (64, 784), (7, 1000), (2, 16), (5, 31)]


def room(codec: Codec, shape: tuple[int, int]) -> list[Tensor]:
    fields = codec.fields(shape)
    return [torch.zeros(f.length, dtype=torch.float32 if f.dtype == "own" else getattr(torch, f.dtype)) for f in fields]


@pytest.mark.skipif(native.native() is None, reason="there is no compiler")
@pytest.mark.parametrize("text", TEXTS)
def test_native_loops_have_the_bits_of_the_codec(text: str) -> None:
    codec = parse(text)
    assert codec is not None
    loops = Loops(codec, torch.float32)
    for shape in SHAPES:
        for gradient in (
            torch.randn(shape),
            torch.zeros(shape),
            (4 * torch.randn(shape)).round() / 4,
            1e30 * torch.randn(shape),
        ):
            (one, first), (two, second) = ((gradient.clone(), room(codec, shape)) for _ in range(2))
            codec.encode(one, first, CHANCE, None)
            loops.encode(two, second, CHANCE, None)
            assert torch.equal(one, two)
            for a, b in zip(first, second, strict=True):
                assert torch.equal(a, b)
            here, there = torch.empty(shape), torch.empty(shape)
            codec.decode(first, here, 1)
            loops.decode(second, there, 1)
            assert torch.equal(here, there)


@pytest.mark.parametrize("owed", [None, torch.full((3, 17), 0.5)])
def test_a_gradient_that_is_not_finite_is_noticed(owed: Tensor | None) -> None:
    codec = parse("int8")
    assert codec is not None
    loops, total = Loops(codec, torch.float32), torch.empty(3, 17)
    gradient = torch.randn(3, 17)
    assert loops.add_owed(owed, gradient, total)
    assert torch.equal(total, gradient if owed is None else gradient + owed)
    assert loops.add_owed(owed, torch.full((3, 17), 3e38), total)  # finite, though its sum is not
    for wrong in (float("nan"), float("inf"), -float("inf")):
        gradient[2, 16] = wrong
        assert not loops.add_owed(owed, gradient, total)
        assert not loops.add_owed(owed, gradient.t().clone().t(), total)
