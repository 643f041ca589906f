"""Numbers in environment variables, and what is said where they are wrong or missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from paceline.errors import UsageError


class Number(NamedTuple):
    """A number with the variable that it was read from."""

    name: str
    value: int


def any_of(environ: Mapping[str, str], *names: str) -> bool:
    """Return whether one of the variables is set; an empty one is not."""
    return any(environ.get(name) for name in names)


def number(environ: Mapping[str, str], name: str) -> Number | None:
    """Return a variable's number, or None if the variable is not set."""
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UsageError(f"{name}={text!r} is not a whole number from 0; set it right, or unset it")
    return Number(name, int(text))


def value(environ: Mapping[str, str], name: str) -> int:
    """Return a variable's number; 0 if it is not set."""
    variable = number(environ, name)
    return variable.value if variable else 0


def pair(environ: Mapping[str, str], rank: str, *counts: str) -> tuple[Number, Number]:
    """Return the rank and the first count that is set; each needs the other."""
    first = number(environ, rank)
    count = next(filter(None, (number(environ, name) for name in counts)), None)
    if first and count:
        return first, count
    present, missing = (rank, counts[0]) if first else (count.name if count else counts[0], rank)
    raise UsageError(f"{present} is set and {missing} is not: a launcher sets both; set {missing}, or unset {present}")
