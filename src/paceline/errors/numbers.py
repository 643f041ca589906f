"""Numbers that a user gives as arguments: Python's or NumPy's, of at least so much."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, TypeGuard

from paceline.errors.base import PacelineError, UsageError


def plain(value: Any) -> Any:
    """Return a number of NumPy as Python's, and anything else as it is: JSON and formats of text take no others."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def whole(name: str, value: Any, least: int, error: type[PacelineError] = UsageError) -> Any:
    """Return an argument as Python's whole number; raise if it is none, or below `least`. None stays None."""
    number = plain(value)
    if number is None or is_whole(number, least):
        return number
    raise error(f"{name}={value!r} is not a whole number of at least {least}")


def is_whole(value: object, least: int) -> TypeGuard[int]:
    """Whether a value is a whole number of at least this; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_positive(value: object) -> TypeGuard[float]:
    """Whether a value is a number above 0, and not NaN or a boolean."""
    return isinstance(value, Real) and not isinstance(value, bool) and float(value) > 0
