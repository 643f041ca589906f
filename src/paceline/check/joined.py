"""What functions do through everything that they call, joined over the call graph until nothing changes.

Callees come before their callers, so a graph without cycles is joined in one pass, however deep it is; functions that
call each other in a circle take as many passes as the circle needs. The result depends neither on the order of the
functions in the file nor on which of them is asked about first.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterable
from typing import Generic, Protocol, TypeVar

from paceline.check.declared import Function
from paceline.check.marks import Mark


class Way(Protocol):
    @property
    def steps(self) -> tuple[tuple[Function, ast.expr], ...]: ...


W = TypeVar("W", bound=Way)


class Joined(Generic[W]):
    """Function -> {what it does: the shortest way there}.

    `own` lists what a function does itself, `runs` the calls that it makes, and `through` puts such a call before a
    callee's way.
    """

    def __init__(
        self,
        own: Callable[[Function], dict[str, W]],
        runs: Callable[[Function], list[Mark]],
        through: Callable[[Function, Mark, W], W],
    ) -> None:
        self._own, self._runs, self._through = own, runs, through
        self._kept: dict[int, dict[str, W]] = {}

    def of(self, fn: Function) -> dict[str, W]:
        if id(fn) not in self._kept:
            order = reached(fn, lambda at: [m.callee for m in self._runs(at) if m.callee is not None], self._kept)
            self._kept |= {id(at): self._own(at) for at in order}
            while sum(self._join(at) for at in order):
                pass
        return self._kept[id(fn)]

    def _join(self, fn: Function) -> bool:
        mine, changed = self._kept[id(fn)], False
        for mark in self._runs(fn):
            for what, way in self._kept[id(mark.callee)].items():
                if what not in mine or len(mine[what].steps) > len(way.steps) + 1:
                    mine[what] = self._through(fn, mark, way)
                    changed = True
        return changed


def reached(
    fn: Function, following: Callable[[Function], Iterable[Function]], known: Container[int] = ()
) -> list[Function]:
    """A function and all that is reached from it without passing one that is known, what follows first."""
    order: list[Function] = []
    seen: set[int] = set()
    todo = [(fn, False)]
    while todo:
        at, done = todo.pop()
        if done:
            order.append(at)
        elif id(at) not in seen and id(at) not in known:
            seen.add(id(at))
            todo.append((at, True))
            todo += [(each, False) for each in following(at)]
    return order
