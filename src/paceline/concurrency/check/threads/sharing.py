"""What two threads reach at once: evidence that functions overlap in time, from where the threads of a file begin.

Two functions overlap if different threads reach them, or one kind of thread that is started several times: a loop of
threads, the tasks of an executor, the requests of a server. A function that no thread reaches overlaps with a thread if
others may call it while the thread runs: it is public, and neither starts the threads nor tears the object down.
"""

from __future__ import annotations

import ast

from paceline.concurrency.check import libraries
from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    dotted,
    enclosing,
    is_within,
    last_line,
    short_name,
)
from paceline.concurrency.check.threads.accesses import Access
from paceline.concurrency.check.threads.shared_state import BEGINNINGS, is_teardown
from paceline.concurrency.check.values.module import name_of_site

CALLERS = 4  # calls through which a private function is followed to those that may hold a lock
# A file without any of these starts no threads, and no library starts them for it.
THREAD_WORDS = (
    "thread",
    "Thread",
    "Lock",
    "Executor",
    "in_executor",
    "flask",
    "fastapi",
    "grpc",
    *libraries.threaded(),
)


def may_coincide(one: Access, other: Access, facts: Facts) -> bool:
    """Whether two accesses may be made to the same object at the same time in two threads."""
    # Threads that each have an object of their own share only what belongs to the class.
    if facts.runs_on_own(one.fn) and facts.runs_on_own(other.fn) and not of_class(one, facts):
        return False
    return may_overlap(one.fn, other.fn, facts)


def of_class(access: Access, facts: Facts) -> bool:
    """Whether what is accessed is one for all objects: a global, or an attribute that only the class itself assigns."""
    node, cls = access.node, access.fn.cls
    on_self = isinstance(node, ast.Attribute) and dotted(node.value) == access.fn.self_name
    if not on_self or cls is None or access.fn.decorated("classmethod"):
        return True
    values = [pair for each in cls.ancestry for pair in each.values.get(node.attr, ())]  # type: ignore[attr-defined]
    return bool(values) and all(fn.cls not in cls.ancestry or fn.decorated("classmethod") for _, fn in values)


def may_overlap(one: Function, other: Function, facts: Facts) -> bool:
    """Whether two functions may run at the same time in two threads, by what this file starts."""
    mine, theirs = facts.threads_of(one), facts.threads_of(other)
    if one.asynchronous and other.asynchronous:
        return False  # one loop runs both, one after the other between two awaits
    if mine and theirs:
        return mine != theirs or len(mine) > 1 or several(mine, facts) or (one is other and _from_outside(one, facts))
    # Two functions that no thread reaches may still be called by
    # threads of other files: that is left to signs (`evidence`).
    if not mine and not theirs:
        return False
    return _open(other if mine else one, facts)


def several(threads: set[str], facts: Facts) -> bool:
    """Whether one of these threads is started more than once."""
    return any(r.several and f"{r.kind}:{r.function.qualname}" in threads for r in facts.roots)


def _from_outside(fn: Function, facts: Facts) -> bool:
    """Whether a function that a thread runs is also called by one that others may call while the thread runs."""
    callers = (caller for caller, _ in facts.callers.get(id(fn), ()) if not facts.threads_of(caller))
    return any(_open(caller, facts) for caller in callers)


def _open(fn: Function, facts: Facts) -> bool:
    """Whether a function that no thread reaches may be called while threads run."""
    # Private functions are called by public ones, and beginnings and ends while the threads do not run.
    if fn.cls is None or fn.generator or fn.name.startswith("_") or fn.name in BEGINNINGS or is_teardown(fn):
        return False
    return not any(short_name(call.func) in ("start", "submit") for call in fn.calls)


def may_be_alone(fn: Function, facts: Facts, depth: int = CALLERS) -> bool:
    """Whether a function may run under its caller's lock, or before or after all other threads."""
    if fn.name in BEGINNINGS or fn.name.endswith("locked") or is_teardown(fn) or not depth:
        return True
    if not fn.name.startswith("_") or fn.name.startswith("__") or facts.threads_of(fn):
        return False
    callers = facts.callers.get(id(fn), [])
    return all(event.held or may_be_alone(caller, facts, depth - 1) for caller, event in callers)


def comes_after(access: Access, other: Access, facts: Facts) -> bool:
    """Whether the threads that make another access have ended before: they were joined, or their object was closed."""
    names = _names_of(facts.threads_of(other.fn), facts)
    return _follows_end(access.node, access.fn, names, facts, CALLERS) or _is_closed(access)


def _names_of(threads: set[str], facts: Facts) -> list[set[str]]:
    """For each of these threads, what it may be joined by: the names of its own objects, or those of its executor."""
    names = []
    for root in (r for r in facts.roots if f"{r.kind}:{r.function.qualname}" in threads):
        cls = root.function.cls if root.function.name == "run" else None
        ids = set() if cls is None else {cls.name}
        for fn in facts.module.functions:
            for call in fn.calls:
                is_start = call.lineno == root.line
                pool = facts.module.resource(call.func.value, fn) if isinstance(call.func, ast.Attribute) else None
                if is_start and pool is not None and pool.kind in ("Executor", "Pool"):
                    ids.add(pool.id)
                elif is_start and facts.module.constructed_kind(call, fn) == "Thread":
                    ids.add(name_of_site(call, fn).id)
        names.append(ids)
    return names


def _follows_end(at: ast.AST, fn: Function, names: list[set[str]], facts: Facts, depth: int) -> bool:
    """Whether a function, or else all its callers, wait for the end of all these threads before a place in it."""
    line = getattr(at, "lineno", 0)
    joined = {
        m.resource.id
        for m in facts.walker.effects(fn)
        if m.kind == "wait" and not m.timeout and m.resource is not None and m.line < line
        if m.resource.kind in ("Thread", "Executor", "Pool") and _leads_to(m.node, at)
    }
    joins = (c for c in fn.calls if isinstance(c.func, ast.Attribute) and c.func.attr == "join" and c.lineno < line)
    for call in joins:
        if not has_timeout(call, "join") and _leads_to(call, at):
            joined |= {cls.name for cls in facts.module.objects.classes(call.func.value, fn)}  # type: ignore[attr-defined]
    for block in fn.withs:
        pools = (facts.module.resource(i.optional_vars or i.context_expr, fn) for i in block.items)
        joined |= {p.id for p in pools if p is not None and p.kind == "Executor" and last_line(block) < line}
    if names and all(ids & joined for ids in names):
        return True
    callers = facts.callers.get(id(fn), []) if depth and names else []
    return bool(callers) and all(
        _follows_end(event.effect.node, caller, names, facts, depth - 1) for caller, event in callers
    )


def _leads_to(node: ast.AST, at: ast.AST) -> bool:
    """Whether a step is done on every way to a place: it is no part of a branch that is not around the place too."""
    test = enclosing(node, ast.If)
    return not isinstance(test, ast.If) or is_within(at, [test])


def _is_closed(access: Access) -> bool:
    """Whether a function has ended the object, which is not its own, before it uses an attribute of it."""
    owner = dotted(access.node.value) if isinstance(access.node, ast.Attribute) else access.fn.self_name
    ends = (c for c in access.fn.calls if isinstance(c.func, ast.Attribute) and dotted(c.func.value) == owner)
    return owner != access.fn.self_name and any(
        c.lineno < access.line and short_name(c.func) in _CLOSES and _leads_to(c, access.node) for c in ends
    )


def is_single_use(value: ast.expr, fn: Function, facts: Facts) -> bool:
    """Whether a value is an object that has to be closed, or a lock, thread or the like: a second one is no copy."""
    classes = facts.module.objects.classes(value, fn)
    if any(cls.method(name) is not None for cls in classes for name in _CLOSES):
        return True
    return any(facts.module.constructed_kind(*made) is not None for made in facts.module.objects.made(value, fn))


_CLOSES = ("close", "stop", "shutdown", "release", "terminate", "disconnect", "logout", "aclose", "__exit__", "join")
