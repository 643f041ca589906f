"""A slot, a lock of the project's own or a "busy" mark that stays taken when the work in between fails."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from paceline.concurrency.check.flow.duties import Duty, one_of
from paceline.concurrency.check.libraries.catalogue import LOCKS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.graph import may_raise
from paceline.concurrency.check.syntax.names import dotted, is_constant, short_name
from paceline.concurrency.check.syntax.tree import following, parent, user_of
from paceline.concurrency.check.threads.evidence import IMPORTS, of_threads
from paceline.concurrency.check.threads.shared_state import BEGINNINGS

#: How a call takes something -> how another one releases it; both are beginnings of names.
PAIRS = (
    ("lock", ("unlock",)),
    ("acquire", ("release", "unlock", "give_back")),
    ("getconn", ("putconn",)),
    ("get_connection", ("release", "return_connection", "put_connection", "free_connection")),
    ("checkout", ("checkin", "release")),
    ("borrow", ("return_", "release", "give_back")),
)
CONDITIONS = (ast.If, ast.While, ast.For, ast.AsyncFor, ast.IfExp, ast.Lambda, ast.FunctionDef, ast.ExceptHandler)
NOT_TAKES = ("lockfile", "locked", "lock_path", "acquired", "acquire_lock_file")


class Taken(NamedTuple):
    """A call that takes something, and how its function releases it."""

    call: ast.Call
    back: ast.Call
    of: str  # what it is taken from


def find(facts: Facts) -> Iterator[Witness]:
    """Report slots that a path keeps, and marks that an exception leaves set."""
    for fn in facts.module.functions:
        yield from _counts(fn, facts)
        if fn is facts.module.top or fn.name.strip("_").lower().startswith(tuple(take for take, _ in PAIRS)):
            continue
        for slot in _taken(fn, facts):
            duty = Duty(fn, partial(_is_same_function, slot.back))
            starts = duty.steps(one_of([slot.call]))
            ways = sorted(duty.left_after(starts), key=lambda s: (s.raised, s.node.line))
            for skipped in ways[:1]:
                yield Witness(
                    slot.call,
                    fn,
                    confidence=0.55 if skipped.raised else 0.7,
                    slot=slot,
                    way=f"line {skipped.node.line} raises"
                    if skipped.raised
                    else f"the function leaves at line {skipped.node.line}",
                    skipped=skipped,
                    leaves="raises, and does not release it" if skipped.raised else "leaves without it",
                )
        if fn.name not in BEGINNINGS and fn.cls is not None:
            yield from _marks(fn, facts)


def _is_same_function(one: ast.Call, other: ast.Call) -> bool:
    return dotted(one.func) == dotted(other.func)


def _taken(fn: Function, facts: Facts) -> Iterator[Taken]:
    """The calls of a function that take something which a later call of it releases."""
    for call in fn.calls:
        name = short_name(call.func).lower().strip("_")
        pair = next((back for take, back in PAIRS if name.startswith(take)), ())
        if not pair or name.startswith(NOT_TAKES) or not isinstance(call.func, ast.Attribute) or not _plain(call):
            continue
        owner = dotted(call.func.value)
        lock = facts.module.resource(call.func.value, fn)
        if not owner or (lock is not None and lock.kind in LOCKS):
            continue
        backs = [c for c in fn.calls if c.lineno > call.lineno and _gives_back(c, pair, owner, _kept(call))]
        if backs and not _conditional(backs[0], fn):
            yield Taken(call, backs[0], owner)


def _plain(call: ast.Call) -> bool:
    """Whether the call is a statement of its own, or its result is kept under a name."""
    up = user_of(call)
    return isinstance(up, ast.Expr) or (isinstance(up, ast.Assign) and isinstance(up.targets[0], ast.Name))


def _kept(call: ast.Call) -> str:
    """The name of what was taken."""
    up = user_of(call)
    return dotted(up.targets[0]) if isinstance(up, ast.Assign) else ""


def _gives_back(call: ast.Call, pair: tuple[str, ...], owner: str, name: str) -> bool:
    """Whether a call releases what was taken of an owner; what was kept under a name must be named."""
    if not isinstance(call.func, ast.Attribute) or not call.func.attr.lower().strip("_").startswith(pair):
        return False
    if name:
        is_argument = any(dotted(argument) == name for argument in call.args)
        return (dotted(call.func.value) == owner and is_argument) or dotted(call.func.value) == name
    return dotted(call.func.value) == owner


def _conditional(back: ast.Call, fn: Function) -> bool:
    """Whether the release depends on a condition, is made on a failure only, or in a function inside this one."""
    at = parent(back)
    while at is not None and at is not fn.node:
        if isinstance(at, CONDITIONS):
            return True
        at = parent(at)
    return False


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
