"""Propagates what functions do to their callers, over the whole call graph, until nothing changes.

Callees come before their callers, so an acyclic call graph is done in one pass, however deep it is; functions that call
each other recursively take as many passes as their cycle needs. The result depends neither on the order of the
functions in the file nor on which of them is asked for first.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterable
from typing import Generic, Protocol, TypeVar

from paceline.concurrency.check.flow.effects import Effect
from paceline.concurrency.check.syntax.declarations import Function


class Path(Protocol):
    """Something that a function does, and the calls that lead there."""

    @property
    def steps(self) -> tuple[tuple[Function, ast.expr], ...]: ...


P = TypeVar("P", bound=Path)


class Propagated(Generic[P]):
    """Function -> {what it does: the shortest path to it}.

    `own` gives what a function does itself, `runs` the calls that it makes, and `through` prepends such a call to a
    path of its callee.
    """

    def __init__(
        self,
        own: Callable[[Function], dict[str, P]],
        runs: Callable[[Function], list[Effect]],
        through: Callable[[Function, Effect, P], P],
    ) -> None:
        self._own, self._runs, self._through = own, runs, through
        #: What is known, by the id of the function; complete for every function in it.
        self._known: dict[int, dict[str, P]] = {}

    def of(self, fn: Function) -> dict[str, P]:
        """What a function does, itself or through its callees."""
        if id(fn) not in self._known:
            order = reached(fn, lambda at: [m.callee for m in self._runs(at) if m.callee is not None], self._known)
            self._known |= {id(at): self._own(at) for at in order}
            while sum(self._join(at) for at in order):
                pass
        return self._known[id(fn)]

    def _join(self, fn: Function) -> bool:
        """Add what the callees do; whether that changed anything."""
        mine, changed = self._known[id(fn)], False
        for effect in self._runs(fn):
            for what, path in self._known[id(effect.callee)].items():
                if what not in mine or len(mine[what].steps) > len(path.steps) + 1:
                    mine[what] = self._through(fn, effect, path)
                    changed = True
        return changed


def reached(
    fn: Function, following: Callable[[Function], Iterable[Function]], boundary: Container[int] = ()
) -> list[Function]:
    """The function and all that it reaches without passing through a known one, in post-order."""
    order: list[Function] = []
    visited: set[int] = set()
    todo = [(fn, False)]
    while todo:
        at, done = todo.pop()
        if done:
            order.append(at)
        elif id(at) not in visited and id(at) not in boundary:
            visited.add(id(at))
            todo.append((at, True))
            todo += [(each, False) for each in following(at)]
    return order
