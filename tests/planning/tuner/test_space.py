"""A space gives values in range, and refuses what cannot be meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.algorithms.tuning import Grid
from paceline.errors import TuningError
from paceline.planning.tuner.space import Choice, Float, Int, Space, read_space
from paceline.planning.tuner.study import Drawn

UNIT = st.floats(0, 1)


@given(st.floats(1e-6, 1e6), st.floats(0, 1e6), UNIT, st.booleans())
def test_floats_are_in_range(low: float, width: float, coordinate: float, log: bool) -> None:
    parameter = Float(low, low + width, log)
    assert low <= parameter.value(coordinate) <= low + width


@given(st.integers(1, 100), st.integers(0, 100), st.integers(1, 7), UNIT, st.booleans())
def test_ints_are_in_range_and_on_their_steps(low: int, width: int, step: int, coordinate: float, log: bool) -> None:
    value = Int(low, low + width, log, 1 if log else step).value(coordinate)
    assert low <= value <= low + width
    assert log or (value - low) % step == 0


def values(space: Space) -> list[Any]:
    drawn = Drawn(Grid(space.grid()), space, distinct=True)
    return [drawn.configuration(n) for n in range(len(drawn))]


def test_a_grid_has_both_ends_of_a_range_and_every_choice() -> None:
    found = values(Space({"lr": Float(0.01, 1, log=True, count=3), "n": Int(1, 3), "opt": ["a", "b"]}))
    assert len(found) == 18
    assert {c["lr"] for c in found} == {0.01, 0.1, 1.0}
    assert {c["n"] for c in found} == {1, 2, 3}


def test_a_conditional_parameter_exists_only_under_its_condition_and_a_grid_does_not_repeat() -> None:
    space = Space({"opt": ["sgd", "adam"], "momentum": Choice([0.0, 0.5, 0.9], when={"opt": "sgd"})})
    found = values(space)
    assert len(found) == 4
    assert {"opt": "adam"} in found


def test_constraints_leave_configurations_out() -> None:
    space = Space({"a": Int(1, 4), "b": Int(1, 4)}, [lambda c: c["a"] < c["b"]])
    assert len(values(space)) == 6


def test_files(tmp_path: Path) -> None:
    for name, text in {
        "s.json": '{"lr": {"low": 0.1, "high": 1}, "n": {"low": 1, "high": 3}, "c": {"choices": [1, "x"]}}',
        "s.py": "from paceline import Choice, Float, Int\nspace = {'lr': Float(0.1, 1), 'n': Int(1, 3), 'c': [1, 'x']}",
    }.items():
        (tmp_path / name).write_text(text)
        space = read_space(tmp_path / name)
        assert space.parameters == {"lr": Float(0.1, 1), "n": Int(1, 3), "c": Choice([1, "x"])}


def test_what_a_space_says_of_itself_is_read_as_the_same_space() -> None:
    space = Space({"x": Float(0, 1), "n": Int(1, 5), "c": Choice([1, "a", None]), "y": Float(1, 2, when={"c": "a"})})
    assert Space(space.describe()).parameters == space.parameters


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"lr": {"low": 1, "high": 0}}, "low=1 and high=0; give a low that is not above high"),
        ({"lr": {"low": 0, "high": 1.0, "log": True}}, "logarithmic"),
        ({"lr": {"lwo": 0, "high": 1}}, "did you mean 'low'"),
        ({"lr": {"low": "a", "high": 1}}, "two numbers"),
        ({"lr": 0.1}, "lr is 0.1; give a list of values, or a range"),
        ({"lr": []}, "not a list of values"),
        ({"o": [object]}, "give a number, a text"),
        ({"m": {"choices": [1], "when": {"o": 1}}}, "does not come before it"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(TuningError, match=says):
        Space(given)


def test_impossible_constraints_are_named() -> None:
    from paceline.planning.tuner.searches import Search

    proposals, *_ = Search.parse("random").open(Space({"x": Float(0, 1)}, [lambda c: c["x"] > 2]), 1, 1, 0, True)
    with pytest.raises(TuningError, match="loosen"):
        proposals.configuration(0)
