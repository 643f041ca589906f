"""An asyncio lock that is not awaited."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import parent


def find(facts: Facts) -> Iterator[Witness]:
    """Report acquires and waits of asyncio locks, and calls of coroutines, that are statements of their own."""
    for fn in facts.module.functions:
        for effect in facts.walker.effects(fn):
            resource, callee = effect.resource, effect.callee
            alone = isinstance(parent(effect.node), ast.Expr) and callee is not None and not effect.perhaps
            named = callee is not None and callee.name == short_name(_called(effect.node))
            if alone and named and callee is not None and callee.only_awaited:
                yield Witness(effect.node, fn, "never-run", callee=callee, function=text_of(effect.node)[:-2])
            if effect.kind not in ("take", "try", "wait") or resource is None or not resource.sure:
                continue
            if resource.kind not in ASYNC_LOCKS or not isinstance(parent(effect.node), ast.Expr):
                continue
            yield Witness(effect.node, fn, effect=effect, resource=resource)


def _called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node
