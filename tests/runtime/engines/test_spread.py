"""Steps of a simulated world that differ as measured ones do."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import UsageError
from paceline.runtime.engines.virtual import World
from paceline.runtime.engines.virtual.world import ComputeTimes

SPREAD = (0.9, 1.0, 1.0, 1.1, 2.0)


def test_steps_are_drawn_from_the_quantiles() -> None:
    times = ComputeTimes(World(compute=1e-3, spread=SPREAD), range(1))
    drawn = [times.draw(0, 10) / 1e-2 for _ in range(5000)]
    assert {round(each, 6) for each in drawn} == set(SPREAD)
    assert np.mean(drawn) == pytest.approx(np.mean(SPREAD), rel=0.02)


def test_workers_drawn_together_or_alone_take_the_same() -> None:
    world = World(compute=1e-3, spread=SPREAD, seed=4)
    together, alone = ComputeTimes(world, range(3)), ComputeTimes(world, range(3))
    for _ in range(100):
        assert together.draw_all(np.array([7, 7, 7])).tolist() == [alone.draw(worker, 7) for worker in range(3)]


def test_a_negative_quantile_is_refused() -> None:
    with pytest.raises(UsageError, match="spread"):
        World(spread=(1.0, -0.5))
