"""A lock that is not released on one path out of the function that takes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import Effect
from paceline.concurrency.check.flow.walk import Leak
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function, Resource
from paceline.concurrency.check.syntax.tree import contexts_around, enclosing

EXITS = {"__enter__": "__exit__", "__aenter__": "__aexit__"}
HANDS_ON = ("acquire", "lock", "enter", "aenter", "release_save")


def find(facts: Facts) -> Iterator[Witness]:
    """Report leaks of the walk, in functions that release the lock on another path."""
    for fn in facts.module.functions:
        yield from _entered(fn, facts)
        if fn.name.strip("_").lower().startswith(HANDS_ON) or fn.name.lower().endswith("lock"):
            continue
        walk = facts.walk(fn)
        if walk.cut or not walk.leaks:
            continue
        reported: set[str] = set()
        dropped = facts.drops(fn)  # taken again at the end, as the caller expects
        for leak in sorted(walk.leaks, key=lambda leak: (leak.raised, leak.line)):
            lock = leak.held.resource
            if (
                lock.id in reported
                or (lock.id in dropped and dropped[lock.id].line < leak.held.line)
                or _within(leak, fn, facts)
                or (leak.raised and fn is facts.module.top)
            ):
                continue
            frees = [m for m, _ in walk.events if m.kind == "free" and m.resource and m.resource.id == lock.id]
            take = next((m for m, _ in walk.events if m.kind in ("take", "try") and m.line == leak.held.line), None)
            if not frees or take is None or _depends(take, frees) or _handed_on(lock, fn, facts):
                continue
            reported.add(lock.id)
            yield _report(fn, leak, take, min(m.line for m in frees))


def _entered(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`__enter__` that raises after it has taken what only `__exit__` releases, which then does not run."""
    leaves = fn.cls.method(EXITS[fn.name]) if fn.name in EXITS and fn.cls is not None else None
    frees = any(m.kind == "free" for m in facts.walker.effects(fn)) if leaves is not None else True
    walk = None if frees else facts.walk(fn)
    for leak in sorted(walk.leaks, key=lambda leak: leak.line) if walk is not None and not walk.cut else ():
        freed = facts.drops(leaves).get(leak.held.resource.id) if leaves is not None else None
        takes = (m for m, _ in walk.events if m.kind == "take" and m.line == leak.held.line)  # type: ignore[union-attr]
        take = next(takes, None)
        if leak.raised and leak.line > leak.held.line and freed is not None and take is not None:
            yield _report(fn, leak, take, freed.line)
            return


def _within(leak: Leak, fn: Function, facts: Facts) -> bool:
    """Whether a `with` of the same lock is around: it was released in between, and the `with` releases it at last."""
    entered = (facts.module.resource(context, fn) for context in contexts_around(leak.held.node))
    return any(lock is not None and lock.id == leak.held.resource.id for lock in entered)


def _handed_on(lock: Resource, fn: Function, facts: Facts) -> bool:
    """Whether this is a permit of a semaphore that another function releases, such as the task that was started."""
    others = (other for other in facts.module.functions if other is not fn and lock.kind == "Semaphore")
    effects = (effect for other in others for effect in facts.walker.effects(other))
    return any(e.kind == "free" and e.resource is not None and e.resource.id == lock.id for e in effects)


def _depends(take: Effect, frees: list[Effect]) -> bool:
    """Whether the release depends on a condition, which may be the one under which the lock was taken."""
    around = enclosing(take.node, ast.If, ast.While)
    for free in frees:
        condition = enclosing(free.node, ast.If)
        if isinstance(condition, ast.If) and condition is not around and _tests_a_flag(condition, take):
            return True
    return False


def _tests_a_flag(condition: ast.If, take: Effect) -> bool:
    """Whether a condition tests a flag for the lock being held."""
    if isinstance(enclosing(take.node, ast.If), ast.If) or take.kind == "try":
        return True
    test = condition.test.operand if isinstance(condition.test, ast.UnaryOp) else condition.test
    name = test.id if isinstance(test, ast.Name) else test.attr if isinstance(test, ast.Attribute) else ""
    return any(word in name.lower() for word in ("lock", "acquired", "held", "owned", "taken"))


def _report(fn: Function, leak: Leak, take: Effect, freed: int) -> Witness:
    return Witness(
        take.node,
        fn,
        confidence=(0.6 if leak.raised else 0.85) - (0 if leak.held.resource.sure else 0.1),
        leak=leak,
        way=f"an exception at line {leak.line}" if leak.raised else f"the path that leaves at line {leak.line}",
        freed=freed,
        take=take,
        leaves="leaves by an exception without releasing it" if leak.raised else "leaves without releasing it",
    )
