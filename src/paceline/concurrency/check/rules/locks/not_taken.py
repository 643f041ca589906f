"""A lock that is used as if it were taken, whether or not it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import Effect
from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import parent


def find(facts: Facts) -> Iterator[Witness]:
    """Report attempts to take a lock whose result is not looked at, with work before the release."""
    for fn in facts.module.functions:
        effects = facts.walker.effects(fn)
        for effect in effects:
            lock = effect.resource
            if effect.kind != "try" or lock is None or not lock.sure or lock.kind in ASYNC_LOCKS:
                continue
            freed = next((e for e in effects if _frees(e, lock.id) and e.line > effect.line), None)
            if isinstance(parent(effect.node), ast.Expr) and freed is not None and _works(effect, freed, fn):
                yield Witness(effect.node, fn, effect=effect, freed=freed)


def _frees(effect: Effect, lock: str) -> bool:
    return effect.kind == "free" and effect.resource is not None and effect.resource.id == lock


def _works(take: Effect, freed: Effect, fn: Function) -> bool:
    """Whether anything is done in between, rather than a lock set free by all means."""
    return any(take.line < call.lineno < freed.line for call in fn.calls) or any(
        take.line < target.lineno < freed.line for target, _ in fn.assigns
    )
