"""A buffer that is read and then emptied, so that what another thread adds in between is lost."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import last_line, parent
from paceline.concurrency.check.threads.accesses import Access
from paceline.concurrency.check.threads.evidence import OWNS_LOCK, OWNS_OTHER, of_threads
from paceline.concurrency.check.threads.shared_state import accesses_of_class, accesses_of_globals, is_teardown

ADDS = ("append", "extend", "appendleft", "add", "update", "setdefault", "insert")
HOLDS = ("list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter", "StringIO", "BytesIO", "bytearray")


def find(facts: Facts) -> Iterator[Witness]:
    """Report functions that use a container as a whole and then empty it."""
    for cls in facts.module.classes.values():
        for accesses in accesses_of_class(cls, facts).values():
            yield from _emptied(accesses, cls, facts)
    for accesses in accesses_of_globals(facts).values():
        yield from _emptied(accesses, None, facts)


def _emptied(accesses: list[Access], cls: Class | None, facts: Facts) -> Iterator[Witness]:
    adding = [a for a in accesses if a.kind == "grow"]
    if not adding:
        return
    sign = of_threads(cls, facts, adding[0].line)
    for reset in accesses:
        if not _empties(reset):
            continue
        uses = [a for a in accesses if a.fn is reset.fn and a.line < reset.line and _whole(a)]
        pauses = [p for p in reset.fn.awaits if uses and uses[-1].line <= last_line(p) <= reset.line]
        added = next((a for a in adding if a.fn is not reset.fn or pauses), None)  # a second task may run the same
        if not uses or added is None or reset.locks & added.locks:
            continue
        if is_teardown(reset.fn) or (not pauses and (sign < OWNS_OTHER or reset.fn.asynchronous)):
            continue
        sure = 0.55 if pauses or sign >= OWNS_LOCK else 0.5
        yield Witness(
            reset.node,
            reset.fn,
            confidence=sure,
            reset=reset,
            use=uses[-1],
            added=added,
            who="task" if pauses else "thread",
            name=_text(reset),
        )
        return


def _empties(access: Access) -> bool:
    """`x = []` or `x.clear()`."""
    up = parent(access.node)
    if access.kind == "shrink":
        return isinstance(up, ast.Attribute) and up.attr == "clear"
    if access.kind != "write" or not isinstance(up, ast.Assign):
        return False
    value = up.value
    if isinstance(value, ast.Call):
        return short_name(value.func) in HOLDS and (not value.args or short_name(value.func) == "defaultdict")
    return (isinstance(value, ast.List | ast.Set) and not value.elts) or (
        isinstance(value, ast.Dict) and not value.keys
    )


def _whole(access: Access) -> bool:
    """Whether the container is handed on as a whole, or looped over: not its length, nor one item of it."""
    up = parent(access.node)
    if access.kind in ("iterate", "view"):
        return True
    if access.kind != "read":
        return False
    if isinstance(up, ast.Starred):
        return True
    if isinstance(up, ast.Call):
        return access.node in up.args and short_name(up.func) not in ("len", "bool", "isinstance", "id", "any")
    if isinstance(up, ast.Attribute):
        return up.attr in ("copy", "getvalue")
    return isinstance(up, ast.Assign) and up.value is access.node


def _text(access: Access) -> str:
    return ast.unparse(access.node) if isinstance(access.node, ast.expr) else access.thing
