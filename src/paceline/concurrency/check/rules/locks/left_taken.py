"""A "busy" mark, or a count, that stays as it is when the work in between fails; slots are duties of the row."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.graph import may_raise
from paceline.concurrency.check.syntax.names import dotted, is_constant
from paceline.concurrency.check.syntax.tree import following
from paceline.concurrency.check.threads.evidence import IMPORTS, of_threads
from paceline.concurrency.check.threads.shared_state import BEGINNINGS


def find(facts: Facts) -> Iterator[Witness]:
    """Report marks that an exception leaves set, and counts that it leaves too high."""
    for fn in facts.module.functions:
        yield from _counts(fn, facts)
        if fn.name not in BEGINNINGS and fn.cls is not None:
            yield from _marks(fn, facts)


def _marks(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`self.busy = True`, then work, then `self.busy = False`, without a `finally`."""
    assert fn.cls is not None
    for statement in (n for block in _blocks(fn.node) for n in block):
        mark = _set_mark(statement, fn)
        rest = following(statement) if mark else []
        reset = next((i for i, s in enumerate(rest) if _resets(s, mark, statement)), 0)
        work = next((s for s in rest[:reset] if _may_fail(s)), None)
        check = _asked(mark, statement, fn, facts) if work is not None else None
        if work is not None and check is not None:
            if not fn.asynchronous and of_threads(fn.cls, facts) < IMPORTS:
                continue
            yield _report_mark(fn, mark, statement, work, rest[reset], check)
            return


def _counts(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`self.used += 1`, then `return await connect()`: where that fails, nothing lowers the count."""
    for change in fn.augmented if fn.asynchronous and fn.cls is not None else ():
        mark = dotted(change.target)
        name = mark.rpartition(".")[2]
        if not isinstance(change.op, ast.Add) or not mark.startswith(f"{fn.self_name}."):
            continue
        back = [
            (m, a)
            for m in fn.cls.methods.values()  # type: ignore[union-attr]
            for a in m.augmented
            if isinstance(a.op, ast.Sub) and dotted(a.target) == f"{m.self_name}.{name}"
        ]
        rest = following(change)
        work = next((s for s in rest if _may_fail(s) and any(isinstance(n, ast.Await) for n in ast.walk(s))), None)
        hands_out = any(isinstance(s, ast.Return) and s.value is not None for s in rest)
        check = _asked(mark, change, fn, facts) if work is not None else None
        if back and all(m is not fn for m, _ in back) and hands_out and work is not None and check is not None:
            yield _report_mark(fn, mark, change, work, back[0][1], check)
            return


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The blocks of statements of a function, those of functions inside it left out."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
            for statement in block:
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield from _blocks(statement)


def _set_mark(statement: ast.stmt, fn: Function) -> str:
    """The attribute that a statement sets to True, or counts up."""
    if isinstance(statement, ast.Assign) and is_constant(statement.value, True):
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        target = statement.target
    else:
        return ""
    on_self = isinstance(target, ast.Attribute) and dotted(target.value) == fn.self_name
    return dotted(target) if on_self else ""


def _resets(statement: ast.stmt, mark: str, start: ast.stmt) -> bool:
    """Whether a statement resets the mark."""
    if isinstance(start, ast.Assign):
        same = isinstance(statement, ast.Assign) and dotted(statement.targets[0]) == mark
        return same and is_constant(statement.value, False)  # type: ignore[attr-defined]
    return (
        isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Sub) and dotted(statement.target) == mark
    )


def _may_fail(statement: ast.stmt) -> bool:
    """Whether a statement does work outside of a `try`: an await, or a call that is not about logs."""
    if isinstance(statement, ast.Try):
        return False
    calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call)]
    return may_raise(statement) and any(not _harmless(c) for c in calls)


def _harmless(call: ast.Call) -> bool:
    text = dotted(call.func).lower()
    return "log" in text or text in ("print", "len", "time.time", "str", "int", "time.sleep", "asyncio.sleep")


def _asked(mark: str, start: ast.stmt, fn: Function, facts: Facts) -> ast.AST | None:
    """A test by which others return, raise or wait while the mark is set, or compare the count with a limit."""
    counted = isinstance(start, ast.AugAssign)
    for method in fn.cls.methods.values() if fn.cls is not None else ():
        attribute = f"{method.self_name}.{mark.rpartition('.')[2]}"
        for test in method.tests:
            if counted:
                compares = [n for n in ast.walk(test.test) if isinstance(n, ast.Compare)]
                if any(dotted(part) == attribute for n in compares for part in (n.left, *n.comparators)):
                    return test
                continue
            leaves = isinstance(test.body[-1], ast.Return | ast.Raise | ast.Continue)
            if dotted(test.test) == attribute and (leaves or isinstance(test, ast.While)):
                return test
    return None


def _report_mark(fn: Function, mark: str, start: ast.stmt, work: ast.stmt, reset: ast.stmt, check: ast.AST) -> Witness:
    line = getattr(check, "lineno", fn.line)
    return Witness(start, fn, "mark", mark=mark, reset=reset, work=work, line=line)
