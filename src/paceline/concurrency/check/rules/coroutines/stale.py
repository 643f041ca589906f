"""What was read before an await and is used after it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness, not_atomic
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    dotted,
    enclosing,
    is_constant,
    is_within,
    last_line,
    lines_of,
    parent,
    short_name,
)
from paceline.concurrency.check.threads.accesses import Access, iterates
from paceline.concurrency.check.threads.atomicity import (
    Pause,
    Region,
    end_of,
    is_locked,
    on_the_way,
    pause_in,
    pauses,
    violations,
)
from paceline.concurrency.check.threads.roots import in_loop
from paceline.concurrency.check.threads.shared_state import (
    accesses_of_class,
    accesses_of_elements,
    accesses_of_globals,
    is_keyed,
    is_teardown,
)
from paceline.concurrency.check.threads.sharing import may_be_alone


def stale_after_await(facts: Facts) -> Iterator[Witness]:
    """Report uses of attributes and items that were checked or stored before the last await."""
    for cls in facts.module.classes.values():
        tasks = [fn for fn in facts.module.functions if fn.cls is cls and pauses(fn)]
        if not tasks:
            continue
        for name, class_accesses in accesses_of_class(cls, facts).items():
            inherited = (accesses_of_class(base, facts).get(name, ()) for base in cls.ancestry[1:])
            accesses = [*class_accesses, *(a for each in inherited for a in each)]
            yield from _undone("present", "found", accesses, facts)
            yield from _undone("found", "item", accesses, facts)
            yield from _by_tasks(accesses, facts)
            yield from _limits(accesses, facts)
        for accesses in accesses_of_elements(cls, facts):
            yield from _by_tasks(accesses, facts)
    if any(fn.awaits for fn in facts.module.functions):
        for accesses in accesses_of_globals(facts).values():
            yield from _by_tasks(accesses, facts)


def _undone(established: str, form: str, accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    """What was checked before an await, and is used after it: the first in each function."""

    def preempts(region: Region, other: Access) -> bool:
        use, own_reset = region.use, established == "present" and other.fn is region.use.fn
        may_run = pause_in(region) is not None and not is_locked(use.node, use.fn, facts)
        return may_run and not own_reset and other.fn.name != "__init__"

    reported = set()
    for region, other in violations(established, accesses, facts, preempts):
        did = "is stored" if isinstance(region.check, ast.Assign) else "is checked"
        if region.use.fn not in reported:
            reported.add(region.use.fn)
            yield not_atomic(region, form, did=did, pause=pause_in(region), other=other)


def _by_tasks(accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    """What is written back after an await, and a set or dictionary that changes while a loop over it awaits."""
    changes = [a for a in accesses if a.changes]
    for access in accesses if changes else ():
        awaits = [p for p in pauses(access.fn) if on_the_way(p, access.node)] if access.fn.asynchronous else []
        read = _read_before(access, accesses, awaits)
        elsewhere = any(a.fn is not access.fn and a.fn.asynchronous for a in changes)
        # The change of one task alone cannot be lost.
        if read and (elsewhere or _several_tasks(access.fn, facts)):
            yield _late(access, "writes", read, "the change of task B is lost")
            return
        loop = parent(access.node) if access.kind == "iterate" else enclosing(access.node, ast.For)
        if not isinstance(loop, ast.For) or not iterates(access) or not is_keyed(access, facts):
            continue
        if is_teardown(access.fn):
            continue  # nothing is added any more
        others = (a for a in changes if a.kind in ("grow", "shrink") and not a.locks & access.locks)
        if any(is_within(p, loop.body) for p in awaits) and any(not is_within(a.node, loop.body) for a in others):
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
        awaits = [p for p in pauses(fn) if on_the_way(p, change.node)]
        for test in fn.tests:
            if not isinstance(test, ast.If | ast.While) or not _compares_size(test.test, change.node, counts):
                continue
            inside = change.line in lines_of(test)
            loops = isinstance(test, ast.While)
            leaves = (loops or isinstance(test.body[-1], ast.Return | ast.Raise | ast.Continue)) and not inside
            waits = not loops and not leaves and not inside and any(is_within(p, test.body) for p in awaits)
            start = test.lineno if inside or waits else last_line(test)
            between = any(start < p.lineno and end_of(p) <= change.line for p in awaits)
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


def _read_before(write: Access, accesses: list[Access], awaits: list[Pause]) -> int:
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
        between = any(last_line(assignment) < p.lineno and end_of(p) < write.line for p in awaits)
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
