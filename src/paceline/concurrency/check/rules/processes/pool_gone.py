"""A result that is asked for after its pool of processes was terminated."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness, blocks_that_make
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import is_within, last_line

LATER = ("apply_async", "map_async", "starmap_async", "imap", "imap_unordered")
GETS = ("get", "wait")


def find(facts: Facts) -> Iterator[Witness]:
    """Report results of a pool that are got after its block, in which nothing waits for them."""
    for fn in facts.module.functions:
        for block, pool in blocks_that_make("Pool", fn, facts):
            names = _results(block, pool, fn)
            inside = [c for c in fn.calls if is_within(c, block)]
            waited = any(dotted(c.func) == f"{pool}.join" or short_name(c.func) in GETS for c in inside)
            get = next((c for c in fn.calls if _gets(c, names, fn) and c.lineno > last_line(block)), None)
            if get is not None and not waited:
                yield Witness(get, fn, block=block, end=last_line(block))


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
