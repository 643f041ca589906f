"""How many elements a list has that a program fills: as many as it comes by the place where one is added.

The length of `self.losses` is the same on every rank if each adds one loss per step, though the losses differ. It
differs where an element is added under a test, or in a loop, that turns out differently.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.names import dotted
from paceline.concurrency.check.syntax.tree import enclosing, parent
from paceline.concurrency.check.varying.reasons import asks_for_ranks, decides

ADDS = ("append", "add", "appendleft", "extend", "put", "push")
DEPTH = 3  # calls through which the place is followed to its callers
Sites = dict[int, list[tuple[ast.Call, Function]]]


class Counts:
    """The lengths of the lists that one file fills."""

    def __init__(
        self,
        why: Callable[[ast.expr, Function], str],
        type_of: Callable[[ast.expr, Function], Class | None],
        sites: Callable[[], Sites],
    ) -> None:
        self._why, self._type_of, self._sites = why, type_of, sites

    def why(self, node: ast.expr, fn: Function) -> str | None:
        """Why the length of a list differs from rank to rank; None where nothing in the file adds to it."""
        owner = self._type_of(node.value, fn) if isinstance(node, ast.Attribute) else None
        places: list[tuple[ast.Call, Function]] = []
        if isinstance(node, ast.Name):
            scopes = [scope for scope in fn.scopes() if node.id in scope.bound][:1]
            places = [(c, s) for s in scopes for c in s.calls if dotted(c.func) in _methods(node.id)]
        elif isinstance(node, ast.Attribute) and owner is not None:
            methods = [m for cls in owner.ancestry for m in cls.methods.values()]
            places = [
                (c, m) for m in methods for c in m.calls if dotted(c.func) in _methods(f"{m.self_name}.{node.attr}")
            ]
        if not places:
            return None
        return next((w for call, scope in places if (w := self._how_often(call, scope, 0))), "")

    def _how_often(self, at: ast.AST, fn: Function, depth: int) -> str:
        """Why a place of the program is reached more often on one rank than on another."""
        around = enclosing(at, ast.If, ast.While)
        while isinstance(around, ast.If | ast.While):
            if (why := self._decides(around.test, fn)) and not asks_for_ranks(around.test):
                return why
            around = enclosing(around, ast.If, ast.While)
        loop = enclosing(at, ast.For, ast.AsyncFor, ast.While)
        for test in fn.tests:
            leaves = isinstance(test.body[-1], ast.Continue | ast.Return) and test.lineno < getattr(at, "lineno", 0)
            beside = enclosing(test, ast.For, ast.AsyncFor, ast.While) is loop and parent(test) is not at
            if leaves and beside and isinstance(test, ast.If) and (why := self._decides(test.test, fn)):
                return why
        sites = self._sites().get(id(fn), ()) if depth < DEPTH else ()
        return next((w for call, caller in sites if (w := self._how_often(call, caller, depth + 1))), "")

    def _decides(self, test: ast.expr, fn: Function) -> str:
        why = self._why(test, fn)
        inner = test.operand if isinstance(test, ast.UnaryOp) else test
        return why if why and (isinstance(inner, ast.Name) or decides(test, why)) else ""


def _methods(name: str) -> tuple[str, ...]:
    return tuple(f"{name}.{method}" for method in ADDS)
