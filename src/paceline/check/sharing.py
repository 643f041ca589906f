"""What two threads reach at once: evidence that functions overlap in time, from where the threads of a file begin.

Two functions overlap if different threads reach them, or one kind of thread that is started several times: a loop of
threads, the tasks of an executor, the requests of a server. A function that no thread reaches overlaps with a thread if
others may call it while the thread runs: it is public, and neither starts the threads nor tears the object down.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.accesses import Access
from paceline.check.declarations import Function
from paceline.check.names import dotted, enclosing, parent, short_name
from paceline.check.shared_state import BEGINNINGS, is_caught, is_teardown
from paceline.check.summaries import Facts

# A file without any of these starts no threads, and no library starts them for it.
THREAD_WORDS = ("thread", "Thread", "Lock", "Executor", "flask", "fastapi", "grpc")


def overlap(one: Function, other: Function, facts: Facts) -> bool:
    """Whether two functions may run at the same time in two threads, by what this file starts."""
    mine, theirs = facts.threads_of(one), facts.threads_of(other)
    if mine and theirs:
        return mine != theirs or len(mine) > 1 or several(mine, facts)
    if not mine and not theirs:
        return False
    return _open(other if mine else one, facts)


def several(threads: set[str], facts: Facts) -> bool:
    """Whether one of these threads is started more than once."""
    return any(r.several and f"{r.kind}:{r.function.qualname}" in threads for r in facts.roots)


def _open(fn: Function, facts: Facts) -> bool:
    """Whether a function that no thread reaches may be called while threads run."""
    hidden = fn.name.startswith("_") or fn.name in BEGINNINGS or fn is facts.module.top or is_teardown(fn)
    starts = any(short_name(call.func) in ("start", "submit") for call in fn.calls)
    return not hidden and not starts and fn.cls is not None


def filled_at_once(accesses: list[Access], facts: Facts) -> Iterator[tuple[Access, ast.If]]:
    """`if key not in d: d[key] = make()`, where two threads may both find that there is no such key."""
    for access in accesses:
        subscript = parent(access.node)
        test = enclosing(access.node, ast.If)
        if access.kind != "grow" or not isinstance(subscript, ast.Subscript) or not isinstance(test, ast.If):
            continue
        made = parent(subscript)
        new = isinstance(made, ast.Assign) and isinstance(made.value, ast.Call)
        if new and not access.locks and _asks_for(test, subscript, ast.NotIn) and overlap(access.fn, access.fn, facts):
            yield access, test


def removed_at_once(accesses: list[Access], facts: Facts) -> Iterator[tuple[Access, ast.If, Access]]:
    """`if key in d: d[key]`, where another thread may take the key away in between."""
    removals = [a for a in accesses if a.kind == "shrink" and not is_teardown(a.fn)]
    for access in accesses if removals else ():
        test, subscript = enclosing(access.node, ast.If), parent(access.node)
        if access.kind not in ("item", "shrink") or not isinstance(test, ast.If):
            continue
        if not isinstance(subscript, ast.Subscript) or not _asks_for(test, subscript, ast.In):
            continue
        if is_caught(access.node, "KeyError", "LookupError"):
            continue
        apart = (r for r in removals if r is not access and not r.locks & access.locks)
        other = next((r for r in apart if overlap(r.fn, access.fn, facts)), None)
        if other is None and access.kind == "shrink" and not access.locks and overlap(access.fn, access.fn, facts):
            other = access
        if other is not None:
            yield access, test, other


def _asks_for(test: ast.If, subscript: ast.Subscript, operator: type[ast.cmpop]) -> bool:
    """Whether a test asks for the key of a subscript in the same container."""
    key, container = ast.unparse(subscript.slice), dotted(subscript.value)
    return any(
        isinstance(n, ast.Compare)
        and isinstance(n.ops[0], operator)
        and ast.unparse(n.left) == key
        and dotted(n.comparators[0]) == container
        for n in ast.walk(test.test)
    )
