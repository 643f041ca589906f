"""A lock that is released and never taken.

The lock is created and released, but nothing in the file takes it: the release raises `RuntimeError`, or releases the
lock while another thread holds it. Only locks that no other file can see are checked: globals with a leading underscore
in a package, locals, and globals of a script.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.check.flow.effects import Effect, text_of
from paceline.check.reporting.findings import Finding, Step
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts
from paceline.check.syntax.declarations import Function


def find(facts: Facts) -> Iterator[Finding]:
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
    for lock, (fn, effect) in frees.items():
        if lock in takes or ("." in lock and lock.rpartition(".")[0] in facts.module.classes):
            continue
        if any(c.args and text_of(a) == lock for f in facts.module.functions for c in f.calls for a in c.args):
            continue
        yield finding(
            effect.node,
            fn,
            f"{lock} is released here, but never taken",
            [Step("thread A", effect.line, f"{fn.qualname} releases {lock}, which it does not hold")],
            f"take {lock} first, preferably in a `with`",
            lock,
            0.75,
        )


RULE = Rule(
    "PC108",
    "released-never-taken",
    "a lock that is released and never taken",
    find,
    bad="""
        import threading

        lock = threading.Lock()

        def leave():
            lock.release()
    """,
    good="""
        import threading

        lock = threading.Lock()

        def run(work):
            lock.acquire()
            try:
                work()
            finally:
                lock.release()
    """,
    needs=("release",),
)
