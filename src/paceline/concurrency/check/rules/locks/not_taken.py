"""A lock that is used as if it were taken, whether or not it is.

`acquire(timeout=2)` and `acquire(blocking=False)` return False where they give up. If the result is not looked at, the
code below runs without the lock, and the `release()` at its end fails, or takes the lock away from the thread that
holds it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import Effect, text_of
from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import parent


def find(facts: Facts) -> Iterator[Finding]:
    """Report attempts to take a lock whose result is not looked at, with work before the release."""
    for fn in facts.module.functions:
        effects = facts.walker.effects(fn)
        for effect in effects:
            lock = effect.resource
            if effect.kind != "try" or lock is None or not lock.sure or lock.kind in ASYNC_LOCKS:
                continue
            freed = next((e for e in effects if _frees(e, lock.id) and e.line > effect.line), None)
            if isinstance(parent(effect.node), ast.Expr) and freed is not None and _works(effect, freed, fn):
                yield _report(fn, effect, freed)


def _frees(effect: Effect, lock: str) -> bool:
    return effect.kind == "free" and effect.resource is not None and effect.resource.id == lock


def _works(take: Effect, freed: Effect, fn: Function) -> bool:
    """Whether anything is done in between, rather than a lock set free by all means."""
    return any(take.line < call.lineno < freed.line for call in fn.calls) or any(
        take.line < target.lineno < freed.line for target, _ in fn.assigns
    )


def _report(fn: Function, effect: Effect, freed: Effect) -> Finding:
    assert effect.resource is not None
    lock = effect.resource.id
    return finding(
        effect.node,
        fn,
        f"{text_of(effect.node)} may give up, and its result is not looked at: what follows then runs without {lock}, "
        f"and line {freed.line} releases it anyway",
        [
            Step("thread B", effect.line, f"holds {lock}"),
            Step("thread A", effect.line, "gives up, and continues as if it had the lock"),
            Step("thread A", freed.line, f"releases {lock}, which it does not hold"),
        ],
        remedy=f"if not {text_of(effect.node)}: return or raise",
        about=lock,
        confidence=0.8,
    )


RULE = Rule(
    "PC117",
    "not-taken",
    "a lock that is used as if it were taken, whether or not it is",
    find,
    bad="""
        import threading

        slots = threading.Semaphore(4)

        def fetch(client, key):
            slots.acquire(timeout=2)
            try:
                return client.get(key)
            finally:
                slots.release()
    """,
    good="""
        import threading

        slots = threading.Semaphore(4)

        def fetch(client, key):
            if not slots.acquire(timeout=2):
                raise TimeoutError("no free slot")
            try:
                return client.get(key)
            finally:
                slots.release()
    """,
    needs=("acquire",),
)
