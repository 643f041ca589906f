"""Which parts of a merged tree run in one program: several programs of a folder may share the files that they import.

`train_alone.py` and `train_on_all.py` beside each other import the same data set. Where one starts a process group or
wraps its model, the other does not. Two places of different files are of one program if a function calls both, or
passes them to what it calls; the top level of each file counts by itself.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.together.places import file_number, same_file

Node = tuple[int, int]  # a function; of the top level of the tree, the file as well


class Meeting:
    """The functions of a tree by what calls them."""

    def __init__(
        self, functions: list[Function], top: Function, function_named: Callable[[ast.expr, Function], Function | None]
    ) -> None:
        self._functions, self._top, self._named = functions, top, function_named
        self._callers: dict[Node, set[Node]] | None = None
        self._above: dict[Node, set[Node]] = {}

    def of_one_program(self, places: Iterable[tuple[Function, int]], fn: Function, line: int) -> bool:
        """Whether one of these places, each a function and a line in it, is of a program of another place."""
        all_places = list(places)
        if any(same_file(other, line) for _, other in all_places):
            return True
        above = self._all_above(self._node(fn, line)) if all_places else set()
        return any(not above.isdisjoint(self._all_above(self._node(*place))) for place in all_places)

    def _node(self, fn: Function, line: int) -> Node:
        return id(fn), file_number(line) if fn is self._top else 0

    def _all_above(self, node: Node) -> set[Node]:
        """A function and all that lead to it."""
        if node not in self._above:
            if self._callers is None:
                self._callers = self._read()
            visited, todo = {node}, [node]
            while todo:
                new = self._callers.get(todo.pop(), set()) - visited
                visited |= new
                todo += new
            self._above[node] = visited
        return self._above[node]

    def _read(self) -> dict[Node, set[Node]]:
        """Function -> those that call it, pass it on, make an object of its class, or contain it."""
        callers: dict[Node, set[Node]] = {}
        for fn in self._functions:
            constructor = fn.cls.method("__init__") if fn.cls is not None else None
            for around in (fn.outer, constructor):  # a method runs where an object is made
                if around is not None and around is not fn and around is not self._top:
                    callers.setdefault(self._node(fn, 0), set()).add(self._node(around, 0))
            for call in fn.calls:
                site = self._node(fn, call.lineno)
                for part in (call.func, *call.args, *(k.value for k in call.keywords)):
                    callee = self._named(part, fn) if isinstance(part, ast.Name | ast.Attribute | ast.Lambda) else None
                    if callee is not None:
                        callers.setdefault(self._node(callee, 0), set()).add(site)
        return callers
