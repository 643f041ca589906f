"""Changes and calls without the lock that all others hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS, LOCKS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.tree import dotted, enclosing, parent, short_name
from paceline.concurrency.check.threads.accesses import GROWS, SHRINKS, VIEWS, Access
from paceline.concurrency.check.threads.atomicity import regions
from paceline.concurrency.check.threads.evidence import owns_lock
from paceline.concurrency.check.threads.shared_state import (
    BEGINNINGS,
    accesses_of_class,
    accesses_of_globals,
    own_locks,
)
from paceline.concurrency.check.threads.sharing import may_be_alone
from paceline.concurrency.check.values.sources import parts


def forgotten_lock(facts: Facts) -> Iterator[Witness]:
    """Report changes without the lock, where most uses of the same attribute hold it."""
    for cls in facts.module.classes.values():
        for accesses in accesses_of_class(cls, facts).values():
            yield from _forgotten_lock_changes(accesses, cls, facts)
            yield from _outdated(accesses, cls, facts)
            yield from _other_lock(accesses, cls)
    for accesses in accesses_of_globals(facts).values() if facts.has_threads else ():
        yield from _forgotten_lock_changes([a for a in accesses if a.kind == "update" or a.locks], None, facts)


def _other_lock(accesses: list[Access], cls: Class) -> Iterator[Witness]:
    """A decision about an attribute under another lock of the object than the one that all its changes hold."""
    changes = [a for a in accesses if a.changes and a.fn.name not in BEGINNINGS]
    # One function under a lock says little about which lock is the attribute's.
    if len({a.fn for a in changes}) < 2:
        return
    guard = set(own_locks(frozenset.intersection(*(a.locks for a in changes)), cls))
    for access in accesses if guard else ():
        others = own_locks(access.locks, cls)
        if others and not access.changes and not guard & access.locks and _decides(access):
            lock, change = min(guard), changes[0]
            yield Witness(access.node, access.fn, "other-lock", access=access, others=others, lock=lock, change=change)
            return


def _outdated(accesses: list[Access], cls: Class, facts: Facts) -> Iterator[Witness]:
    """`old = self.x` without the lock under which `x` is replaced, and `old` used under that lock later on."""
    writes = [a for a in accesses if a.kind == "write" and a.locks and a.fn.name not in BEGINNINGS]
    guard = own_locks(frozenset.intersection(*(a.locks for a in writes)), cls) if writes else []
    for read in accesses if guard else ():
        up, fn = parent(read.node), read.fn
        name = up.targets[0] if isinstance(up, ast.Assign) and up.value is read.node else None
        # A variable that is bound again may hold the newer value by then.
        if read.locks or not isinstance(name, ast.Name) or [s.id for s in fn.stores].count(name.id) != 1:
            continue
        used = next((n for n in fn.names if _later(n, name) and facts.held_at(n, fn) & {*guard}), None)
        other = next((w for w in writes if w.fn is not fn), None)
        if used is not None and other is not None:
            yield Witness(read.node, read.fn, "outdated", read=read, lock=guard[0], used=used, other=other)
            return


def _later(use: ast.Name, name: ast.Name) -> bool:
    """Whether a variable is used, as an object with methods or items, after it was bound."""
    up = parent(use)
    used = isinstance(up, ast.Attribute | ast.Subscript) and up.value is use
    return use.id == name.id and isinstance(use.ctx, ast.Load) and use.lineno > name.lineno and used


def _forgotten_lock_changes(accesses: list[Access], cls: Class | None, facts: Facts) -> Iterator[Witness]:
    if not any(a.locks for a in accesses):
        return
    filled = {id(r.use.node) for r in regions("missing", accesses) if not r.use.locks}  # reported as PC401
    changes = [a for a in accesses if a.kind in ("grow", "shrink") and id(a.node) not in filled]
    witness = _bare(changes, cls, facts)
    if witness is None and (decided := _decided_under_lock(accesses)):
        witness = _bare([*decided, *(a for a in accesses if a.kind in ("write", "none") and not a.locks)], cls, facts)
    if witness is not None:
        access, guarded, lock = witness
        most = 2 * sum(bool(a.locks) for a in changes) >= len(changes) + 2
        yield _report(access, guarded, lock, 0.6 if most else 0.5)
    elif (minority := _minority([a for a in accesses if id(a.node) not in filled], cls, facts)) is not None:
        yield _report(*minority, 0.55)


def _bare(changes: list[Access], cls: Class | None, facts: Facts) -> tuple[Access, Access, str] | None:
    """A change without a lock, one with the lock that all guarded changes share, and that lock."""
    bare = [a for a in changes if not a.locks and not _excused(a, facts)]
    guarded = [a for a in changes if a.locks and a.fn.name not in BEGINNINGS]
    # A single private helper may be under a lock for another reason.
    alone = len(guarded) == 1 and guarded[0].fn.name.startswith("_")
    # Where most changes are without the lock, it is not the attribute's.
    if not bare or not guarded or alone or len(bare) > len(guarded):
        return None
    common = own_locks(frozenset.intersection(*(a.locks for a in guarded)), cls)
    return (bare[0], guarded[0], min(common)) if common else None


def _minority(accesses: list[Access], cls: Class | None, facts: Facts) -> tuple[Access, Access, str] | None:
    """A change without the lock under which more functions use the attribute, a use with it, and the lock."""
    users: dict[str, dict[Function, Access]] = {}
    for access in accesses:
        for lock in own_locks(access.locks, cls):
            first = users.setdefault(lock, {}).setdefault(access.fn, access)
            if access.changes and not first.changes:
                users[lock][access.fn] = access
    if not users:
        return None
    lock = max(users, key=lambda name: (len(users[name]), name))
    bare = [a for a in accesses if not a.locks and _loses(a) and not _excused(a, facts)]
    others = [a for fn, a in users[lock].items() if all(b.fn is not fn for b in bare)]
    # The functions with the lock have to be more than those without it, and to change what it guards.
    if not bare or len({b.fn for b in bare}) >= len(others) or not any(a.kind != "read" for a in others):
        return None
    return bare[0], next((a for a in others if a.changes), others[0]), lock


def _loses(access: Access) -> bool:
    """Whether a change depends on what was there before, or puts something computed in its place."""
    if access.kind in ("grow", "shrink", "update"):
        return True
    up = parent(access.node)
    return access.kind == "write" and isinstance(up, ast.Assign) and isinstance(up.value, ast.Call | ast.BinOp)


def _excused(access: Access, facts: Facts) -> bool:
    """Whether the caller may hold the lock, or no other thread runs yet or any more."""
    fn = access.fn
    made = (part for _, value in fn.assigns for part in parts(value) if isinstance(part, ast.Call))
    # What makes the lock anew begins the object, as after a fork; what starts threads further on runs before them.
    renews = any(short_name(call.func).endswith("Lock") for call in made)
    starts = any(short_name(c.func) == "start" and c.lineno > access.line for c in fn.calls)
    return renews or starts or may_be_alone(fn, facts)


def _decided_under_lock(accesses: list[Access]) -> list[Access]:
    """Plain assignments that follow a test of the same attribute under the same lock: `if not x: x = True`."""
    tests = [a for a in accesses if a.kind == "read" and a.locks and _decides(a)]
    return [
        a
        for a in accesses
        if a.kind in ("write", "none") and any(t.fn is a.fn and t.locks & a.locks and t.line <= a.line for t in tests)
    ]


def _decides(access: Access) -> bool:
    """Whether this is in the test of an `if` that does not wait for a change."""
    test = enclosing(access.node, ast.If)
    inside = isinstance(test, ast.If) and any(n is access.node for n in ast.walk(test.test))
    return inside and not any(isinstance(n, ast.Call) and short_name(n.func) == "wait" for n in ast.walk(test))  # type: ignore[arg-type]


def _report(access: Access, guarded: Access, lock: str, confidence: float) -> Witness:
    others = "all other changes of it hold" if guarded.changes else "most others hold to use it"
    return Witness(
        access.node,
        access.fn,
        confidence=confidence,
        access=access,
        lock=lock,
        others=others,
        guarded=guarded,
        how="changes" if guarded.changes else "uses",
    )


MOST = 2  # functions at least that hold the lock
NOT_STATE = ("log", "event", "lock", "queue", "thread", "cond", "sock")
#: Methods of executors, which any thread may call.
SAFE = ("submit", "apply_async", "map_async", "spawn")


class Use(NamedTuple):
    """A call of something that other functions of a class call too."""

    call: ast.Call
    fn: Function
    locks: frozenset[str]


def unlocked_call(facts: Facts) -> Iterator[Witness]:
    """Report calls of a method, or of an object's methods, without the lock that the other callers hold."""
    for cls in facts.module.classes.values():
        if not owns_lock(cls, facts):
            continue
        for called, uses in _uses(cls, facts).items():
            yield from _without(called, uses, cls, facts)


def _uses(cls: Class, facts: Facts) -> dict[str, list[Use]]:
    """What is called -> the calls: the own private methods, and objects that the class keeps, by attribute."""
    uses: dict[str, list[Use]] = {}
    for fn in facts.module.functions:
        if fn.cls is not cls or not fn.self_name or fn.name in BEGINNINGS:
            continue
        for call in fn.calls:
            if (called := _called(call, fn, facts)) is not None:
                uses.setdefault(called, []).append(Use(call, fn, facts.held_at(call, fn)))
    return uses


def _called(call: ast.Call, fn: Function, facts: Facts) -> str | None:
    """The private method of the own object that a call runs, or `attribute.method` of an object that it keeps."""
    assert fn.cls is not None
    if not isinstance(call.func, ast.Attribute):
        return None
    owner, name = call.func.value, call.func.attr
    if dotted(owner) == fn.self_name:
        method = fn.cls.method(name)
        if method is None or not name.startswith("_") or name.startswith("__") or method.asynchronous:
            return None
        return name if _unlocked_call_changes(method, facts) else None
    if not isinstance(owner, ast.Attribute) or dotted(owner.value) != fn.self_name or name in GROWS | SHRINKS | VIEWS:
        return None
    if name in SAFE:
        return None
    is_exempt = facts.module.resource(owner, fn) is not None or any(word in owner.attr.lower() for word in NOT_STATE)
    return None if is_exempt or not isinstance(parent(call), ast.Expr) else f"{owner.attr}.{name}"


def _unlocked_call_changes(method: Function, facts: Facts) -> bool:
    """Whether a method changes its object, and takes no lock of its own."""
    assigns = any(isinstance(t, ast.Attribute) and dotted(t.value) == method.self_name for t, _ in method.assigns)
    counts = any(dotted(a.target).startswith(f"{method.self_name}.") for a in method.augmented)
    return (assigns or counts) and not any(m.kind in ("take", "try") for m in facts.walker.effects(method))


def _without(called: str, uses: list[Use], cls: Class, facts: Facts) -> Iterator[Witness]:
    """The one call without the lock that the others hold."""
    for lock in own_locks(frozenset().union(*(use.locks for use in uses)), cls):
        kind = facts.module.attribute(cls, lock.rpartition(".")[2])
        holders = {use.fn: use for use in uses if lock in use.locks}
        bare = [use for use in uses if not use.locks and use.fn not in holders]
        if kind is None or kind.kind not in LOCKS - ASYNC_LOCKS or len(holders) < MOST:
            continue
        if len({use.fn for use in bare}) == 1 and not may_be_alone(bare[0].fn, facts):
            call, fn, guarded = bare[0].call, bare[0].fn, next(iter(holders.values()))
            yield Witness(call, fn, lock=lock, holders=len(holders), guarded=guarded, called=called)
            return
