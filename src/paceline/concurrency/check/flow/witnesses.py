"""Paths that show the same, of which a few are kept: never without the one that the fewest other locks gate."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Protocol, TypeVar


class Gated(Protocol):
    """A path, and the locks that are held all along it."""

    @property
    def gates(self) -> frozenset[str]: ...


G = TypeVar("G", bound=Gated)


def keep(ways: list[G], way: G, most: int) -> None:
    """Add a path to the first few; past these only one that no kept path makes superfluous.

    So the files that are read first cannot take away what a later one shows.
    """
    if len(ways) < most or not any(other.gates <= way.gates for other in ways):
        ways.append(way)


def together(ways: Sequence[Sequence[G]]) -> list[G] | None:
    """One path of each such that no lock is held on all of them, the least gated first; None where there is none."""
    distinct = [list({way.gates: way for way in reversed(each)}.values())[::-1] for each in ways]
    choices = product(*(sorted(each, key=lambda way: len(way.gates)) for each in distinct))
    return next((list(c) for c in choices if not frozenset.intersection(*(way.gates for way in c))), None)
