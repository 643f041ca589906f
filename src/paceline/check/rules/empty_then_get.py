"""A queue that is asked whether it is empty, and then waited for.

With several workers another one may take the last item in between. The `get()` then waits for an item that never
comes, and the worker never ends. `get_nowait()` and `queue.Empty` ask and take in one step.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declared import Function
from paceline.check.findings import Finding, Step
from paceline.check.marks import Mark, said
from paceline.check.names import inside, last
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts


def find(facts: Facts) -> Iterator[Finding]:
    for fn in facts.module.functions:
        if not any(t.startswith(("thread:", "process:")) for t in facts.reached.get(id(fn), ())):
            continue
        for mark in facts.walker.marks(fn):
            if mark.kind == "wait" and not mark.timeout and mark.waits_for == "somebody to put an item":
                test = _asked(mark, fn, facts)
                if test is not None and not facts.held_at(mark.node, fn):
                    yield _tell(fn, mark, test)


def _asked(mark: Mark, fn: Function, facts: Facts) -> int | None:
    around = inside(mark.node, ast.While, ast.If)
    while isinstance(around, ast.While | ast.If):
        for node in ast.walk(around.test):
            if (
                isinstance(node, ast.Call)
                and last(node.func) in ("empty", "qsize")
                and isinstance(node.func, ast.Attribute)
            ):
                found = facts.module.resource(node.func.value, fn)
                if found is not None and mark.resource is not None and found.id == mark.resource.id:
                    return around.lineno
        around = inside(around, ast.While, ast.If)
    return None


def _tell(fn: Function, mark: Mark, line: int) -> Finding:
    assert mark.resource is not None
    return finding(
        mark.node,
        fn,
        f"{said(mark.node)} waits without a timeout after line {line} found an item: another worker may take "
        "it in between, and this one waits for ever",
        [
            Step("worker A", line, f"finds an item in {mark.resource.id}"),
            Step("worker B", mark.line, "takes it, the last one"),
            Step("worker A", mark.line, "waits for the next, which never comes"),
        ],
        "use get_nowait() and catch queue.Empty",
        mark.resource.id,
        0.7,
    )


RULE = Rule(
    "PC208",
    "empty-then-get",
    "a queue asked whether it is empty, and then waited for",
    find,
    bad="""
        import queue
        import threading

        items = queue.Queue()

        def work():
            while not items.empty():
                items.get().run()

        threading.Thread(target=work).start()
    """,
    good="""
        import queue
        import threading

        items = queue.Queue()

        def work():
            while True:
                try:
                    item = items.get_nowait()
                except queue.Empty:
                    return
                item.run()

        threading.Thread(target=work).start()
    """,
    needs=("empty", "qsize"),
)
