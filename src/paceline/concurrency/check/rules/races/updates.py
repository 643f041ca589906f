"""Changes of shared state that are lost: read, changed and written back, or read and emptied."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check import libraries
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.tree import dotted, enclosing, last_line, parent, short_name
from paceline.concurrency.check.threads.accesses import Access
from paceline.concurrency.check.threads.atomicity import absent, makes_one, regions
from paceline.concurrency.check.threads.evidence import OWNS_LOCK, OWNS_OTHER, claims_safety, of_threads, owns_lock
from paceline.concurrency.check.threads.shared_state import (
    BEGINNINGS,
    accesses_of_class,
    accesses_of_globals,
    accesses_of_locals,
    is_teardown,
    makes_empty,
    shared_things,
)
from paceline.concurrency.check.threads.sharing import of_class
from paceline.concurrency.check.values.calls import type_name


def lost_update(facts: Facts) -> Iterator[Witness]:
    """Report read-modify-writes of attributes and globals that another thread may interrupt."""
    for cls in facts.module.classes.values():
        locked = owns_lock(cls, facts) or claims_safety(cls)
        served = not locked and _has_queue(cls, facts)
        for accesses in accesses_of_class(cls, facts).values() if locked or served or facts.has_threads else ():
            findings = list(_attribute(accesses, facts)) if locked else list(_balance(accesses)) if served else []
            yield from findings or _in_threads(accesses, facts)
    if facts.has_threads:
        for accesses in accesses_of_globals(facts).values():
            yield from _global(accesses, facts)
        for accesses in accesses_of_locals(facts):
            yield from _in_threads(accesses, facts)
    yield from _between_processes(facts)
    for fn in facts.module.functions:
        yield from _last_number(fn, facts)


def _last_number(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`if number <= last: number = last + 1` and `last = number`: numbers that must differ, made by two threads."""
    for test in fn.tests if not fn.asynchronous else ():
        statement = test.body[0] if isinstance(test, ast.If) and len(test.body) == 1 else None
        total = statement.value if isinstance(statement, ast.Assign) else None
        if not isinstance(statement, ast.Assign) or not isinstance(total, ast.BinOp) or facts.held_at(test, fn):
            continue
        last, number = dotted(total.left), dotted(statement.targets[0])
        adds = isinstance(total.op, ast.Add) and isinstance(total.right, ast.Constant)
        persists = last in fn.globals or (bool(fn.self_name) and last.startswith(f"{fn.self_name}."))
        compared = {
            dotted(n) for c in ast.walk(test.test) if isinstance(c, ast.Compare) for n in (c.left, *c.comparators)
        }
        stored = next((t for t, v in fn.assigns if dotted(t) == last and dotted(v) == number), None)
        if adds and persists and {last, number} <= compared and stored is not None and stored.lineno > test.lineno:
            access = Access(last, "update", stored, fn, frozenset())
            yield _report(access, None)
            return


def _between_processes(facts: Facts) -> Iterator[Witness]:
    """`value.value += 1` and `proxy[key] += 1` of what processes share: only the read and the write are safe."""
    starts = [r for r in facts.roots if r.kind == "process"]
    tags = {f"process:{r.function.qualname}" for r in starts if len(starts) > 1 or r.several}
    for fn in facts.module.functions if tags else ():
        for target in _changed(fn) if facts.reached.get(id(fn), set()) & tags else ():
            owner = target.value if isinstance(target, ast.Attribute | ast.Subscript) else None
            if owner is not None and type_name(owner, fn, facts.module) in _SHARED and not facts.held_at(target, fn):
                yield _report(Access(ast.unparse(target), "update", target, fn, frozenset()), None, fn.qualname)


def _changed(fn: Function) -> Iterator[ast.expr]:
    """What a function changes to a value that it computes from the old one, or where it has found a key missing."""
    yield from (change.target for change in fn.augmented)
    for target, value in fn.assigns:
        text = dotted(target.value if isinstance(target, ast.Subscript) else target)
        if not text or not isinstance(target, ast.Subscript | ast.Attribute):
            continue
        before = [fn.bound[n.id] for n in ast.walk(value) if isinstance(n, ast.Name) and n.id in fn.bound]
        access = Access(text, "grow", target.value, fn, frozenset())
        missing = isinstance(target, ast.Subscript) and any(regions("missing", [access]))
        if missing or any(dotted(n) == text for part in (value, *before) for n in ast.walk(part)):
            yield target


_SHARED = libraries.names("objects that processes share")


def _has_queue(cls: Class, facts: Facts) -> bool:
    """Whether a class keeps a queue of threads, and so is meant for several."""
    kinds = (facts.module.attribute(cls, name) for name in cls.values)
    return any(found is not None and found.kind in ("Queue", "SimpleQueue") for found in kinds)


def _balance(accesses: list[Access]) -> Iterator[Witness]:
    """A count that one method increases and another one decreases, and by which a third decision is made."""
    updates = [a for a in accesses if a.kind == "update" and not a.locks]
    signs = {type(getattr(parent(a.node), "op", None)): a for a in updates}
    up, down = signs.get(ast.Add), signs.get(ast.Sub)
    compared = any(isinstance(parent(a.node), ast.Compare) for a in accesses)
    if up is not None and down is not None and up.fn is not down.fn and compared and not up.fn.asynchronous:
        yield _report(up, None, down.fn.qualname)


def _attribute(accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    """Unlocked updates of an attribute that is locked elsewhere, or whose value is returned."""
    updates = [a for a in accesses if a.kind == "update" or _from_before(a)]
    guarded = [a for a in accesses if a.changes and a.locks]
    bare = [a for a in updates if not a.locks and not _handed_out(a, facts) and not _without_lock(a, guarded)]
    for access in bare:
        names = {dotted(access.node), *_from_before(access)}
        returned = any(
            r.value is not None and any(dotted(n) in names for n in ast.walk(r.value)) for r in access.fn.returns
        )
        if guarded or returned:
            yield _report(access, guarded[0] if guarded else None)
            return


def _without_lock(access: Access, guarded: list[Access]) -> bool:
    """Whether a test has found that there is no lock: `if self.lock is not None: ... else: self.total += n`."""
    locks = {lock.rpartition(".")[2] for other in guarded for lock in other.locks if other.fn is access.fn}
    around = enclosing(access.node, ast.If)
    nodes = (n for n in ast.walk(around.test)) if isinstance(around, ast.If) else ()
    return any(isinstance(n, ast.Name | ast.Attribute) and short_name(n) in locks for n in nodes)


def _from_before(access: Access) -> set[str]:
    """The variables with an old value of an attribute, from which the new one is made: `n = self.n; self.n = n + 1`."""
    up = parent(access.node) if access.kind == "write" else None
    names = {n.id for n in ast.walk(up.value) if isinstance(n, ast.Name)} if isinstance(up, ast.Assign) else set()
    older = {name: access.fn.bound[name] for name in names & access.fn.bound.keys()}
    text = dotted(access.node)
    return {name for name, value in older.items() if any(dotted(n) == text for n in ast.walk(value))}


def _in_threads(accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    """A read-modify-write in a thread that is started more than once, or in two kinds of thread."""
    inside = [a for a in accesses if a.kind == "update" and facts.threads_of(a.fn)]
    for access in inside:
        other = "" if access.locks else _others(access, inside, facts)
        if other:
            yield _report(access, None, other)
            return
    for access in inside:
        reset = next((a for a in accesses if a.kind in ("write", "none") and _overwritten(a, access, facts)), None)
        if reset is not None:
            yield _report(access, None, reset.fn.qualname)
            return


def _overwritten(write: Access, update: Access, facts: Facts) -> bool:
    """Whether a plain write may come between the read and the write of an update that a thread makes."""
    fn = write.fn
    # When a private method runs is up to its callers, which may do so before the threads.
    if write.locks or update.locks or facts.threads_of(fn) or fn.name.startswith("_") or fn.name in BEGINNINGS:
        return False
    started = any(short_name(c.func) in ("start", "submit") for c in fn.calls)
    joined = any(short_name(c.func) in ("join", "shutdown", "wait") and c.lineno < write.line for c in fn.calls)
    # What starts the threads itself writes before them, and what has joined them after.
    return not started and not joined


def _handed_out(access: Access, facts: Facts) -> bool:
    """Whether this is in a nested function, whose callers and locks are not known."""
    return access.fn.outer is not facts.module.top and not facts.threads_of(access.fn)


def _global(accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    """A read-modify-write in threads, or changes in two threads, without one lock over both."""
    inside = [a for a in accesses if a.changes and facts.threads_of(a.fn)]
    if not inside:
        return
    filled = {id(r.use.node) for r in regions("missing", accesses) if makes_one(r, facts)}  # reported as PC401
    for access in inside:
        if access.locks or id(access.node) in filled or _on_first_use(access):
            continue
        reads = access.kind == "update" or any(
            a.fn is access.fn and not a.changes and a.line <= access.line for a in accesses
        )
        others = _others(access, inside, facts)
        if others and (reads or (access.kind == "write" and not _constant(access))):
            yield _report(access, None, others)
            return
        apart = (o for o in inside if o.fn is not access.fn and not o.locks and _in_others(o.fn, access.fn, facts))
        if access.kind == "write" and not _flag(access) and (other := next(apart, None)) is not None:
            yield _report(access, None, other.fn.qualname)
            return


def _on_first_use(access: Access) -> bool:
    """Whether this is created where it was found to be missing, which PC405 reports."""
    test = enclosing(access.node, ast.If)
    return isinstance(test, ast.If) and absent(test.test) == access.thing


def _others(access: Access, inside: list[Access], facts: Facts) -> str:
    """The function that changes it at the same time in another thread, possibly the same function; else empty."""
    mine = facts.threads_of(access.fn)
    # Each thread has an object of its own, so only what belongs to the class is shared.
    if facts.runs_on_own(access.fn) and not of_class(access, facts):
        return ""
    for other in inside:
        if _in_others(other.fn, access.fn, facts):
            return other.fn.qualname
    roots = [r for r in facts.roots if f"{r.kind}:{r.function.qualname}" in mine]
    started = [r for r in roots if r.function is roots[0].function]
    together = len(started) > 1 and not all(r.alone for r in started)
    return access.fn.qualname if together or any(r.several for r in roots) else ""


def _in_others(one: Function, other: Function, facts: Facts) -> bool:
    """Whether two functions run in different threads, of which not each is joined before the next one is started."""
    mine, theirs = facts.threads_of(one), facts.threads_of(other)
    in_turn = all(r.alone for r in facts.roots if f"{r.kind}:{r.function.qualname}" in mine | theirs)
    return mine != theirs and not in_turn


def _constant(access: Access) -> bool:
    up = parent(access.node)
    return isinstance(up, ast.Assign | ast.AnnAssign) and isinstance(up.value, ast.Constant)


def _flag(access: Access) -> bool:
    """Whether a flag, a string or None is assigned: then the last assignment simply wins."""
    up = parent(access.node)
    value = up.value if isinstance(up, ast.Assign | ast.AnnAssign) else None
    return not isinstance(value, ast.Constant) or value.value is None or isinstance(value.value, bool | str)


def _report(access: Access, guarded: Access | None, other: str = "") -> Witness:
    what = f"{access.thing} is changed here without a lock"
    if guarded is not None:
        what += f", though {guarded.fn.qualname} holds {min(guarded.locks)} to change it (line {guarded.line})"
    elif other:
        what += f", while {other} changes it in another thread"
    else:
        what += " and returned: two threads may get the same value"
    name = short_name(access.node) or access.thing
    line, lock = (guarded.line, min(guarded.locks)) if guarded else (access.line, "one lock")
    return Witness(access.node, access.fn, what=what, access=access, line=line, lock=lock, name=name)


ADDS = ("append", "extend", "appendleft", "add", "update", "setdefault", "insert")


def read_then_reset(facts: Facts) -> Iterator[Witness]:
    """Report functions that use a container as a whole and then empty it."""
    for accesses, cls in shared_things(facts):
        yield from _emptied(accesses, cls, facts)


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
        # A lock over the reset and over what adds keeps items from being added in between.
        if not uses or added is None or reset.locks & added.locks:
            continue
        if is_teardown(reset.fn) or (not pauses and (sign < OWNS_OTHER or reset.fn.asynchronous)):
            continue
        sure, who = 0.55 if pauses or sign >= OWNS_LOCK else 0.5, "task" if pauses else "thread"
        name = ast.unparse(reset.node) if isinstance(reset.node, ast.expr) else reset.thing
        yield Witness(reset.node, reset.fn, confidence=sure, reset=reset, use=uses[-1], added=added, who=who, name=name)
        return


def _empties(access: Access) -> bool:
    """`x = []` or `x.clear()`."""
    up = parent(access.node)
    if access.kind == "shrink":
        return isinstance(up, ast.Attribute) and up.attr == "clear"
    return access.kind == "write" and isinstance(up, ast.Assign) and makes_empty(up.value)


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
