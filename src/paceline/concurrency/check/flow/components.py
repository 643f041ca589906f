"""Strongly connected components of a graph, the circles in them, and the few paths that are shown of many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Protocol, TypeVar

LONGEST = 4  # nodes of a circle that is reported


def strongly_connected(following: Mapping[str, Sequence[str]]) -> list[set[str]]:
    """Tarjan's strongly connected components of more than one node; iterative, since the graph may be deep."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    components: list[set[str]] = []
    for root in following:
        todo: list[tuple[str, int]] = [(root, 0)] if root not in index else []
        while todo:
            node, turn = todo.pop()
            if turn == 0:
                if node in index:
                    continue
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            after = following.get(node, ())
            if turn < len(after):
                todo.append((node, turn + 1))
                if after[turn] not in index:
                    todo.append((after[turn], 0))
                continue
            for name in after:
                if name in on_stack:
                    low[node] = min(low[node], low[name])
            if low[node] == index[node]:
                group: set[str] = set()
                while not group or name != node:
                    name = stack.pop()
                    on_stack.discard(name)
                    group.add(name)
                if len(group) > 1:
                    components.append(group)
    return components


def shortest_circles(following: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """The shortest circle through each node of a component, each set of nodes once."""
    reported: set[frozenset[str]] = set()
    for group in strongly_connected(following):
        for start in sorted(group):
            path = _back_to(start, following, group)
            if path is not None and frozenset(path) not in reported:
                reported.add(frozenset(path))
                yield path


def _back_to(start: str, following: Mapping[str, Sequence[str]], group: set[str]) -> list[str] | None:
    """The shortest path from a node back to itself, by breadth-first search."""
    todo, visited = [[start]], {start}
    while todo:
        path = todo.pop(0)
        for name in sorted(following.get(path[-1], ())):
            if name == start and len(path) > 1:
                return path
            if name in group and name not in visited and len(path) < LONGEST:
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
