"""Two locks that are taken in both orders.

One path takes A and then, still holding it, B; another takes B and then A. If two threads run them at once, each holds
the lock that the other waits for. It makes no difference that the locks are re-entrant, nor that the second one is
taken deep inside a call. A path that gives up (with a timeout, or without waiting) breaks the cycle, and so does a
third lock that both paths hold throughout.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from paceline.check.catalogue import LOCKS
from paceline.check.declarations import Function, Resource
from paceline.check.effects import runs_now, text_of
from paceline.check.findings import Finding, Step
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts, call_steps
from paceline.narrative import Wait

WITNESSES = 6  # paths kept per pair of locks
LONGEST = 4  # locks in a cycle


class Edge(NamedTuple):
    """A path that holds one lock and waits for another."""

    first: Resource
    second: Resource
    fn: Function
    taken: int  # the line where the first was taken
    steps: tuple[tuple[Function, ast.expr], ...]
    gates: frozenset[str]  # what else is held


def find(facts: Facts) -> Iterator[Finding]:
    """Report cycles in the graph of locks that are taken while another is held."""
    edges = _edges(facts)
    for circle in _circles(edges):
        chosen = _together([edges[pair] for pair in circle])
        if chosen is not None:
            yield _report(chosen, edges)


def _edges(facts: Facts) -> dict[tuple[str, str], list[Edge]]:
    """(held lock, taken lock) -> the paths on which that happens."""
    edges: dict[tuple[str, str], list[Edge]] = {}
    for fn in facts.module.functions:
        if fn.name in ("__init__", "__new__"):
            continue  # no other thread has the object yet
        for effect, held in facts.events(fn):
            if not held:
                continue
            reached: list[tuple[Resource, tuple[tuple[Function, ast.expr], ...]]] = []
            if effect.kind == "take" and effect.resource is not None:
                reached = [(effect.resource, ((fn, effect.node),))]
            elif effect.callee is not None and runs_now(effect):
                reached = [(t.resource, ((fn, effect.node), *t.steps)) for t in facts.takes(effect.callee).values()]
            for resource, steps in reached:
                for first in held:
                    if first.resource.id != resource.id and _counts(first.resource) and _counts(resource):
                        gates = frozenset(h.resource.id for h in held) - {first.resource.id} | facts.guards(fn)
                        ways = edges.setdefault((first.resource.id, resource.id), [])
                        if len(ways) < WITNESSES:
                            ways.append(Edge(first.resource, resource, fn, first.line, steps, gates))
    return edges


def _counts(resource: Resource) -> bool:
    """Whether a resource can be part of a cycle: semaphores and locks of containers cannot be distinguished."""
    return resource.kind in LOCKS and "Semaphore" not in resource.kind and not resource.one_of_several


def _circles(edges: dict[tuple[str, str], list[Edge]]) -> Iterator[list[tuple[str, str]]]:
    """The shortest cycle through each lock of a strongly connected component; each set of locks once."""
    following: dict[str, list[str]] = {}
    for first, second in edges:
        following.setdefault(first, []).append(second)
    reported: set[frozenset[str]] = set()
    for group in strongly_connected(following):
        for start in sorted(group):
            path = _back_to(start, following, group)
            if path is None or frozenset(path) in reported:
                continue
            reported.add(frozenset(path))
            yield list(pairwise([*path, start]))


def _back_to(start: str, following: dict[str, list[str]], group: set[str]) -> list[str] | None:
    """The shortest path from a lock back to itself, by breadth-first search."""
    todo, seen = [[start]], {start}
    while todo:
        path = todo.pop(0)
        for name in sorted(following.get(path[-1], ())):
            if name == start and len(path) > 1:
                return path
            if name in group and name not in seen and len(path) < LONGEST:
                seen.add(name)
                todo.append([*path, name])
    return None


def strongly_connected(following: dict[str, list[str]]) -> list[set[str]]:
    """Tarjan's strongly connected components of more than one node; iterative, since the graph may be deep."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []
    for root in following:
        todo: list[tuple[str, int]] = [(root, 0)] if root not in index else []
        while todo:
            node, turn = todo.pop()
            if turn == 0:
                index[node] = low[node] = len(index)
                stack.append(node)
            after = following.get(node, [])
            if turn < len(after):
                todo.append((node, turn + 1))
                if after[turn] not in index:
                    todo.append((after[turn], 0))
                continue
            for name in after:
                if name in stack:
                    low[node] = min(low[node], low[name])
            if low[node] == index[node]:
                group = set(stack[stack.index(node) :])
                del stack[stack.index(node) :]
                if len(group) > 1:
                    found.append(group)
    return found


def _together(ways: list[list[Edge]]) -> list[Edge] | None:
    """One path per edge such that no lock is held on all of them; None where there is no such choice."""
    chosen = [way[0] for way in ways]
    if not frozenset.intersection(*(edge.gates for edge in chosen)):
        return chosen
    for index, way in enumerate(ways):
        for edge in way:
            tried = [*chosen[:index], edge, *chosen[index + 1 :]]
            if not frozenset.intersection(*(e.gates for e in tried)):
                return tried
    return None


def _report(circle: list[Edge], edges: dict[tuple[str, str], list[Edge]]) -> Finding:
    """The finding; its story begins with the rarer order, which is the likelier mistake."""
    rarest = min(range(len(circle)), key=lambda i: (len(edges[circle[i].first.id, circle[i].second.id]), i))
    circle = circle[rarest:] + circle[:rarest]
    story, waits = [], []
    for number, edge in enumerate(circle):
        who, whom = f"thread {_letter(number)}", f"thread {_letter((number + 1) % len(circle))}"
        story.append(Step(who, edge.taken, f"{edge.fn.qualname} takes {edge.first.id}"))
        story += call_steps(who, edge.steps, f"waits for {edge.second.id}, which {whom} holds")
        waits.append(Wait(who, f"took {edge.first.id} at line {edge.taken}", f"release {edge.second.id}", whom))
    at = circle[0]
    node = at.steps[0][1]
    names = " -> ".join([*(edge.first.id for edge in circle), circle[0].first.id])
    others = ", ".join(f"line {edge.steps[0][1].lineno}" for edge in circle[1:])
    sure = all(edge.first.sure and edge.second.sure for edge in circle)
    return finding(
        node,
        at.fn,
        f"locks are taken in both orders ({names}): here {_how(at)} with {at.first.id} held, the other way at {others}",
        story,
        f"take {at.first.id} and {at.second.id} in one order everywhere, or release the first before the second",
        " ".join(sorted({edge.first.id for edge in circle})),
        0.9 if sure and len(circle) == 2 else 0.6,
        waits,
    )


def _how(edge: Edge) -> str:
    return f"{edge.second.id} is taken" + ("" if len(edge.steps) == 1 else f" by {text_of(edge.steps[0][1])}")


def _letter(number: int) -> str:
    return "ABCDEFGH"[number]


RULE = Rule(
    "PC101",
    "lock-order",
    "two locks taken in both orders",
    find,
    bad="""
        import threading

        class Account:
            def __init__(self):
                self._books = threading.Lock()
                self._cash = threading.RLock()

            def pay(self):
                with self._books:
                    with self._cash:
                        self.paid = True

            def audit(self):
                with self._cash:
                    self._count()

            def _count(self):
                with self._books:
                    return self.paid
    """,
    good="""
        import threading

        class Account:
            def __init__(self):
                self._books = threading.Lock()
                self._cash = threading.RLock()

            def pay(self):
                with self._books:
                    with self._cash:
                        self.paid = True

            def audit(self):
                with self._books, self._cash:
                    return self.paid
    """,
)
