"""A lock that is released and never taken.

A lock is made, released, and nothing in the file takes it: the release raises `RuntimeError`, or undoes somebody
else's. Only locks that no other file can see are judged: globals with a leading underscore in a package, locals, and
globals of a script.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.check.declared import Function
from paceline.check.findings import Finding, Step
from paceline.check.marks import Mark, said
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts


def find(facts: Facts) -> Iterator[Finding]:
    frees: dict[str, tuple[Function, Mark]] = {}
    takes: set[str] = set()
    for fn in facts.module.functions:
        for mark, _ in facts.events(fn):
            if mark.resource is not None and mark.resource.sure and mark.resource.kind in ("Lock", "RLock"):
                if mark.kind == "free":
                    frees.setdefault(mark.resource.id, (fn, mark))
                elif mark.kind in ("take", "try"):
                    takes.add(mark.resource.id)
    for lock, (fn, mark) in frees.items():
        if lock in takes or ("." in lock and lock.rpartition(".")[0] in facts.module.classes):
            continue
        if any(c.args and said(a) == lock for f in facts.module.functions for c in f.calls for a in c.args):
            continue
        yield finding(
            mark.node,
            fn,
            f"{lock} is released here, and nothing takes it",
            [Step("thread A", mark.line, f"{fn.qualname} releases {lock}, which it does not hold")],
            f"take {lock} first, best with `with`",
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
