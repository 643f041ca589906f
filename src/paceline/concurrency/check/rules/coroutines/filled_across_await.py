"""A collection that is emptied, and filled again across awaits."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import last_line, parent
from paceline.concurrency.check.threads.accesses import Access
from paceline.concurrency.check.threads.shared_state import BEGINNINGS, accesses_of_class, is_teardown


def find(facts: Facts) -> Iterator[Witness]:
    """Report coroutines that empty an attribute, await, and fill it, where another method reads it."""
    for cls in facts.module.classes.values():
        if not any(fn.cls is cls and fn.asynchronous for fn in facts.module.functions):
            continue
        for accesses in accesses_of_class(cls, facts).values():
            yield from _of_one(accesses)


def _of_one(accesses: list[Access]) -> Iterator[Witness]:
    for emptied in accesses:
        fn = emptied.fn
        if not fn.asynchronous or emptied.locks or is_teardown(fn) or not _empties(emptied) or _holds_lock(fn):
            continue
        filled = next((a for a in accesses if _fills(a, fn) and (a.fn is not fn or a.line > emptied.line)), None)
        last = filled.line if filled is not None and filled.fn is fn else last_line(fn.body)
        pause = next((p for p in fn.awaits if filled and emptied.line < p.lineno <= last), None)
        read = next((a for a in accesses if a.fn is not fn and not a.changes and a.fn.name not in BEGINNINGS), None)
        if filled is not None and pause is not None and read is not None:
            yield Witness(emptied.node, emptied.fn, emptied=emptied, filled=filled, pause=pause.lineno, read=read)
            return


def _holds_lock(fn: Function) -> bool:
    """Whether the coroutine holds something, most likely a lock, for a while."""
    return any("lock" in ast.unparse(i.context_expr).lower() for w in fn.withs for i in w.items)


def _empties(access: Access) -> bool:
    """Whether an empty collection is assigned, or the old one cleared."""
    up = parent(access.node)
    if isinstance(up, ast.Attribute):
        return up.attr == "clear"
    value = up.value if isinstance(up, ast.Assign | ast.AnnAssign) else None
    if isinstance(value, ast.List | ast.Set):
        return not value.elts
    if isinstance(value, ast.Call):
        return (
            short_name(value.func) in ("list", "dict", "set", "defaultdict", "OrderedDict", "deque") and not value.args
        )
    return isinstance(value, ast.Dict) and not value.keys


def _fills(access: Access, fn: Function) -> bool:
    """Whether this adds to the collection: in the coroutine, in a function inside it, or in one that it awaits."""
    method = f"{fn.self_name}.{access.fn.name}"
    awaited = any(isinstance(a.value, ast.Call) and dotted(a.value.func) == method for a in fn.awaits)
    return access.kind == "grow" and (access.fn is fn or access.fn.outer is fn or (awaited and access.fn.asynchronous))
