"""An attribute of a thread that hides one of `threading.Thread` itself.

`join()` and `is_alive()` call the thread's own `_stop()`, and `start()` waits for its own `_started`. A subclass that
calls its flag `self._stop` replaces the method: `join()` fails with `'Event' object is not callable`, or returns at the
wrong time. Another name costs nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts

#: Names of `threading.Thread` that `start`, `join` and `is_alive` use -> which of them.
HIDDEN = {
    "_stop": "join()",
    "_started": "start()",
    "_is_stopped": "join()",
    "_bootstrap": "start()",
    "_delete": "run()",
}


def find(facts: Facts) -> Iterator[Finding]:
    """Report assignments to such attributes in subclasses of threading.Thread."""
    for cls in facts.module.classes.values():
        if not cls.is_a("threading.Thread", "threading.Timer"):
            continue
        for fn in cls.methods.values():
            for target, _ in fn.assigns:
                owner = target.value if isinstance(target, ast.Attribute) else None
                if isinstance(owner, ast.Name) and owner.id == fn.self_name and target.attr in HIDDEN:  # type: ignore[attr-defined]
                    name = target.attr  # type: ignore[attr-defined]
                    yield finding(
                        target,
                        fn,
                        f"{cls.name}.{name} hides the thread's own {name}, which {HIDDEN[name]} needs",
                        [
                            Step("thread A", target.lineno, f"{fn.qualname} replaces {name}"),
                            Step("thread A", target.lineno, f"{HIDDEN[name]} uses it for what it is not"),
                        ],
                        remedy="give it another name",
                        about=f"{cls.name}.{name}",
                        confidence=0.85,
                    )
                    break


RULE = Rule(
    "PC220",
    "thread-attribute-hidden",
    "an attribute of a thread that hides one of threading.Thread",
    find,
    bad="""
        import threading

        class Poller(threading.Thread):
            def __init__(self):
                super().__init__()
                self._stop = threading.Event()

            def run(self):
                while not self._stop.is_set():
                    poll()
    """,
    good="""
        import threading

        class Poller(threading.Thread):
            def __init__(self):
                super().__init__()
                self._stopping = threading.Event()

            def run(self):
                while not self._stopping.is_set():
                    poll()
    """,
    needs=tuple(HIDDEN),
)
