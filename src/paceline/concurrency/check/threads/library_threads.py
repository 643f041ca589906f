"""Functions that a library runs in threads of its own: callbacks, and methods of its base classes.

A callback of a sound card, of a message broker or of a file watcher meets the program's own threads, although the
program starts none. Which functions those are is data in libraries/threads.json.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.concurrency.check import libraries
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import keyword, short_name
from paceline.concurrency.check.values.library_types import method_name, type_name
from paceline.concurrency.check.values.module import Module

_FUTURES = "concurrent.futures.Future"


def started_by_libraries(module: Module) -> Iterator[tuple[Function, int, bool]]:
    """Each such function with the line at which it is given to the library, and whether several threads run it."""
    for cls in module.classes.values():
        for base in cls.bases:
            pattern, _, several = libraries.run_in_thread(base).partition(" ")
            named = (m for m in cls.methods.values() if pattern and re.fullmatch(pattern, m.name))
            yield from ((m, m.line, bool(several)) for m in named if not m.asynchronous)
    for fn in module.functions:
        for call in fn.calls:
            if short_name(call.func) in libraries.takers():
                yield from _called_back(call, fn, module)
        for target, value in fn.assigns:
            if isinstance(target, ast.Attribute) and not isinstance(value, ast.Constant):
                yield from _assigned(target, value, fn, module)


def _called_back(call: ast.Call, fn: Function, module: Module) -> Iterator[tuple[Function, int, bool]]:
    """The functions among the arguments of a call that its library runs."""
    name = method_name(call.func, fn, module)
    if isinstance(call.func, ast.Attribute) and call.func.attr == "add_done_callback":
        future = module.resource(call.func.value, fn)
        name = f"{_FUTURES}.add_done_callback" if future is not None and future.kind == "Future" else ""
    for parameter in libraries.called_in_thread(name).split():
        argument, _, position = parameter.partition(":")
        value = keyword(call, argument, int(position) if position else None)
        function = None if value is None else module.function_named(value, fn)
        if function is not None and not function.asynchronous:
            yield function, call.lineno, name.startswith(_FUTURES)


def _assigned(
    target: ast.Attribute, value: ast.expr, fn: Function, module: Module
) -> Iterator[tuple[Function, int, bool]]:
    """A function that is assigned to an attribute of a library's object: `client.on_message = self._received`."""
    function = module.function_named(value, fn) if target.attr.startswith("on_") else None
    if function is not None and not function.asynchronous:
        pattern = libraries.assigned_for_thread(type_name(target.value, fn, module))
        if pattern and re.fullmatch(pattern, target.attr):
            yield function, target.lineno, False
