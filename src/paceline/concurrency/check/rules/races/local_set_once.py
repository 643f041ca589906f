"""An attribute of a thread's local storage that only one thread has."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted
from paceline.concurrency.check.threads.shared_state import BEGINNINGS, is_caught


def find(facts: Facts) -> Iterator[Witness]:
    """Report attributes of locals that are set at import or by a constructor, and read elsewhere."""
    top = facts.module.top
    for name, value in top.bound.items():
        if facts.module.canonical(value).startswith("threading.local"):
            elsewhere = [fn for fn in facts.module.functions if fn is not top and name not in fn.bound]
            yield from _of_one(name, [top], elsewhere)
    for cls in facts.module.classes.values():
        methods = [fn for fn in facts.module.functions if fn.cls is cls and fn.self_name]
        for name, values in cls.values.items():
            if any(facts.module.canonical(value).startswith("threading.local") for value, _ in values):
                first = [fn for fn in methods if fn.name in BEGINNINGS]
                yield from _of_one(f"self.{name}", first, [fn for fn in methods if fn not in first])


def _of_one(name: str, first: list[Function], others: list[Function]) -> Iterator[Witness]:
    """The first read of each attribute that only these functions set."""
    set_once = {
        t.attr: (t, fn) for fn in first for t, _ in fn.assigns if _is_of(t, name) and isinstance(t, ast.Attribute)
    }
    uses = [(node, fn) for fn in others for node in fn.attributes if node.attr in set_once and _is_of(node, name)]
    for attribute, (at, fn) in set_once.items():
        of_it = [(node, other) for node, other in uses if node.attr == attribute]
        stored = any(_stored_first(other, [n for n, o in of_it if o is other]) for _, other in of_it)
        is_tested = any(_asks(other, attribute) for _, other in of_it)
        read = next((u for u in of_it if not is_caught(u[0], "AttributeError")), None)
        if read is not None and not stored and not is_tested:
            yield _report(at, fn, dotted(at), *read)


def _stored_first(fn: Function, uses: list[ast.Attribute]) -> bool:
    """Whether a function sets the attribute, and does not read it before."""
    stores = [n.lineno for n in uses if isinstance(n.ctx, ast.Store) and n not in _augmented(fn)]
    return bool(stores) and not any(isinstance(n.ctx, ast.Load) and n.lineno < min(stores) for n in uses)


def _is_of(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and dotted(node.value) == name


def _augmented(fn: Function) -> list[ast.expr]:
    return [change.target for change in fn.augmented]


def _asks(fn: Function, attribute: str) -> bool:
    """Whether a function asks for the attribute by its name: `hasattr(_local, "depth")`."""
    return any(isinstance(a, ast.Constant) and a.value == attribute for call in fn.calls for a in call.args)


def _report(at: ast.AST, fn: Function, name: str, read: ast.Attribute, other: Function) -> Witness:
    return Witness(at, fn, name=name, other=other, read=read, line=getattr(at, "lineno", fn.line))
