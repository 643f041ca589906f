"""The child processes that a program starts, and what each of them gets a copy of."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paceline.concurrency.check import libraries
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import arguments_of, keyword, short_name
from paceline.concurrency.check.values.bindings import PREPARES, prepares, start_arguments
from paceline.concurrency.check.values.calls import method_name

#: Methods of a pool that have its processes run a function, and what makes such pools.
TASKS = libraries.names("methods of pools that run a task")
POOLS = libraries.names("pools of processes")


class Child(NamedTuple):
    """A process that a call starts, or has a pool start, or a task that it gives to one."""

    runs: Function | None  # None where it is not known
    call: ast.Call
    fn: Function  # that makes the call
    given: tuple[ast.expr, ...]  # what it gets copies of: arguments, and the object whose method it runs
    in_pool: bool = False  # a task for a process that is running already


def children(facts: Facts) -> Iterator[Child]:
    """The processes and tasks of pools that a program starts, with what they are given."""
    module = facts.module
    for call, fn in module.calls:
        target: ast.expr | None = None
        given: Sequence[ast.expr] = ()
        in_pool, runs = False, None
        begins = module.constructed_kind(call, fn) == "Process"
        if begins:
            target, cls = keyword(call, "target", 1), module.classes.get(short_name(call.func))
            given = start_arguments(call, fn) if target is not None else arguments_of(call)
            runs = cls.method("run") if cls is not None and target is None else None
        elif isinstance(call.func, ast.Attribute) and call.func.attr in TASKS and call.args:
            pools = (method_name(made.func, maker, module) for made, maker in module.objects.made(call.func.value, fn))
            in_pool = any(pool in POOLS for pool in pools)
            target, given = (call.args[0], arguments_of(call)[1:]) if in_pool else (None, ())
        elif short_name(call.func) in PREPARES and method_name(call.func, fn, module) in POOLS:
            target, arguments = prepares(call)
            given = getattr(arguments, "elts", ())
        runs = module.function_named(target, fn) if target is not None else runs
        if begins or runs is not None:
            owner = [target.value] if isinstance(target, ast.Attribute) else []
            yield Child(runs, call, fn, (*given, *owner), in_pool)
