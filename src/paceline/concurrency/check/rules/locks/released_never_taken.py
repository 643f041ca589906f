"""A lock that is released and never taken."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import Effect, text_of
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import enclosing, last_line


def find(facts: Facts) -> Iterator[Witness]:
    """Report releases of private locks that no function of the file takes."""
    frees: dict[str, tuple[Function, Effect]] = {}
    takes: set[str] = set()
    for fn in facts.module.functions:
        for effect, _ in facts.events(fn):
            if effect.resource is not None and effect.resource.sure and effect.resource.kind in ("Lock", "RLock"):
                if effect.kind == "free":
                    frees.setdefault(effect.resource.id, (fn, effect))
                elif effect.kind in ("take", "try"):
                    takes.add(effect.resource.id)
    for fn in facts.module.functions:
        yield from _given_up(fn, facts)
    for lock, (fn, effect) in frees.items():
        if lock in takes or ("." in lock and lock.rpartition(".")[0] in facts.module.classes):
            continue
        if any(c.args and text_of(a) == lock for f in facts.module.functions for c in f.calls for a in c.args):
            continue
        yield Witness(effect.node, fn, lock=lock, effect=effect)


def _given_up(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`if not lock.acquire(timeout=1): raise` inside a `try` whose `finally` releases the lock anyway."""
    effects = [e for e in facts.walker.effects(fn) if e.resource is not None and e.resource.sure]
    for tries in effects:
        test, tried = enclosing(tries.node, ast.If), enclosing(tries.node, ast.Try)
        negative = isinstance(test, ast.If) and isinstance(test.test, ast.UnaryOp) and test.test.operand is tries.node
        if tries.kind != "try" or not negative or not isinstance(tried, ast.Try) or not isinstance(test, ast.If):
            continue
        ends = isinstance(test.body[-1], ast.Return | ast.Raise) and tries.line <= last_line(tried.body)
        for frees in effects:
            last = {id(n) for s in tried.finalbody if not isinstance(s, ast.If) for n in ast.walk(s)}
            same = frees.kind == "free" and frees.resource.id == tries.resource.id  # type: ignore[union-attr]
            if ends and same and id(frees.node) in last:
                yield Witness(frees.node, fn, "given-up", tries=tries, frees=frees)
