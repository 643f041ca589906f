"""A request to stop that is assigned to a local variable, although a loop asks for the global of that name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function


def find(facts: Facts) -> Iterator[Witness]:
    """Report local variables that hide the global which another function's loop asks for, and that are not read."""
    module = facts.module
    assigned = {name for fn in module.functions for name in fn.globals}
    flags = {name for name, value in module.top.bound.items() if isinstance(value, ast.Constant)} - assigned
    loops = {name: (fn, loop) for fn, loop, name in _asked(facts) if name in flags}
    for fn in module.functions if loops else ():
        if fn is module.top:
            continue
        for target, value in fn.assigns:
            if not isinstance(target, ast.Name) or target.id not in loops or not isinstance(value, ast.Constant):
                continue
            waiter, loop = loops[target.id]
            read = any(n.id == target.id and isinstance(n.ctx, ast.Load) for n in fn.names)
            if waiter is not fn and not read and not _changed_at_top(target.id, facts):
                yield Witness(target, fn, waiter=waiter, loop=loop)


def _asked(facts: Facts) -> Iterator[tuple[Function, ast.While, str]]:
    """The globals that loops ask for, each with the function and the loop."""
    for fn in facts.module.functions:
        local_names = {n.id for n in fn.stores} | set(fn.parameters)
        for loop in fn.loops:
            if isinstance(loop, ast.While) and fn is not facts.module.top:
                names = {n.id for n in ast.walk(loop.test) if isinstance(n, ast.Name)}
                yield from ((fn, loop, name) for name in names - local_names)


def _changed_at_top(name: str, facts: Facts) -> bool:
    """Whether the code of the module itself assigns a global a second time."""
    return sum(n.id == name for n in facts.module.top.stores) > 1
