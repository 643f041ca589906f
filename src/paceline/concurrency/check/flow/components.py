"""The shortest circles of a graph, and the few paths that are shown of many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Protocol, TypeVar

LONGEST = 4  # nodes of a circle that is reported


def shortest_circles(following: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """The shortest circle through each node, each set of nodes once."""
    reported: set[frozenset[str]] = set()
    for start in sorted(following):
        path = _back_to(start, following)
        if path is not None and frozenset(path) not in reported:
            reported.add(frozenset(path))
            yield path


def _back_to(start: str, following: Mapping[str, Sequence[str]]) -> list[str] | None:
    """The shortest path from a node back to itself, by breadth-first search no deeper than circles are reported."""
    todo, visited = [[start]], {start}
    for path in todo:
        for name in sorted(following.get(path[-1], ())):
            if name == start and len(path) > 1:
                return path
            if name not in visited and len(path) < LONGEST:
                visited.add(name)
                todo.append([*path, name])
    return None


# Paths that show the same, of which a few are kept: never without the one that the fewest other locks gate.


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
