"""Expressions in terms of what they were bound from: local names by their values, parameters by what is passed.

`with self.left.lock:` of a philosopher, made by `Philosopher(forks[i], forks[(i + 1) % n])`, takes the lock of
`forks[i]`. Only names that are bound once are replaced; others may mean something else by then.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.values.module import Module

ALIASES = 4  # assignments and calls through which a name is followed
_PLAIN = ast.Name | ast.Attribute | ast.Subscript | ast.BinOp | ast.Constant


def names_in(node: ast.expr) -> frozenset[str]:
    """The variables that an expression is written with."""
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def resolved(node: ast.expr, fn: Function, depth: int = 0) -> ast.expr:
    """An expression with the local names in it replaced by what they were assigned."""
    values: dict[str, ast.expr] = {}
    for name in names_in(node):
        value = fn.bound.get(name)
        once = sum(n.id == name for n in fn.stores) == 1
        if once and name not in fn.looped and isinstance(value, _PLAIN) and name not in names_in(value):
            values[name] = value
    if not values or depth > ALIASES:
        return node
    return resolved(_replaced(node, values, {}, ""), fn, depth + 1)


def bound_pairs(
    one: ast.expr, two: ast.expr, fn: Function, module: Module, depth: int = 0
) -> Iterator[tuple[ast.expr, ast.expr, Function]]:
    """Two expressions as each caller binds the parameters in them, or as each constructor call binds the attributes."""
    owner, attributes = _constructor(one, two, fn)
    if owner is None:
        owner = fn if (names_in(one) | names_in(two)) & set(fn.parameters) else None
    if owner is None or depth > ALIASES:
        return
    assigned = {n.id for n in owner.stores}
    for site in module.objects.sites(owner):
        arguments = {name: a for name in owner.parameters if (a := module.objects.argument_at(owner, name, site))}
        if assigned & set(arguments):
            return  # the parameters are swapped or replaced
        values = {name: a.value for name, a in arguments.items()}
        fields = {field: values[name] for field, name in attributes.items() if name in values}
        caller = next((a.caller for a in arguments.values()), None)
        if caller is None:
            continue
        shown = values if not attributes else {}
        pair = [resolved(_replaced(node, shown, fields, fn.self_name), caller) for node in (one, two)]
        yield pair[0], pair[1], caller
        yield from bound_pairs(pair[0], pair[1], caller, module, depth + 1)


def _constructor(one: ast.expr, two: ast.expr, fn: Function) -> tuple[Function | None, dict[str, str]]:
    """The `__init__` that assigns its parameters to the attributes in two expressions, and which to which."""
    if fn.cls is None:
        return None, {}
    used = {
        n.attr
        for node in (one, two)
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == fn.self_name
    }
    owner: Function | None = None
    parameters: dict[str, str] = {}
    for cls in fn.cls.ancestry:
        for attribute in used - set(parameters):
            values = cls.values.get(attribute, ())
            if len(values) == 1 and isinstance(values[0][0], ast.Name):
                (value, scope), *_ = values
                if scope.name == "__init__" and value.id in scope.parameters:  # type: ignore[attr-defined]
                    owner, parameters[attribute] = scope, value.id  # type: ignore[attr-defined]
    return owner, parameters


def taken_in_turn(node: ast.expr, fn: Function) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The first two locks that a loop over `[a, b]` takes one after the other, while it keeps the first."""
    for name in names_in(node) & set(fn.looped):
        over = fn.looped[name]
        if isinstance(over, ast.Name) and sum(n.id == over.id for n in fn.stores) == 1:
            over = fn.bound.get(over.id, over)
        if isinstance(over, ast.List | ast.Tuple) and len(over.elts) > 1:
            one, two = (_replaced(node, {name: element}, {}, "") for element in over.elts[:2])
            yield one, two


def _replaced(node: ast.expr, names: dict[str, ast.expr], fields: dict[str, ast.expr], owner: str) -> ast.expr:
    """A copy of an expression with names, and attributes of the own object, replaced."""
    replaced: ast.expr = _Replace(names, fields, owner).visit(copy.deepcopy(node, {id(_up(node)): None}))
    return ast.copy_location(replaced, node)


def _up(node: ast.expr) -> ast.AST | None:
    return getattr(node, "up", None)


class _Replace(ast.NodeTransformer):
    def __init__(self, names: dict[str, ast.expr], fields: dict[str, ast.expr], owner: str) -> None:
        self.names, self.fields, self.owner = names, fields, owner

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.names.get(node.id, node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == self.owner and node.attr in self.fields:
            return self.fields[node.attr]
        return self.generic_visit(node)
