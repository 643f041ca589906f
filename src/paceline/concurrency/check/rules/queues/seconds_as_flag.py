"""A number of seconds where a call expects whether to wait at all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS, LOCKS, THREAD_QUEUES
from paceline.concurrency.check.rules.rule import Witness, resource_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import keyword, short_name

#: Method -> the position at which it expects whether to wait.
FLAGS = {"get": 0, "put": 1, "acquire": 0}
KINDS = {*THREAD_QUEUES} | LOCKS - ASYNC_LOCKS
NAMED = re.compile(r"time_?out|wait|sec(ond)?s?$|delay|interval|patience", re.I)


def find(facts: Facts) -> Iterator[Witness]:
    """Report numbers of seconds given as the flag of a wait, without a timeout."""
    for fn in facts.module.functions:
        for call in fn.calls:
            method = short_name(call.func)
            argument = call.args[FLAGS[method]] if len(call.args) == FLAGS.get(method, -2) + 1 else None
            if argument is None or keyword(call, "timeout") is not None or not _is_time(argument, fn):
                continue
            resource = resource_of(call, (method,), fn, facts)
            if resource is not None and resource.sure and resource.kind in KINDS:
                yield Witness(
                    call,
                    fn,
                    argument=argument,
                    flag="blocking" if short_name(call.func) == "acquire" else "block",
                    resource=resource.id,
                )


def _is_time(argument: ast.expr, fn: Function) -> bool:
    """Whether a value is a number of seconds: by its value where that is known, else by its name."""
    value = _value(argument, fn)
    if isinstance(value, ast.Constant):
        number = value.value
        return isinstance(number, int | float) and not isinstance(number, bool) and number not in (0, 1)
    return value is argument and NAMED.search(short_name(argument)) is not None


def _value(argument: ast.expr, fn: Function) -> ast.expr:
    """What a name or an attribute was set to, or a parameter's default; the expression itself where that is unknown."""
    name = short_name(argument)
    if isinstance(argument, ast.Name):
        for scope in fn.scopes():
            if name in scope.bound:
                return scope.bound[name]
            if name in scope.parameters:
                return _default(name, scope) or argument
    if isinstance(argument, ast.Attribute) and fn.cls is not None and short_name(argument.value) == fn.self_name:
        values = fn.cls.values.get(name, ())
        return values[0][0] if len(values) == 1 and isinstance(values[0][0], ast.Constant) else argument
    return argument


def _default(name: str, fn: Function) -> ast.expr | None:
    """The default of a parameter."""
    arguments = getattr(fn.node, "args", None)
    if arguments is None:
        return None
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(positional[::-1], arguments.defaults[::-1], strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    value = next((default for argument, default in pairs if argument.arg == name), None)
    return value if isinstance(value, ast.Constant) and value.value is not None else None
