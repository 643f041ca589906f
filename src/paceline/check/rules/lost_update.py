"""A change that reads first, without a lock, where several threads do it.

`x += 1` reads, adds and writes; a thread that comes in between is overwritten. On a counter that hands out numbers two
threads get the same one. Reported for attributes of objects that have locks, where the same attribute is changed under
a lock elsewhere or its value is handed out, and for globals that threads change.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.accesses import Access, is_shared, of_class, of_globals
from paceline.check.catalogue import LOCKS
from paceline.check.declared import Class
from paceline.check.findings import Finding, Step
from paceline.check.names import dotted, last, parent
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts


def find(facts: Facts) -> Iterator[Finding]:
    for cls in facts.module.classes.values():
        locked = is_shared(cls, facts) and _has_lock(cls, facts)
        for accesses in of_class(cls, facts).values() if locked or facts.has_threads else ():
            found = list(_attribute(accesses, facts)) if locked else []
            yield from found or _in_threads(accesses, facts)
    if facts.has_threads:
        for accesses in of_globals(facts).values():
            yield from _global(accesses, facts)


def _has_lock(cls: Class, facts: Facts) -> bool:
    return any(
        (m := facts.module.made(v, f)) is not None and m[0] in LOCKS and not m[0].startswith("Async")
        for values in cls.values.values()
        for v, f in values
    )


def _attribute(accesses: list[Access], facts: Facts) -> Iterator[Finding]:
    updates = [a for a in accesses if a.kind == "update"]
    bare = [a for a in updates if not a.locks and not _handed_out(a, facts)]
    if not bare:
        return
    guarded = [a for a in accesses if a.changes and a.locks]
    for access in bare:
        returned = any(
            r.value is not None and any(dotted(n) == dotted(access.node) for n in ast.walk(r.value))
            for r in access.fn.returns
        )
        if guarded or returned:
            yield _tell(access, guarded[0] if guarded else None)
            return


def _in_threads(accesses: list[Access], facts: Facts) -> Iterator[Finding]:
    """Changed after a read in a thread of which there are several, or in two kinds of thread."""
    inside = [a for a in accesses if a.kind == "update" and facts.threads_of(a.fn)]
    for access in inside:
        other = "" if access.locks else _others(access, inside, facts)
        if other:
            yield _tell(access, None, other)
            return


def _handed_out(access: Access, facts: Facts) -> bool:
    """In a function inside another: who calls it, and under what, is not known."""
    return access.fn.outer is not facts.module.top and not facts.threads_of(access.fn)


def _global(accesses: list[Access], facts: Facts) -> Iterator[Finding]:
    """Changed in threads after a read, or changed in two threads, without one lock over both."""
    inside = [a for a in accesses if a.changes and facts.threads_of(a.fn)]
    if not inside:
        return
    for access in inside:
        if access.locks:
            continue
        reads = access.kind == "update" or any(
            a.fn is access.fn and not a.changes and a.line <= access.line for a in accesses
        )
        others = _others(access, inside, facts)
        if others and (reads or (access.kind == "write" and not _constant(access))):
            yield _tell(access, None, others)
            return
        plain = [
            o
            for o in inside
            if o.fn is not access.fn
            and not o.locks
            and facts.threads_of(o.fn) != facts.threads_of(access.fn)
            and not _in_turn(facts.threads_of(o.fn) | facts.threads_of(access.fn), facts)
        ]
        if plain and access.kind == "write" and not _flag(access):
            yield _tell(access, None, plain[0].fn.qualname)
            return


def _others(access: Access, inside: list[Access], facts: Facts) -> str:
    """Who else changes it at the same time: another thread, or another of the same."""
    mine = facts.threads_of(access.fn)
    for other in inside:
        if facts.threads_of(other.fn) != mine and not _in_turn(mine | facts.threads_of(other.fn), facts):
            return other.fn.qualname
    roots = [r for r in facts.roots if f"{r.kind}:{r.function.qualname}" in mine]
    started = [r for r in roots if r.function is roots[0].function]
    together = len(started) > 1 and not all(r.alone for r in started)
    return access.fn.qualname if together or any(r.several for r in roots) else ""


def _in_turn(tags: set[str], facts: Facts) -> bool:
    """Threads each of which is joined before the next is started."""
    return all(r.alone for r in facts.roots if f"{r.kind}:{r.function.qualname}" in tags)


def _constant(access: Access) -> bool:
    up = parent(access.node)
    return isinstance(up, ast.Assign | ast.AnnAssign) and isinstance(up.value, ast.Constant)


def _flag(access: Access) -> bool:
    """A yes or no, or nothing: whoever is last is right."""
    up = parent(access.node)
    value = up.value if isinstance(up, ast.Assign | ast.AnnAssign) else None
    return not isinstance(value, ast.Constant) or value.value is None or isinstance(value.value, bool | str)


def _tell(access: Access, guarded: Access | None, other: str = "") -> Finding:
    what = f"{access.thing} is changed here without a lock"
    if guarded is not None:
        what += f", though {guarded.fn.qualname} holds {min(guarded.locks)} to change it (line {guarded.line})"
    elif other:
        what += f", while {other} changes it in another thread"
    else:
        what += " and handed out: two threads may get the same"
    return finding(
        access.node,
        access.fn,
        f"{what}; a change in between is lost",
        [
            Step("thread A", access.line, f"{access.fn.qualname} reads {access.thing}"),
            Step("thread B", guarded.line if guarded else access.line, "reads and changes it too"),
            Step("thread A", access.line, "writes what follows from the old value: thread B's change is lost"),
        ],
        f"hold {min(guarded.locks) if guarded else 'one lock'} wherever {last(access.node) or access.thing} is changed",
        access.thing,
        0.65,
    )


RULE = Rule(
    "PC402",
    "lost-update",
    "a change that reads first, without a lock",
    find,
    bad="""
        import threading

        class Client:
            def __init__(self):
                self._lock = threading.Lock()
                self._last = 0

            def next_number(self):
                self._last += 1
                return self._last
    """,
    good="""
        import threading

        class Client:
            def __init__(self):
                self._lock = threading.Lock()
                self._last = 0

            def next_number(self):
                with self._lock:
                    self._last += 1
                    return self._last
    """,
    needs=("thread", "Thread"),
)
