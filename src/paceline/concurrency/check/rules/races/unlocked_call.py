"""A call that needs a lock which this caller does not hold, and all others do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS, LOCKS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.names import dotted
from paceline.concurrency.check.syntax.tree import parent
from paceline.concurrency.check.threads.accesses import GROWS, SHRINKS, VIEWS
from paceline.concurrency.check.threads.evidence import owns_lock
from paceline.concurrency.check.threads.shared_state import BEGINNINGS, own_locks
from paceline.concurrency.check.threads.sharing import may_be_alone

MOST = 2  # functions at least that hold the lock
NOT_STATE = ("log", "event", "lock", "queue", "thread", "cond", "sock")


#: Methods of executors, which any thread may call.
SAFE = ("submit", "apply_async", "map_async", "spawn")


class Use(NamedTuple):
    """A call of something that other functions of a class call too."""

    call: ast.Call
    fn: Function
    locks: frozenset[str]


def find(facts: Facts) -> Iterator[Witness]:
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
        return name if _changes(method, facts) else None
    if not isinstance(owner, ast.Attribute) or dotted(owner.value) != fn.self_name or name in GROWS | SHRINKS | VIEWS:
        return None
    if name in SAFE:
        return None
    is_exempt = facts.module.resource(owner, fn) is not None or any(word in owner.attr.lower() for word in NOT_STATE)
    return None if is_exempt or not isinstance(parent(call), ast.Expr) else f"{owner.attr}.{name}"


def _changes(method: Function, facts: Facts) -> bool:
    """Whether a method changes its object, and takes no lock of its own."""
    assigns = any(isinstance(t, ast.Attribute) and dotted(t.value) == method.self_name for t, _ in method.assigns)
    counts = any(dotted(a.target).startswith(f"{method.self_name}.") for a in method.augmented)
    return (assigns or counts) and not any(m.kind in ("take", "try") for m in facts.walker.effects(method))


def _without(called: str, uses: list[Use], cls: Class, facts: Facts) -> Iterator[Witness]:
    """The one call without the lock that the others hold."""
    for lock in own_locks(frozenset().union(*(use.locks for use in uses)), cls):
        kind = facts.module.attribute(cls, lock.rpartition(".")[2])
        if kind is None or kind.kind not in LOCKS - ASYNC_LOCKS:
            continue
        holders = {id(use.fn): use for use in uses if lock in use.locks}
        bare = [use for use in uses if not use.locks and id(use.fn) not in holders]
        functions = {id(use.fn) for use in bare}
        if len(holders) < MOST or len(functions) != 1 or may_be_alone(bare[0].fn, facts):
            continue
        yield Witness(
            bare[0].call,
            bare[0].fn,
            lock=lock,
            holders=len(holders),
            guarded=next(iter(holders.values())),
            called=called,
        )
        return
