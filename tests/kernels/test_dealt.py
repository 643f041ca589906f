"""A published study's way with ranks: each computes parts of a layer, which are gathered; the bits are the sequential
program's.
"""

from __future__ import annotations

from typing import Any

import pytest

from paceline.kernels.ir import Index, Loop
from paceline.kernels.measure.networks import CNN
from paceline.kernels.measure.study import study_network
from paceline.kernels.printers.dealt import Parts, parts


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_parts_gathered_after_each_layer_are_the_whole(ranks: int, by_ranks: dict[tuple[object, ...], object]) -> None:
    """To the bit: the rank that makes a place's sum makes all of it."""
    found = [result for key, result in by_ranks.items() if key[:2] == ("study", ranks)]
    assert len(found) == 5
    assert set(found) == {(0.0, 1)}


def test_a_part_is_dealt_out_to_threads(by_ranks: dict[tuple[object, ...], Any]) -> None:
    """Where a compiler may round elsewhere: it makes a function of its own of what threads do."""
    gap, results = by_ranks["study of threads",]
    assert gap < 1e-6
    assert results == 1


def loops(**extents: int) -> tuple[Loop, ...]:
    return tuple(Loop(name, extent) for name, extent in extents.items())


@pytest.mark.parametrize(
    ("place", "all_loops", "dealt", "expected", "unit"),
    [
        ("o 576 y 24 x 1", loops(o=6, y=24, x=24), "oyx", "oy", 24),  # six maps are too few to deal out
        ("o 1", loops(o=10), "o", "o", 1),
        ("o 216 i 1", loops(o=10, i=216), "oi", "o", 216),
        ("c 576 y 96 x 4 a 24 b 1", loops(c=6, y=6, x=6, a=4, b=4), "cyxab", "cy", 96),  # a pooling's way back
        ("o 121 y 11 x 1", loops(o=9, y=9, x=9), "oyx", "o", 121),  # within a rim
        ("o 40 y 11 x 1", loops(o=9, y=4, x=7), "o", "o", 40),
        ("o 35 y 11 x 1", loops(o=9, y=4, x=7), "o", "", 0),  # what one channel touches, the next does, too
        ("", (), "", "", 0),
    ],
)
def test_parts_lie_side_by_side(place: str, all_loops: tuple[Loop, ...], dealt: str, expected: str, unit: int) -> None:
    words = place.split()
    index = Index(tuple((name, int(step)) for name, step in zip(words[::2], words[1::2], strict=True)))
    outer, found = parts(index, tuple(loop for loop in all_loops if loop.name in dealt), all_loops)
    assert ("".join(loop.name for loop in outer), found) == (expected, unit)


def test_what_only_functions_of_each_number_read_is_not_gathered() -> None:
    """What the layers sum, before their sigmoids, and the gradients of their outputs."""
    plan = study_network(CNN, "outputs", 1).compiled(CNN.data(1)[0]).plan
    assert Parts(plan, "outputs").own == {"1", "3", "d_2", "d_4"}
