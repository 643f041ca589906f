"""An await while a thread's lock is held."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import parent


def find(facts: Facts) -> Iterator[Witness]:
    """Report awaits in coroutines while a lock that is not asyncio's is held."""
    for fn in facts.module.functions:
        if not fn.asynchronous:
            continue
        reported: set[str] = set()
        yield from _implicit(fn, facts, reported)
        for effect, locks_held in facts.events(fn):
            at = parent(effect.node)
            if not isinstance(at, ast.Await) or effect.kind == "take":
                continue
            for lock, line, *_ in locks_held:
                if (
                    lock.kind not in ASYNC_LOCKS
                    and lock.id not in reported
                    and (lock.sure or not _async_with(line, fn))
                ):
                    reported.add(lock.id)
                    yield Witness(at, fn, confidence=0.9 if lock.sure else 0.65, lock=lock.id, line=line)


def _implicit(fn: Function, facts: Facts, reported: set[str]) -> Iterator[Witness]:
    """The awaits of `async for` and `async with`, and the yields of an asynchronous generator."""
    takes = {m.resource.id: m for m, _ in facts.events(fn) if m.kind == "take" and m.resource is not None}
    inner: list[tuple[ast.stmt | ast.expr, ast.expr]] = [(n, n.iter) for n in fn.loops if isinstance(n, ast.AsyncFor)]
    inner += [(n, n.items[0].context_expr) for n in fn.withs if isinstance(n, ast.AsyncWith)]
    inner += [(y, y) for y in fn.yields]  # an asynchronous generator waits there for its consumer
    for node, at in inner if takes else ():
        for name in sorted(facts.held_at(node, fn) & set(takes) - reported):
            lock, line = takes[name].resource, takes[name].line
            if lock is not None and lock.kind not in ASYNC_LOCKS and lock.sure and line < node.lineno:
                reported.add(name)
                yield Witness(at, fn, confidence=0.9, lock=name, line=line)


def _async_with(line: int, fn: Function) -> bool:
    """Whether the lock was taken by `async with` or `await`: a lock of unknown origin is then an asyncio lock."""
    if any(isinstance(w, ast.AsyncWith) and i.context_expr.lineno == line for w in fn.withs for i in w.items):
        return True
    return any(a.lineno == line for a in fn.awaits)
