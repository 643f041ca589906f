"""A result that is asked for after its pool of processes was terminated.

`with multiprocessing.Pool() as pool:` ends with `pool.terminate()`, which does not wait for tasks. The results of
`apply_async` and `map_async` that have not come by then never come, and `get()` after the block waits for ever. Get the
results inside the block, or call `close()` and `join()` there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, blocks_that_make, finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import is_within, last_line

LATER = ("apply_async", "map_async", "starmap_async", "imap", "imap_unordered")
GETS = ("get", "wait")


def find(facts: Facts) -> Iterator[Finding]:
    """Report results of a pool that are got after its block, in which nothing waits for them."""
    for fn in facts.module.functions:
        for block, pool in blocks_that_make("Pool", fn, facts):
            names = _results(block, pool, fn)
            inside = [c for c in fn.calls if is_within(c, block)]
            waited = any(dotted(c.func) == f"{pool}.join" or short_name(c.func) in GETS for c in inside)
            get = next((c for c in fn.calls if _gets(c, names, fn) and c.lineno > last_line(block)), None)
            if get is not None and not waited:
                yield _report(fn, get, block)


def _results(block: ast.With | ast.AsyncWith, pool: str, fn: Function) -> set[str]:
    """The names that hold a result, or several, of tasks that the block gives to its pool."""
    later = {f"{pool}.{method}" for method in LATER}
    results = set()
    for target, value in fn.assigns:
        if is_within(target, block) and any(
            isinstance(n, ast.Call) and dotted(n.func) in later for n in ast.walk(value)
        ):
            results.add(dotted(target))
    for call in fn.calls:
        added = short_name(call.func) in ("append", "add") and isinstance(call.func, ast.Attribute) and call.args
        parts = ast.walk(call.args[0]) if added and is_within(call, block) else ()
        if any(isinstance(n, ast.Call) and dotted(n.func) in later for n in parts):
            results.add(dotted(call.func.value))  # type: ignore[attr-defined]
    return results - {""}


def _gets(call: ast.Call, names: set[str], fn: Function) -> bool:
    """Whether a call waits for one of the results, without a timeout."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in GETS or call.args or call.keywords:
        return False
    owner = call.func.value
    over = fn.looped.get(owner.id) if isinstance(owner, ast.Name) else None
    return dotted(owner) in names or (over is not None and dotted(over) in names)


def _report(fn: Function, get: ast.Call, block: ast.With | ast.AsyncWith) -> Finding:
    return finding(
        get,
        fn,
        f"{text_of(get)} waits for a result of a pool that the end of its block (line {block.lineno}) has terminated: "
        "what had not come by then never comes",
        [
            Step("the parent", last_line(block), "leaves the block: the pool is terminated"),
            Step("the child", block.lineno, "is killed in the middle of its task"),
            Step("the parent", get.lineno, "waits for the result for ever"),
        ],
        remedy="get the results inside the block",
        about=text_of(get),
        confidence=0.85,
    )


RULE = Rule(
    "PC231",
    "pool-gone",
    "a result asked for after its pool of processes was terminated",
    find,
    bad="""
        import multiprocessing

        def run(work, items):
            with multiprocessing.Pool() as pool:
                pending = [pool.apply_async(work, (item,)) for item in items]
            return [each.get() for each in pending]
    """,
    good="""
        import multiprocessing

        def run(work, items):
            with multiprocessing.Pool() as pool:
                pending = [pool.apply_async(work, (item,)) for item in items]
                return [each.get() for each in pending]
    """,
    needs=("Pool",),
)
