"""A lock that its holder takes again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import Effect, runs_now, text_of
from paceline.concurrency.check.flow.walk import Held
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts, is_single, same_object
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted
from paceline.concurrency.check.syntax.tree import is_within


def find(facts: Facts) -> Iterator[Witness]:
    """Report takes of a held lock on the same object, directly or through calls."""
    for fn in facts.module.functions:
        reported: set[tuple[str, int]] = set()
        yield from _between_items(fn, facts)
        for effect, locks_held in facts.events(fn):
            for first in locks_held:
                lock = first.resource
                alone = lock.non_reentrant or lock.kind == "Semaphore"
                if not alone or not lock.sure or lock.one_of_several:
                    continue
                steps: tuple[tuple[Function, ast.expr], ...] | None = None
                if effect.kind == "take" and effect.resource is not None and effect.resource.id == lock.id:
                    node = effect.node.func.value if isinstance(effect.node, ast.Call) else effect.node  # type: ignore[attr-defined]
                    if dotted(node) == first.receiver and effect.line != first.line:
                        steps = ((fn, effect.node),)
                elif (
                    lock.non_reentrant and effect.callee and runs_now(effect) and _of_the_same(effect, first, fn, facts)
                ):
                    take = facts.takes(effect.callee).get(lock.id)
                    if take is not None and take.same and not any(lock.id in facts.drops(f) for f, _ in take.steps):
                        steps = ((fn, effect.node), *take.steps)
                elif (
                    effect.callee is not None
                    and runs_now(effect)
                    and (same_object(effect, fn) or is_single(first.resource))
                ):
                    take = facts.takes(effect.callee).get(lock.id)
                    mine = (
                        first.receiver.startswith((fn.self_name + ".", "cls."))
                        if fn.self_name
                        else "." not in first.receiver
                    )
                    same = take is not None and take.same and (mine or "." not in first.receiver)
                    if take is not None and same and not any(lock.id in facts.drops(f) for f, _ in take.steps):
                        steps = ((fn, effect.node), *take.steps)
                if steps is not None and (lock.id, effect.line) not in reported:
                    reported.add((lock.id, effect.line))
                    yield _report(fn, first, steps)


def _between_items(fn: Function, facts: Facts) -> Iterator[Witness]:
    """A loop over a generator that holds a lock at its yield, and takes that lock for an item."""
    for loop in fn.loops:
        call = loop.iter if isinstance(loop, ast.For) else None
        maker = facts.module.callee(call, fn) if isinstance(call, ast.Call) else None
        if not isinstance(loop, ast.For) or maker is None or not maker.generator:
            continue
        locks_held = {
            h.resource.id: h for h in facts.walk(maker).at_yield if h.resource.non_reentrant and h.resource.sure
        }
        for effect in facts.walker.effects(fn) if locks_held else ():
            if not is_within(effect.node, loop.body) or effect.callee is None or not runs_now(effect):
                continue
            take = next((t for name, t in facts.takes(effect.callee).items() if name in locks_held), None)
            if take is not None:
                yield _report_between(fn, loop, locks_held[take.resource.id], maker, ((fn, effect.node), *take.steps))
                return


def _report_between(
    fn: Function, loop: ast.For, lock_held: Held, maker: Function, steps: tuple[tuple[Function, ast.expr], ...]
) -> Witness:
    return Witness(steps[0][1], fn, "between", lock_held=lock_held, maker=maker, loop=loop, steps=steps)


def _of_the_same(effect: Effect, first: Held, fn: Function, facts: Facts) -> bool:
    """Whether a call is a method of the other object whose lock is held: `ledger.balance()` under `ledger.lock`."""
    function = getattr(effect.node, "func", None)
    owner = first.receiver.rpartition(".")[0] if first.resource.non_reentrant else ""
    if not isinstance(function, ast.Attribute) or not owner or owner in (fn.self_name, "cls") or "(" in owner:
        return False
    called = dotted(function.value)
    if called == owner:
        return True
    for block in fn.withs:
        for item in block.items:  # `with ledger.transaction() as tx`, which yields the ledger itself
            context = item.context_expr
            named = item.optional_vars is not None and dotted(item.optional_vars) == called
            callee = facts.module.callee(context, fn) if named and isinstance(context, ast.Call) else None
            yields = [dotted(y.value) for y in callee.yields if y.value is not None] if callee is not None else []
            of_owner = isinstance(context, ast.Call) and dotted(getattr(context.func, "value", context)) == owner
            if callee is not None and of_owner and yields == [callee.self_name]:
                return True
    return False


def _report(fn: Function, first: Held, steps: tuple[tuple[Function, ast.expr], ...]) -> Witness:
    lock = first.resource
    where, _last = steps[-1]
    by = "" if len(steps) == 1 else f" by {text_of(steps[0][1])}"
    return Witness(
        steps[0][1],
        fn,
        lock=lock,
        by=by,
        first=first,
        reason="once as many threads hold a permit as there are, all of them wait for another one"
        if lock.kind == "Semaphore"
        else "it is not an RLock, so the thread waits for itself",
        steps=steps,
        where=where,
    )
