"""What is in a container: the values that a list, dictionary or queue of a file is filled with.

`forks = [Lock() for _ in range(5)]`, `self.forks.append(Lock())`, `locks[name] = Lock()` and `defaultdict(Lock)` all
make a container of locks. Its elements share one identity (`forks[]`); two of them are distinguished by their index.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from paceline.check.syntax.declarations import Class, Declarations, Function
from paceline.check.syntax.names import short_name
from paceline.check.values.passing import Passing

_FILLS = {"append": 0, "add": 0, "appendleft": 0, "setdefault": 1, "insert": 1}
_SAME_ELEMENTS = {"list", "tuple", "set", "sorted", "reversed", "deque", "iter", "copy"}
DEPTH = 4  # names through which a container is followed


class Container(NamedTuple):
    """A container by its identity, and what it is filled with."""

    id: str
    elements: tuple[tuple[ast.expr, Function], ...]


class Containers:
    """The containers of one file."""

    def __init__(
        self, module: Declarations, passing: Passing, type_of: Callable[[ast.expr, Function], Class | None]
    ) -> None:
        self.module, self.passing, self._type_of = module, passing, type_of

    def of(self, node: ast.expr, fn: Function, depth: int = 0) -> Container | None:
        """The container that an expression names; None when it is not known to be one."""
        if depth > DEPTH:
            return None
        if isinstance(node, ast.Name):
            return self._of_name(node.id, fn, depth)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node, fn, depth)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("values", "copy"):
                return self.of(node.func.value, fn, depth + 1)
            if isinstance(node.func, ast.Name) and node.func.id in _SAME_ELEMENTS and node.args:
                return self.of(node.args[0], fn, depth + 1)
        if isinstance(node, ast.Tuple | ast.List):
            return _made(f"{fn.qualname}:{node.lineno}", [(e, fn) for e in elements(node)])
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            return self.of(node.value, fn, depth + 1)
        return None

    def _of_name(self, name: str, fn: Function, depth: int) -> Container | None:
        module = self.module
        for scope in fn.scopes():
            if name in fn.globals and scope is not module.top:
                continue
            value = scope.bound.get(name)
            if value is not None:
                if isinstance(value, ast.Name | ast.Attribute):
                    return self.of(value, scope, depth + 1)
                where = name if scope is module.top else f"{scope.qualname}.{name}"
                return _made(where, [(e, scope) for e in elements(value)] + self._filled.get((id(scope), name), []))
            if name == scope.rest != "":
                passed = self.passing.to(scope, f"*{name}")
                return _made(f"{scope.qualname}.{name}", [(given.value, given.caller) for given in passed])
            if name in scope.parameters:
                for given in self.passing.to(scope, name):
                    if (found := self.of(given.value, given.caller, depth + 1)) is not None:
                        return found
                return None
        return None

    def _of_attribute(self, node: ast.Attribute, fn: Function, depth: int) -> Container | None:
        owner = self._type_of(node.value, fn)
        for cls in owner.ancestry if owner is not None else ():
            found: list[tuple[ast.expr, Function]] = []
            for value, scope in cls.values.get(node.attr, ()):
                found += [(e, scope) for e in elements(value)]
                if isinstance(value, ast.Name) and value.id in scope.parameters:
                    given = self.of(value, scope, depth + 1)
                    if given is not None:
                        return given
            found += self._filled.get((id(cls), node.attr), [])
            if found:
                return _made(f"{cls.name}.{node.attr}", found)
        return None

    @cached_property
    def _filled(self) -> dict[tuple[int, str], list[tuple[ast.expr, Function]]]:
        """(scope or class, name) -> what is added to the container of that name."""
        found: dict[tuple[int, str], list[tuple[ast.expr, Function]]] = {}
        for fn in self.module.functions:
            for call in fn.calls:
                if isinstance(call.func, ast.Attribute) and call.func.attr in _FILLS:
                    position = _FILLS[call.func.attr]
                    if position < len(call.args):
                        self._add(call.func.value, call.args[position], fn, found)
            for target, value in fn.assigns:
                if isinstance(target, ast.Subscript):
                    self._add(target.value, value, fn, found)
        return found

    def _add(
        self,
        container: ast.expr,
        value: ast.expr,
        fn: Function,
        found: dict[tuple[int, str], list[tuple[ast.expr, Function]]],
    ) -> None:
        if isinstance(container, ast.Name):
            scope = next((s for s in fn.scopes() if container.id in s.bound), None)
            if scope is not None:
                found.setdefault((id(scope), container.id), []).append((value, fn))
        elif (
            isinstance(container, ast.Attribute)
            and fn.cls is not None
            and isinstance(container.value, ast.Name)
            and container.value.id == fn.self_name
        ):
            found.setdefault((id(fn.cls), container.attr), []).append((value, fn))


def elements(value: ast.expr) -> list[ast.expr]:
    """The expressions that a container is created with; `defaultdict(Lock)` counts as a call of `Lock`."""
    if isinstance(value, ast.List | ast.Tuple | ast.Set):
        return [e for e in value.elts if not isinstance(e, ast.Constant | ast.Starred)]
    if isinstance(value, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        return [value.elt]
    if isinstance(value, ast.DictComp):
        return [value.value]
    if isinstance(value, ast.Dict):
        return [v for v in value.values if not isinstance(v, ast.Constant)]
    if isinstance(value, ast.Call) and value.args:
        first = value.args[0]
        if short_name(value.func) == "defaultdict":
            made = first.body if isinstance(first, ast.Lambda) else ast.Call(first, [], [])
            return [ast.copy_location(made, first)]
        if short_name(value.func) in _SAME_ELEMENTS:
            return elements(first)
    return []


def _made(where: str, found: list[tuple[ast.expr, Function]]) -> Container | None:
    return Container(where, tuple(found)) if found else None
