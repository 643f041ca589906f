"""A timeout after which the end of the executor's block still waits for the task.

`with ThreadPoolExecutor() as pool:` ends with `shutdown(wait=True)`. A `result(timeout=3)` inside raises after three
seconds, and then the block waits until the task is done, however long that takes. Make the executor without `with` and
call `shutdown(wait=False)`, or keep one for the whole program.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, blocks_that_make, finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, is_constant, keyword
from paceline.concurrency.check.syntax.tree import is_within


def find(facts: Facts) -> Iterator[Finding]:
    """Report results that are waited for with a timeout inside the block of the executor that computes them."""
    for fn in facts.module.functions:
        for block, name in blocks_that_make("Executor", fn, facts):
            call = _limited(block, name, fn)
            if call is not None:
                yield _report(fn, call, block)


def _limited(block: ast.With | ast.AsyncWith, pool: str, fn: Function) -> ast.Call | None:
    """The first `result(timeout=...)` in a block of a task that was submitted there."""
    for call in fn.calls:
        inside = is_within(call, block) and isinstance(call.func, ast.Attribute)
        if not inside or call.func.attr not in ("result", "exception"):  # type: ignore[attr-defined]
            continue
        limit = keyword(call, "timeout", 0)
        task = call.func.value  # type: ignore[attr-defined]
        value = fn.bound.get(task.id) if isinstance(task, ast.Name) else task
        submitted = isinstance(value, ast.Call) and dotted(value.func) == f"{pool}.submit"
        if submitted and limit is not None and not is_constant(limit, None) and not is_constant(limit, 0):
            return call
    return None


def _report(fn: Function, call: ast.Call, block: ast.With | ast.AsyncWith) -> Finding:
    return finding(
        call,
        fn,
        f"{text_of(call)} gives up after its timeout, but the end of the block (line {block.lineno}) waits for the "
        "task until it is done",
        [
            Step("the task", call.lineno, "takes longer than the timeout"),
            Step("thread A", call.lineno, f"{text_of(call)} raises TimeoutError"),
            Step("thread A", block.lineno, "leaves the block: shutdown(wait=True) waits for the task"),
        ],
        remedy="make the executor without `with`, and call shutdown(wait=False) in a `finally`",
        about=dotted(call.func),
        confidence=0.65,
    )


RULE = Rule(
    "PC223",
    "exit-waits",
    "a timeout after which the end of the executor's block still waits",
    find,
    bad="""
        from concurrent.futures import ThreadPoolExecutor, TimeoutError

        def is_up(check, host):
            with ThreadPoolExecutor(1) as pool:
                try:
                    return pool.submit(check, host).result(timeout=3)
                except TimeoutError:
                    return False
    """,
    good="""
        from concurrent.futures import ThreadPoolExecutor, TimeoutError

        def is_up(check, host):
            pool = ThreadPoolExecutor(1)
            try:
                return pool.submit(check, host).result(timeout=3)
            except TimeoutError:
                return False
            finally:
                pool.shutdown(wait=False)
    """,
    needs=("Executor",),
)
