"""Changes without the lock that all others hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.tree import enclosing, parent, short_name
from paceline.concurrency.check.threads.accesses import Access
from paceline.concurrency.check.threads.shared_state import (
    BEGINNINGS,
    accesses_of_class,
    accesses_of_globals,
    own_locks,
)
from paceline.concurrency.check.threads.sharing import filled_if_missing, may_be_alone, stored_if_missing
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
    filled = {id(a.node) for a, _ in filled_if_missing(accesses)}  # reported as PC401
    filled |= {id(a.node) for a in accesses if a.kind == "grow" and not a.locks and stored_if_missing(a)}
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
    alone = len(guarded) == 1 and guarded[0].fn.name.startswith("_")
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
