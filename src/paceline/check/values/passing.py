"""What is passed where: the arguments of every call, constructor, thread and task of a file, by parameter.

A parameter stands for whatever its callers pass. If all of them pass the same lock, the parameter is that lock; if they
pass different ones (`Worker(a, b)` and `Worker(b, a)`), each call binds the parameters of its own object, and a fact
about the parameters holds once per call.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

from paceline.check.syntax.declarations import Function
from paceline.check.syntax.names import keyword, short_name

# Calls that run another function later -> the keyword and position of that function; its arguments follow it.
_RUNS_LATER = {
    "submit": ("fn", 0),
    "run_in_executor": ("func", 1),
    "to_thread": ("func", 0),
    "partial": ("func", 0),
    "start_soon": ("async_fn", 0),
    "call_soon": ("callback", 0),
    "call_soon_threadsafe": ("callback", 0),
    "run_sync": ("func", 0),
}
_TAKES_ARGS = {"Thread": 1, "Process": 1, "Timer": 1, "apply_async": 0, "start_new_thread": 0, "start_process": 0}


class Argument(NamedTuple):
    """One value that is passed for a parameter."""

    value: ast.expr
    caller: Function
    site: ast.Call


class Passing:
    """The arguments of the calls of one file."""

    def __init__(
        self,
        functions: list[Function],
        function_named: Callable[[ast.expr, Function], Function | None],
        callee: Callable[[ast.Call, Function], Function | None],
        forget: Callable[[], None],
    ) -> None:
        self._functions, self._function_named = functions, function_named
        self._callee, self._forget = callee, forget
        #: What is known so far; while the calls are read for the first time, nothing is.
        self._known: dict[tuple[int, str], list[Argument]] | None = None

    def to(self, fn: Function, name: str) -> list[Argument]:
        """What the calls of this file pass for a parameter, in the order of the calls."""
        return self._arguments().get((id(fn), name), [])

    def at(self, fn: Function, name: str, site: ast.Call) -> Argument | None:
        """What one call passes for a parameter."""
        return next((argument for argument in self.to(fn, name) if argument.site is site), None)

    def sites(self, fn: Function) -> list[ast.Call]:
        """The calls that pass anything to a function, each once, in their order."""
        return self._sites.get(id(fn), [])

    @cached_property
    def _sites(self) -> dict[int, list[ast.Call]]:
        found: dict[int, dict[int, ast.Call]] = {}
        for (fn, _), arguments in self._arguments().items():
            for argument in arguments:
                found.setdefault(fn, {})[id(argument.site)] = argument.site
        return {fn: sorted(sites.values(), key=lambda c: (c.lineno, c.col_offset)) for fn, sites in found.items()}

    def _arguments(self) -> dict[tuple[int, str], list[Argument]]:
        """All arguments: first of calls whose callee is known at once, then of methods of what those have passed."""
        if self._known is None:
            self._known = {}
            calls = [(call, caller) for caller in self._functions for call in caller.calls]
            first: dict[tuple[int, str], list[Argument]] = {}
            later = [pair for pair in calls if not self._collect(*pair, first)]
            self._forget()
            self._known = first
            second: dict[tuple[int, str], list[Argument]] = {}
            for pair in later if first else ():
                self._collect(*pair, second)
            for key, arguments in second.items():
                first.setdefault(key, []).extend(arguments)
            self._forget()
        return self._known

    def _collect(self, call: ast.Call, caller: Function, into: dict[tuple[int, str], list[Argument]]) -> bool:
        """Add the arguments of one call; whether its callee is known, or need not be."""
        if not call.args and not call.keywords:
            return True
        bindings = list(self._bindings(call, caller))
        for fn, name, value in bindings:
            into.setdefault((id(fn), name), []).append(Argument(value, caller, call))
        return bool(bindings)

    def _bindings(self, call: ast.Call, caller: Function) -> Iterator[tuple[Function, str, ast.expr]]:
        """(callee, parameter, value) of a call, or of the call that it starts in a thread, task or process."""
        name = short_name(call.func)
        if name in _RUNS_LATER:
            word, position = _RUNS_LATER[name]
            target = keyword(call, word, position)
            rest, named = call.args[position + 1 :], [k for k in call.keywords if k.arg not in (word, None)]
        elif name in _TAKES_ARGS:
            target = keyword(call, "target", _TAKES_ARGS[name]) or keyword(call, "func", _TAKES_ARGS[name])
            given = keyword(call, "args", _TAKES_ARGS[name] + (2 if name in ("Thread", "Process") else 1))
            rest = given.elts if isinstance(given, ast.Tuple | ast.List) else []
            also = keyword(call, "kwargs")
            pairs = zip(also.keys, also.values, strict=True) if isinstance(also, ast.Dict) else ()
            named = [ast.keyword(str(k.value), v) for k, v in pairs if isinstance(k, ast.Constant)]
        else:
            target, rest, named = call.func, call.args, [k for k in call.keywords if k.arg]
        fn = None
        if target is not None:
            fn = self._callee(call, caller) if target is call.func else self._function_named(target, caller)
        if fn is None:
            return
        names = list(fn.parameters)
        if _is_bound(fn, target, caller):
            names = names[1:]
        if fn.rest:
            names = names[: _places(fn) - (len(fn.parameters) - len(names))]
            yield from ((fn, f"*{fn.rest}", v) for v in rest[len(names) :] if not isinstance(v, ast.Starred))
        for parameter, value in zip(names, rest, strict=False):
            if isinstance(value, ast.Starred):
                break
            yield fn, parameter, value
        for each in named:
            if each.arg in fn.parameters:
                yield fn, each.arg, each.value


def _places(fn: Function) -> int:
    """How many parameters a function has that are given by position alone or by either."""
    given = getattr(fn.node, "args", None)
    return len(given.posonlyargs) + len(given.args) if isinstance(given, ast.arguments) else len(fn.parameters)


def _is_bound(fn: Function, target: ast.expr | None, caller: Function) -> bool:
    """Whether the first parameter is the object itself, which the call does not pass by position."""
    if fn.cls is None or fn.cls.methods.get(fn.name) is not fn or fn.decorated("staticmethod"):
        return False
    called = fn.name == "forward" and not (isinstance(target, ast.Attribute) and target.attr == "forward")
    if fn.name in ("__init__", "__call__") or called or fn.decorated("classmethod"):
        return not (isinstance(target, ast.Attribute) and target.attr == "__init__" and short_name(target.value) != "")
    named_by_class = isinstance(target, ast.Attribute) and short_name(target.value) == fn.cls.name
    return isinstance(target, ast.Attribute) and not named_by_class


def start_arguments(call: ast.Call, fn: Function) -> list[ast.expr]:
    """The arguments of a Process or Thread: `args=` and `kwargs=`, also where they name a tuple."""
    found: list[ast.expr] = []
    for name, position in (("args", 3), ("kwargs", 4)):
        given = keyword(call, name, position)
        if isinstance(given, ast.Name):
            given = fn.bound.get(given.id)
        if isinstance(given, ast.Tuple | ast.List):
            found += given.elts
        elif isinstance(given, ast.Dict):
            found += given.values
    return found
