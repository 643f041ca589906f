"""A collective that only some ranks call."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.libraries.catalogue import RANK_DECORATORS
from paceline.concurrency.check.ranks.items import Item
from paceline.concurrency.check.ranks.sequences import Difference
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import enclosing
from paceline.concurrency.check.varying.reasons import DATA


def find(facts: Facts) -> Iterator[Witness]:
    """Report branches on the rank with different collectives, and collectives in functions for one rank."""
    for fn in facts.module.functions:
        if fn.decorated(*RANK_DECORATORS) or _for_one_rank(fn, facts):
            for item in facts.sequences.operations(fn)[:1]:
                yield _report(fn, item, f"{fn.qualname} runs on one rank only (line {fn.line})", fn.line, 0.85)
        reported = 0
        for difference in facts.sequences.differences(fn):
            if not difference.exit and difference.items and reported < 3:
                reported += 1
                yield _difference(difference)
        for operand, item, why in facts.sequences.choices(fn):
            yield _report(fn, item, f"`{ast.unparse(operand)}` decides on {why}", operand.lineno, 0.6)
        for loop, item, why in facts.sequences.turns(fn):
            how = f"the loop at line {loop.lineno} runs as often as {why} says"
            yield _report(fn, item, how, loop.lineno, 0.65)


def _for_one_rank(fn: Function, facts: Facts) -> bool:
    """Whether a decorator of the file calls the function under a test of the rank alone."""
    for decorator in getattr(fn.node, "decorator_list", ()):
        function = facts.module.function_named(decorator, facts.module.top)
        parameter = next(iter(function.parameters), "") if function is not None else ""
        for inner in function.nested.values() if function is not None else ():
            calls = [c for c in inner.calls if isinstance(c.func, ast.Name) and c.func.id == parameter]
            tests = [enclosing(c, ast.If) for c in calls]
            if calls and all(isinstance(t, ast.If) and facts.sequences.conditions(t.test, inner) for t in tests):
                return True
    return False


def _difference(difference: Difference) -> Witness:
    condition = ast.unparse(difference.test.test)
    why = difference.condition.why
    return _report(
        difference.fn,
        difference.items[0],
        f"`if {condition}` at line {difference.test.lineno} depends on {why}",
        difference.test.lineno,
        0.6 if why == DATA else 0.7 if difference.condition.local else 0.85,
    )


def _report(fn: Function, item: Item, why: str, line: int, confidence: float) -> Witness:
    by = text_of(item.at) if isinstance(item.at, ast.Call) else item.name
    return Witness(
        item.at,
        fn,
        confidence=confidence,
        by=by,
        within="" if by.endswith(item.name + "()") else f", which calls {item.name},",
        why=why,
        line=line,
        item_line=getattr(item.at, "lineno", line),
        item=item,
    )
