"""What was read before an await and is used after it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    around,
    dotted,
    enclosing,
    is_constant,
    is_within,
    last_line,
    lines_of,
    parent,
    short_name,
    statement_of,
)
from paceline.concurrency.check.threads.accesses import Access, iterates
from paceline.concurrency.check.threads.roots import in_loop
from paceline.concurrency.check.threads.shared_state import (
    accesses_of_class,
    accesses_of_elements,
    accesses_of_globals,
    is_caught,
    is_keyed,
    is_teardown,
)
from paceline.concurrency.check.threads.sharing import checked, found_by, may_be_alone

Pause = ast.Await | ast.YieldFrom | ast.AsyncFor | ast.AsyncWith


def stale_after_await(facts: Facts) -> Iterator[Witness]:
    """Report uses of attributes and items that were checked or stored before the last await."""
    for cls in facts.module.classes.values():
        tasks = [fn for fn in facts.module.functions if fn.cls is cls and _pauses(fn)]
        if not tasks:
            continue
        for name, class_accesses in accesses_of_class(cls, facts).items():
            inherited = (accesses_of_class(base, facts).get(name, ()) for base in cls.ancestry[1:])
            accesses = [*class_accesses, *(a for each in inherited for a in each)]
            for fn in tasks:
                yield from _in(fn, accesses, facts)
                yield from _items(fn, accesses)
            yield from _by_tasks(accesses, facts)
            yield from _limits(accesses, facts)
        for accesses in accesses_of_elements(cls, facts):
            yield from _by_tasks(accesses, facts)
    if any(fn.awaits for fn in facts.module.functions):
        for accesses in accesses_of_globals(facts).values():
            yield from _by_tasks(accesses, facts)


def _pauses(fn: Function) -> list[Pause]:
    """The points at which a coroutine lets other tasks run, in order of lines."""
    pauses: list[Pause] = [*fn.awaits]
    pauses += [w for w in fn.withs if isinstance(w, ast.AsyncWith)]
    pauses += [loop for loop in fn.loops if isinstance(loop, ast.AsyncFor)]
    if fn.decorated("coroutine"):
        pauses += [n for n in ast.walk(fn.node) if isinstance(n, ast.YieldFrom)]
    return sorted(pauses, key=lambda node: node.lineno)


def _in(fn: Function, accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    mine = [a for a in accesses if a.fn is fn]
    resets = [a for a in accesses if a.kind == "none" and a.fn is not fn and a.fn.name != "__init__"]
    if not mine or not resets:
        return
    pauses = _pauses(fn)
    for use in mine:
        if use.kind != "read" or not isinstance(parent(use.node), ast.Attribute) or _guarded(use, facts):
            continue
        before = [a for a in mine if _end(a.node) < use.line and (_asked(a) or a.kind == "write") and _leads(a, use)]
        if not before or _renewed(use, mine, before[-1], pauses):
            continue
        last = before[-1]
        stored = parent(last.node) if last.kind == "write" else None
        after = [p for p in pauses if stored is None or not is_within(p, [stored])]  # type: ignore[list-item]
        pause = next((p for p in after if last.line <= _end(p) < use.line and _same_path(p, use.node)), None)
        other = next((g for g in resets if not g.locks & use.locks), None)
        if pause is not None and other is not None:
            did = "is stored" if last.changes else "is checked"
            yield Witness(use.node, use.fn, use=use, did=did, before=last, pause=pause, other=other)
            return


def _items(fn: Function, accesses: list[Access]) -> Iterator[Witness]:
    """`if key in self.d: await ...; self.d[key]`, where a function takes keys away."""
    removals = [a for a in accesses if a.kind == "shrink" and not is_teardown(a.fn)]
    for use in accesses if removals else ():
        check = checked(use) if use.fn is fn and not use.locks else None
        pauses = [p for p in _pauses(fn) if _same_path(p, use.node)] if check is not None else []
        if isinstance(check, ast.For):
            pause = next((p for p in pauses if is_within(p, check.body)), None)
            removal = next((r for r in removals if r.fn is not fn), None)
        elif check is not None:
            after = check.lineno if use.line in lines_of(check) else last_line(check)
            pause = next((p for p in pauses if after < p.lineno and _end(p) < use.line), None)
            removal = removals[0]
        if check is not None and pause is not None and removal is not None:
            first, reason = found_by(use, check, " in a loop that awaits", " after an await")
            yield Witness(
                use.node, fn, "item", reason=reason, pause=pause, removal=removal, check=check, first=first, use=use
            )
            return


def _by_tasks(accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    """What is written back after an await, and a set or dictionary that changes while a loop over it awaits."""
    changes = [a for a in accesses if a.changes]
    for access in accesses if changes else ():
        pauses = [p for p in _pauses(access.fn) if _same_path(p, access.node)] if access.fn.asynchronous else []
        read = _read_before(access, accesses, pauses)
        elsewhere = any(a.fn is not access.fn and a.fn.asynchronous for a in changes)
        if read and (elsewhere or _several_tasks(access.fn, facts)):
            yield _late(access, "writes", read, "the change of task B is lost")
            return
        loop = parent(access.node) if access.kind == "iterate" else enclosing(access.node, ast.For)
        if not isinstance(loop, ast.For) or not iterates(access) or not is_keyed(access, facts):
            continue
        if is_teardown(access.fn):
            continue  # nothing is added any more
        others = (a for a in changes if a.kind in ("grow", "shrink") and not a.locks & access.locks)
        if any(is_within(p, loop.body) for p in pauses) and any(not is_within(a.node, loop.body) for a in others):
            yield _late(access, "continues with", loop.lineno, "its size changed: RuntimeError")
            return


def _late(access: Access, then: str, since: int, so: str) -> Witness:
    return Witness(access.node, access.fn, "late", then=f"{then} {access.thing}", since=since, access=access, so=so)


def _limits(accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    """A check of a limit, an await, and then `self.used += 1`: other tasks pass the check, too.

    The check refuses (`if self.used >= self.limit: raise`), waits in a loop until there is room, or waits once (`if`).
    """
    for change in accesses:
        fn, statement = change.fn, parent(change.node)
        counts = isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add)
        grows = counts or change.kind == "grow"
        if not fn.asynchronous or change.locks or not grows or may_be_alone(fn, facts):
            continue
        pauses = [p for p in _pauses(fn) if _same_path(p, change.node)]
        for test in fn.tests:
            if not isinstance(test, ast.If | ast.While) or not _compares_size(test.test, change.node, counts):
                continue
            inside = change.line in lines_of(test)
            loops = isinstance(test, ast.While)
            leaves = (loops or isinstance(test.body[-1], ast.Return | ast.Raise | ast.Continue)) and not inside
            waits = not loops and not leaves and not inside and any(is_within(p, test.body) for p in pauses)
            start = test.lineno if inside or waits else last_line(test)
            between = any(start < p.lineno and _end(p) <= change.line for p in pauses)
            if inside and loops:
                continue  # the next round asks again
            if between and (inside or ((leaves or waits) and last_line(test) < change.line)):
                yield _late(change, "increases", test.lineno, "both are counted: more than the limit")
                return


def _compares_size(test: ast.expr, node: ast.AST, counts: bool) -> bool:
    """Whether a test compares a count, or the length of a container, with a limit."""
    for compare in (n for n in ast.walk(test) if isinstance(n, ast.Compare)):
        if not isinstance(compare.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE | ast.Eq):
            continue
        for side in (compare.left, *compare.comparators):
            sized = isinstance(side, ast.Call) and short_name(side.func) == "len" and len(side.args) == 1
            if dotted(side.args[0] if sized else side) == dotted(node) and sized is not counts:  # type: ignore[attr-defined]
                return not any(is_constant(side, 0) for side in (compare.left, *compare.comparators))
    return False


def _read_before(write: Access, accesses: list[Access], pauses: list[Pause]) -> int:
    """The line at which the value was read that this change writes back after an await; 0 where there is none."""
    statement = parent(write.node) if write.kind != "grow" else None
    if not isinstance(statement, ast.Assign | ast.AugAssign) or write.kind not in ("write", "update"):
        return 0
    if isinstance(statement, ast.AugAssign):
        return statement.lineno if any(isinstance(n, ast.Await) for n in ast.walk(statement.value)) else 0
    used = {n.id for n in ast.walk(statement.value) if isinstance(n, ast.Name)}
    for read in accesses:
        assignment = parent(read.node)
        if read.fn is not write.fn or read.kind != "read" or read.locks & write.locks:
            continue
        if not isinstance(assignment, ast.Assign):
            continue
        named = (
            isinstance(assignment.targets[0], ast.Name)
            and assignment.targets[0].id in used
            and assignment.value is read.node
        )
        between = any(_end(assignment) < p.lineno and _end(p) < write.line for p in pauses)
        if named and between and not isinstance(statement.value, ast.Name):
            return read.line
    return 0


def _several_tasks(fn: Function, facts: Facts) -> bool:
    """Whether this file starts a coroutine as several tasks: in a loop, or in more than one place."""
    calls = [(caller, event.effect.node) for caller, event in facts.callers.get(id(fn), ())]
    started = [(caller, node) for caller, node in calls if not isinstance(parent(node), ast.Await)]
    if len(started) > 1 or any(in_loop(node, caller) for caller, node in started):
        return True
    return any(_handles(caller, facts) for caller, node in calls if isinstance(parent(node), ast.Await))


def _handles(fn: Function, facts: Facts) -> bool:
    """Whether a coroutine answers requests: others call it, each with its own, and nothing in the file does."""
    answers = not _REQUESTS.isdisjoint(fn.parameters)
    return answers and not facts.callers.get(id(fn)) and not fn.name.startswith("__")


_REQUESTS = {"request", "message", "msg", "event", "ctx", "websocket", "ws", "packet", "reader"}


def _asked(access: Access) -> bool:
    """Whether this is part of a test, or of an assertion."""
    at: ast.AST | None = access.node
    while at is not None and not isinstance(at, ast.stmt):
        up = parent(at)
        if isinstance(up, ast.Attribute | ast.Call | ast.Subscript):
            return False
        if isinstance(up, ast.If | ast.While | ast.Assert) and up.test is at:
            return True
        at = up
    return False


def _leads(before: Access, use: Access) -> bool:
    """Whether the check or assignment is on every way to the use: in a statement list around it."""
    at = statement_of(before.node)
    around = parent(at) if at is not None else None
    if isinstance(at, ast.If) and use.line in lines_of(at):
        return True
    inside: ast.AST | None = use.node
    while inside is not None and inside is not around:
        inside = parent(inside)
    return inside is around and around is not None


def _renewed(use: Access, mine: list[Access], before: Access, pauses: list[Pause]) -> bool:
    """Whether another check or assignment lies between the last await and the use."""
    last = max((_end(p) for p in pauses if _end(p) < use.line), default=0)
    return any(last <= a.line <= use.line and a is not use and (_asked(a) or a.changes) for a in mine)


def _guarded(use: Access, facts: Facts) -> bool:
    """Whether a handler catches what goes wrong, or a condition of the same statement asks again."""
    if is_caught(use.node, "AttributeError", "TypeError") or use.locks:
        return True
    entered = (item.context_expr for block in around(use.node, ast.AsyncWith) for item in block.items)
    if any(facts.module.resource(context, use.fn) for context in entered):
        return True
    text = dotted(use.node)
    at = parent(use.node)
    while at is not None and not isinstance(at, ast.stmt):
        if isinstance(at, ast.BoolOp | ast.IfExp) and any(
            dotted(n) == text for n in ast.walk(at) if n is not use.node and isinstance(n, ast.Attribute)
        ):
            return True
        at = parent(at)
    return False


def _same_path(pause: Pause, use: ast.AST) -> bool:
    """Whether the use can come after the await: not in another branch, nor after the branch has left."""
    at: ast.AST = pause
    while (up := parent(at)) is not None and not isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef):
        for field in ("body", "orelse", "handlers", "finalbody"):
            block = getattr(up, field, None)
            if isinstance(block, list) and at in block and not is_within(use, block):
                if isinstance(block[-1], ast.Return | ast.Raise | ast.Continue | ast.Break):
                    return False
                if isinstance(up, ast.If) and is_within(use, up.orelse if field == "body" else up.body):
                    return False
        at = up
    return True


def _end(node: ast.AST) -> int:
    if isinstance(node, ast.AsyncFor | ast.AsyncWith):
        return node.lineno
    return last_line(node)
