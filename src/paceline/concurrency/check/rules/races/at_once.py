"""Decisions, generators, connections and libraries that two threads use at once."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from paceline.concurrency.check import libraries
from paceline.concurrency.check.flow.effects import Effect, runs_now
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts, same_object
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    dotted,
    following,
    keyword,
    names_of,
    on_different_branches,
    parent,
    short_name,
)
from paceline.concurrency.check.threads.accesses import Access
from paceline.concurrency.check.threads.atomicity import LEAVES, absent, regions
from paceline.concurrency.check.threads.shared_state import (
    BEGINNINGS,
    accesses_of_class,
    is_caught,
    is_teardown,
    shared_things,
)
from paceline.concurrency.check.threads.sharing import may_coincide, may_overlap
from paceline.concurrency.check.values.calls import type_name

#: What ends an object before another one takes its place.
ENDS = ("cancel", "close", "stop", "terminate", "kill", "shutdown", "disconnect", "release")


def decided_twice(facts: Facts) -> Iterator[Witness]:
    """Report tests of attributes and globals whose branch changes them, in functions that several threads run."""
    if not facts.has_threads:
        return
    for accesses, _ in shared_things(facts):
        if any(a.changes for a in accesses):
            yield from list(_decided(accesses, facts)) or _replaced(accesses, facts)
    yield from _between_calls(facts)


def _between_calls(facts: Facts) -> Iterator[Witness]:
    """`if stock.available(item): stock.take(item)`, or `n = stock.read(item); stock.write(item, n + 1)`.

    Each call may hold the object's lock, which is free in between; so is one of which every thread has its own.
    """
    for fn in facts.module.functions:
        effects = facts.walker.effects(fn) if not fn.asynchronous else ()
        calls = {id(e.node): e for e in effects if e.callee is not None and e.callee.cls is not None}
        for one, other in _pairs(fn, calls) if len(calls) > 1 else ():
            locks, each = facts.held_at(one.node, fn), fn.cls.name if fn.cls and facts.runs_on_own(fn) else ""
            shared = _same_state(one, other, bool(locks), fn, facts)
            # A lock around both calls is one of the thread's own object, and so keeps no other thread out.
            apart = all(lock.startswith(f"{each}.") for lock in locks)
            if shared is not None and apart and may_overlap(fn, fn, facts):
                yield Witness(other.node, fn, "calls", shared=shared, one=one, other=other)
                break


def _pairs(fn: Function, calls: dict[int, Effect]) -> Iterator[tuple[Effect, Effect]]:
    """The calls of a test with those that it decides about, and those whose result is in a variable that others get."""
    parts: list[tuple[ast.expr, Iterable[ast.AST]]] = [(test.test, _branch(test)) for test in fn.tests]
    for target, value in fn.assigns:
        name, later = dotted(target), [c for c in fn.calls if c.lineno > value.lineno]
        parts.append((value, [c for c in later if name in {n.id for a in c.args for n in names_of(a)}]))
    for first, then in parts:
        inside = [calls[id(n)] for s in then for n in ast.walk(s) if id(n) in calls]
        yield from ((calls[id(n)], other) for n in ast.walk(first) if id(n) in calls for other in inside)


def _same_state(one: Effect, other: Effect, locked: bool, fn: Function, facts: Facts) -> str | None:
    """What one method of a shared object reads under a lock, its own or the caller's, and the other one changes."""
    reads, changes = one.callee, other.callee
    methods = [getattr(effect.node, "func", None) for effect in (one, other)]
    receivers = {dotted(method.value) if isinstance(method, ast.Attribute) else "" for method in methods}
    if reads is None or changes is None or reads is changes or len(receivers) != 1 or "" in receivers:
        return None
    if reads.cls is not changes.cls or reads.cls is None or reads.cls is fn.cls:
        return None
    for name, accesses in accesses_of_class(reads.cls, facts).items() if not facts.runs_on_own(reads) else ():
        read = next((a for a in accesses if a.fn is reads and not a.changes and (locked or a.locks)), None)
        change = next((a for a in accesses if a.fn is changes and a.changes and (locked or a.locks)), None)
        taken = any(a.fn is reads and a.changes for a in accesses)  # what was read is this caller's alone
        if read is not None and change is not None and not taken and (locked or read.locks & change.locks):
            return f"{reads.cls.name}.{name}"
    return None


def _decided(accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    """The first decision by a value that is changed on the branch taken."""
    for read in accesses:
        test = _test(read)
        # Between a test and its branch no other task runs unless there is an await; a beginning and an end run once.
        if test is None or read.locks or read.fn.asynchronous or read.fn.name in BEGINNINGS or is_teardown(read.fn):
            continue
        branch = _branch(test)
        change, callee = _change(read, branch, accesses, facts)
        if change is None or not _matters(test, read, change, branch) or not may_coincide(read, read, facts):
            continue
        yield _report(read, change, callee)
        return


def _replaced(accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    """`self.timer.cancel()` and then `self.timer = Timer(...)`: of two that are made at once, one is not cancelled."""
    for change in accesses:
        statement, fn = parent(change.node), change.fn
        makes = change.kind == "write" and isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
        if not makes or change.locks or fn.asynchronous or fn.name in BEGINNINGS or is_teardown(fn):
            continue
        for read in (a for a in accesses if a.fn is fn and a.line < change.line and not a.locks):
            method = parent(read.node)
            ends = isinstance(method, ast.Attribute) and method.attr in ENDS and isinstance(parent(method), ast.Call)
            if ends and may_coincide(change, change, facts):
                yield _report(read, change, None)
                return


def _test(read: Access) -> ast.If | ast.While | None:
    """The test whose outcome a read decides: a comparison, or a flag alone."""
    if read.changes or not isinstance(read.node, ast.expr):
        return None
    at: ast.AST = read.node
    up = parent(at)
    while isinstance(up, ast.expr):
        # Any other call makes something new of the value, and the test is about that.
        if isinstance(up, ast.Call) and not (isinstance(up.func, ast.Name) and up.func.id in ("len", "bool", "int")):
            return None
        if isinstance(up, ast.Subscript | ast.Attribute | ast.Lambda | ast.IfExp | ast.GeneratorExp | ast.ListComp):
            return None
        # Membership and identity are checks of existence, which PC401 and PC405 report.
        if isinstance(up, ast.Compare) and isinstance(up.ops[0], ast.In | ast.NotIn | ast.Is | ast.IsNot):
            return None
        at, up = up, parent(up)
    return up if isinstance(up, ast.If | ast.While) and up.test is at else None


def _branch(test: ast.If | ast.While) -> list[ast.stmt]:
    """The statements that run because of a test: its body, and what follows where the body leaves instead."""
    leaves = isinstance(test, ast.If) and isinstance(test.body[-1], LEAVES)
    return [*test.body, *test.orelse, *(following(test) if leaves else ())]


def _change(
    read: Access, branch: list[ast.stmt], accesses: list[Access], facts: Facts
) -> tuple[Access | None, Function | None]:
    """A change without a lock on a branch, or in a method of the same object that it calls."""
    inside = {id(node) for statement in branch for node in ast.walk(statement)}
    changes = [a for a in accesses if a.changes and not a.locks and a.fn is read.fn and id(a.node) in inside]
    for change in changes:
        if dotted(change.node) == dotted(read.node):
            return change, None
    for effect in facts.walker.effects(read.fn):
        callee = effect.callee
        if callee is None or id(effect.node) not in inside or not runs_now(effect) or callee is read.fn:
            continue
        if not same_object(effect, read.fn) or facts.held_at(effect.node, read.fn):
            continue
        for change in accesses:
            if change.fn is callee and change.changes and not change.locks and not _asks_again(callee, accesses):
                return change, callee
    return None, None


def _asks_again(callee: Function, accesses: list[Access]) -> bool:
    """Whether a method tests the value itself, or has nothing to do with a decision: it starts or ends the object."""
    return callee.name in BEGINNINGS or any(a.fn is callee and _test(a) is not None for a in accesses)


def _matters(test: ast.If | ast.While, read: Access, change: Access, branch: list[ast.stmt]) -> bool:
    """Whether two threads that both take the branch do harm, and no other rule reports it."""
    if absent(test.test) == dotted(read.node) and change.kind == "write" and not _is_flag(change):
        return False  # created on first use: PC405
    if isinstance(test, ast.While) or change.kind == "update":
        return False  # a lost update: PC402
    # The thread that comes second is expected to fail, and its failure is handled.
    if is_caught(change.node, "IndexError", "KeyError", "LookupError", "ValueError"):
        return False
    compared = any(isinstance(n, ast.Compare) for n in ast.walk(test.test))
    if change.kind in ("grow", "shrink"):
        return compared and not any((*regions("found", [change]), *regions("missing", [change])))  # PC401
    if change.kind == "none" or _is_flag(change):
        # Setting a flag twice does no harm by itself; doing twice what it guards does.
        works = [s for s in branch if any(isinstance(n, ast.Call) for n in ast.walk(s))]
        return bool(works) and _turns(test, change) and change.fn is read.fn
    return change.kind == "write" and compared


def _is_flag(change: Access) -> bool:
    up = parent(change.node)
    return isinstance(up, ast.Assign) and isinstance(up.value, ast.Constant)


def _turns(test: ast.If | ast.While, change: Access) -> bool:
    """Whether a flag that was found unset is set: one thread is meant to continue."""
    up = parent(change.node)
    asked_for_none = absent(test.test) == dotted(change.node)
    value = up.value.value if isinstance(up, ast.Assign) and isinstance(up.value, ast.Constant) else None
    first = isinstance(test, ast.If) and isinstance(test.body[-1], LEAVES) and dotted(test.test) == dotted(change.node)
    return bool(value) and (asked_for_none or first)


def _report(read: Access, change: Access, callee: Function | None) -> Witness:
    return Witness(
        read.node,
        read.fn,
        read=read,
        where=f"{callee.qualname} changes it" if callee is not None else "it is changed",
        change=change,
    )


def generator_shared(facts: Facts) -> Iterator[Witness]:
    """Report `next()` of a generator that an attribute or a global holds, in functions that several threads run."""
    top = facts.module.top
    for accesses, cls in shared_things(facts) if facts.has_threads else ():
        name = accesses[0].thing.rpartition(".")[2]
        values = cls.values.get(name, ()) if cls is not None else [(top.bound.get(name), top)]
        if any(_is_generator(value, fn, facts) for value, fn in values):
            yield from _advanced_by_one(accesses, facts)


def _is_generator(value: ast.expr | None, fn: Function, facts: Facts) -> bool:
    """Whether a value is a generator of Python code."""
    if isinstance(value, ast.GeneratorExp):
        return True
    callee = facts.module.callee(value, fn) if isinstance(value, ast.Call) else None
    return (
        callee is not None and callee.generator and not callee.asynchronous and not callee.decorated("contextmanager")
    )


def _advanced_by_one(accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    takes = [a for a in accesses if _takes(a.node) and not a.locks]
    for access in takes:
        other = next((o for o in takes if may_coincide(access, o, facts)), None)
        if other is not None:
            yield Witness(access.node, access.fn, "of-one", access=access, other=other)
            return


def _takes(node: ast.AST) -> bool:
    call = parent(node)
    if isinstance(call, ast.Call) and node in call.args:
        return short_name(call.func) == "next"
    return isinstance(call, ast.Attribute) and call.attr in ("send", "__next__")


SENDS = ("sendall", "write", "sendmsg")


def interleaved(facts: Facts) -> Iterator[Witness]:
    """Report two sends over a connection of the object in a function that several threads run at once."""
    for fn in facts.module.functions if facts.has_threads else ():
        # An object of which each thread has its own has a connection of its own, too.
        if fn.cls is None or fn.asynchronous or facts.runs_on_own(fn):
            continue
        sends: dict[str, list[ast.Call]] = {}
        for call in sorted(fn.calls, key=lambda c: c.lineno):
            if isinstance(call.func, ast.Attribute) and call.func.attr in SENDS and not facts.held_at(call, fn):
                owner = dotted(call.func.value)
                if owner.startswith(f"{fn.self_name}.") and "(" not in owner:
                    sends.setdefault(owner, []).append(call)
        for owner, calls in sends.items():
            later = next((c for c in calls[1:] if not on_different_branches(calls[0], c)), None)
            if later is not None and may_overlap(fn, fn, facts):
                yield Witness(later, fn, owner=owner, first=calls[0])


def thread_bound(facts: Facts) -> Iterator[Witness]:
    """Report such objects in attributes that a thread and another one use."""
    for accesses, cls in shared_things(facts) if facts.has_threads else ():
        used = [a for a in accesses if isinstance(parent(a.node), ast.Attribute) and not is_teardown(a.fn)]
        in_threads = [a for a in used if facts.threads_of(a.fn)]
        if cls is not None and in_threads:
            yield from _kept_by_one(used, in_threads, cls.values.get(accesses[0].thing.rpartition(".")[2], []), facts)


def _kept_by_one(
    used: list[Access], in_threads: list[Access], values: list[tuple[ast.expr, Function]], facts: Facts
) -> Iterator[Witness]:
    """The first use in a thread of an object that only its maker, or only one thread at a time, may use."""
    makers = [(v, f) for v, f in values if isinstance(v, ast.Call)]
    kinds = {libraries.bound(type_name(value, fn, facts.module)) for value, fn in makers}
    if kinds == {"maker"}:
        # With `check_same_thread=False` sqlite3 refuses no thread.
        allowed = any(keyword(c, "check_same_thread") is not None for c, _ in facts.module.calls)
        if allowed or any(facts.threads_of(fn) and fn.name != "__init__" for _, fn in makers):
            return
        at, line = in_threads[0], min(value.lineno for value, _ in makers)
        what = f"was opened by another thread (line {line}), and refuses this one"
        yield Witness(at.node, at.fn, confidence=0.7, access=at, what=what, line=line)
    for at in in_threads if kinds == {"one"} else ():
        others = (o for o in used if o.fn is not at.fn and not o.locks & at.locks and may_coincide(at, o, facts))
        if (other := next(others, None)) is not None:
            what = f"is used by {other.fn.qualname} in another thread at the same time"
            yield Witness(at.node, at.fn, confidence=0.6, access=at, what=what, line=other.line)
            return
