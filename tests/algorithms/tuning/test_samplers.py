"""Samplers give every point once, in the unit cube, and always the same by number."""

from __future__ import annotations

from itertools import product

from paceline.algorithms.tuning import Grid, Random, Sobol


def test_a_grid_has_every_combination_once_and_the_last_axis_changes_fastest() -> None:
    axes = [(0.0, 0.5, 1.0), (0.25, 0.75)]
    grid = Grid(axes)
    assert [grid.coordinates(n) for n in range(len(grid))] == list(product(*axes))
    assert grid.coordinates(6) is None


def test_random_points_are_functions_of_seed_and_number() -> None:
    drawn = [Random(3, 7).coordinates(n) for n in range(2000)]
    assert drawn[11] == Random(3, 7).coordinates(11) != Random(3, 8).coordinates(11)
    assert all(0 <= u < 1 for point in drawn for u in point)
    for axis in zip(*drawn, strict=True):  # three standard errors of a uniform mean
        assert abs(sum(axis) / 2000 - 0.5) < 3 * (1 / 12 / 2000) ** 0.5


def test_a_sequence_asks_for_more_points_when_they_run_out() -> None:
    asked = list[int]()

    def points(count: int) -> list[list[float]]:
        asked.append(count)
        return [[n / count] for n in range(count)]

    sobol = Sobol(points)
    assert sobol.coordinates(0) == (0.0,)
    assert sobol.coordinates(100) == (100 / 128,)
    assert asked == [64, 128]
