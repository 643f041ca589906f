"""A request to stop that is assigned to a local variable, although a loop asks for the global of that name.

`while not stop:` in a thread reads the global `stop`. A function that assigns `stop = True` without `global stop` makes
a variable of its own: the global never changes, and the loop never ends. Declare the name `global`, or use an event.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function


def find(facts: Facts) -> Iterator[Finding]:
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
                yield _report(target, fn, waiter, loop)


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


def _report(target: ast.Name, fn: Function, waiter: Function, loop: ast.While) -> Finding:
    name = target.id
    return finding(
        target,
        fn,
        f"{fn.qualname} assigns a local variable {name}; the loop of {waiter.qualname} asks for the global {name} "
        f"(line {loop.lineno}), which never changes",
        [
            Step("thread A", loop.lineno, f"{waiter.qualname} continues as long as the global {name} stays as it is"),
            Step("thread B", target.lineno, f"{fn.qualname} assigns a variable of its own"),
            Step("thread A", loop.lineno, "never sees a change, and never ends"),
        ],
        remedy=f"write `global {name}` first, or use a threading.Event",
        about=name,
        confidence=0.85,
    )


RULE = Rule(
    "PC227",
    "local-flag",
    "a request to stop assigned to a local variable, where a loop asks for the global",
    find,
    bad="""
        import threading

        stop = False

        def work(items):
            while not stop:
                items.step()

        def run(items):
            thread = threading.Thread(target=work, args=(items,))
            thread.start()
            input()
            stop = True
            thread.join()
    """,
    good="""
        import threading

        stop = False

        def work(items):
            while not stop:
                items.step()

        def run(items):
            global stop
            thread = threading.Thread(target=work, args=(items,))
            thread.start()
            input()
            stop = True
            thread.join()
    """,
    needs=("while",),
)
