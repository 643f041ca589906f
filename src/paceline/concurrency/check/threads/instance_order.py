"""Two instances of one class, or two elements of one container: does anything fix which of them comes first?

`with self.lock: with other.lock:` takes the locks in the order of the arguments, and `forks[i]` before
`forks[(i + 1) % n]` goes round in a circle. `sorted`, `min`, `max`, a comparison around the locks or a swap keeps an
order. A chain of attributes (`node.lock`, then `node.next.lock`) has one by itself, unless two objects are linked to
each other (`a.peer = b` and `b.peer = a`) or all of them in a circle.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import enclosing
from paceline.concurrency.check.threads.substitution import bound_pairs, names_in, resolved, taken_in_turn
from paceline.concurrency.check.values.module import Module

ALIASES = 4
_ORDERING = {"sorted", "min", "max", "sort"}
_HIERARCHY = {"parent", "child", "root", "owner", "next", "prev", "base", "inner", "outer"}


class Place(NamedTuple):
    """Which instance or element an expression stands for."""

    kind: str  # self, parameter, element, attribute of self
    text: str
    names: frozenset[str]  # the variables that decide it
    ring: bool = False  # an index that goes round: `(i + 1) % n`, `i - 1`


def unordered(first: ast.expr, second: ast.expr, fn: Function, at: ast.expr, module: Module) -> float:
    """How likely two threads take two locks of one identity in opposite orders; 0 where an order is kept."""
    if first is second:
        return max((_unordered(one, two, fn, at, module) for one, two in taken_in_turn(first, fn)), default=0.0)
    return _unordered(first, second, fn, at, module)


def _unordered(first: ast.expr, second: ast.expr, fn: Function, at: ast.expr, module: Module) -> float:
    """How likely the opposite order is of the two as written, or else as the callers bind their names."""
    likely = _as_written(first, second, fn, module)
    if likely:
        return 0.0 if _keeps_order(fn, at, names_in(first) | names_in(second)) else likely
    one, two = resolved(first, fn), resolved(second, fn)
    if _keeps_order(fn, at, names_in(one) | names_in(two)):
        return 0.0
    return _bound(one, two, fn, module)


def _bound(one: ast.expr, two: ast.expr, fn: Function, module: Module) -> float:
    """The likelihood where the callers say which objects the two are: `Worker(a, b)`, and elsewhere `Worker(b, a)`."""
    pairs: set[tuple[str, str]] = set()
    for mine, theirs, caller in bound_pairs(one, two, fn, module):
        likely = _as_written(mine, theirs, caller, module)
        texts = ast.unparse(mine), ast.unparse(theirs)
        if likely or (texts[1], texts[0]) in pairs:
            return likely or 0.85
        if texts[0] != texts[1]:
            pairs.add(texts)
    return 0.0


def _as_written(first: ast.expr, second: ast.expr, fn: Function, module: Module) -> float:
    one, two = place(first, fn, module), place(second, fn, module)
    if one is None or two is None or one.text == two.text:
        return 0.0
    if one.ring != two.ring and one.kind == two.kind == "element":
        return 0.85
    kinds = {one.kind, two.kind}
    if kinds == {"element"}:
        return 0.7 if all(_given(p, fn) for p in (one, two)) else 0.0
    if kinds <= {"self", "parameter"} and not (one.names | two.names) & _HIERARCHY:
        return 0.7
    if kinds == {"self", "attribute"}:
        return _linked(next(p.text for p in (one, two) if p.kind == "attribute"), module)
    return 0.0


def _linked(attribute: str, module: Module) -> float:
    """How likely an attribute leads from one object to another, and from there back: it is assigned both ways."""
    pairs = {
        (id(fn), dotted(target.value), ast.unparse(value))
        for fn in module.functions
        for target, value in fn.assigns
        if isinstance(target, ast.Attribute) and target.attr == attribute
    }
    if any((fn, value, owner) in pairs and owner != value for fn, owner, value in pairs):
        return 0.8
    rings = (
        value
        for fn in module.functions
        for target, value in fn.assigns
        if isinstance(target, ast.Attribute) and target.attr == attribute and isinstance(value, ast.Subscript)
    )
    return 0.8 if any(_goes_round(value) for value in rings) else 0.0


def place(node: ast.expr, fn: Function, module: Module, depth: int = 0) -> Place | None:
    """The instance that a lock belongs to, or the element that it is; None when it is neither."""
    if isinstance(node, ast.Subscript):
        return _element(node, fn)
    if isinstance(node, ast.Name):
        value = fn.bound.get(node.id)
        if value is not None:
            return place(value, fn, module, depth + 1) if depth < ALIASES else None
        return Place("parameter", node.id, frozenset([node.id])) if node.id in fn.parameters else None
    if isinstance(node, ast.Attribute):
        return _owner(node.value, fn, module, depth)
    if isinstance(node, ast.Call) and len(node.args) == 1 and module.callee(node, fn) is not None:
        return Place("element", ast.unparse(node), names_in(node.args[0]))  # `locks.of(key)`
    return None


def _owner(node: ast.expr, fn: Function, module: Module, depth: int) -> Place | None:
    """The object that has a lock as an attribute."""
    if isinstance(node, ast.Name):
        if fn.cls is not None and node.id == fn.self_name:
            return Place("self", "self", frozenset())
        if node.id in fn.parameters and node.id not in fn.bound:
            return Place("parameter", node.id, frozenset([node.id]))
        value = fn.bound.get(node.id)
        if isinstance(value, ast.Name) and depth < ALIASES:
            return _owner(value, fn, module, depth + 1)
        return _element(value, fn) if isinstance(value, ast.Subscript) else None
    if isinstance(node, ast.Attribute) and fn.cls is not None and dotted(node.value) == fn.self_name:
        return Place("attribute", node.attr, frozenset([node.attr]))
    return _element(node, fn) if isinstance(node, ast.Subscript) else None


def _element(node: ast.Subscript, fn: Function) -> Place | None:
    """An element of a container, by its index."""
    index: ast.expr = node.slice
    if isinstance(index, ast.Name) and isinstance(fn.bound.get(index.id), ast.BinOp | ast.Call):
        index = fn.bound[index.id]
    if any(isinstance(n, ast.Call) and short_name(n.func) in _ORDERING for n in ast.walk(index)):
        return None
    names = frozenset(n.id for n in ast.walk(index) if isinstance(n, ast.Name))
    return Place("element", ast.unparse(node.value) + "[" + ast.unparse(index) + "]", names, _goes_round(index))


def _goes_round(index: ast.expr) -> bool:
    if isinstance(index, ast.Subscript):
        return _goes_round(index.slice)
    if not isinstance(index, ast.BinOp):
        return False
    one_less = isinstance(index.op, ast.Sub) and isinstance(index.right, ast.Constant) and index.right.value == 1
    return one_less or isinstance(index.op, ast.Mod)


def _given(one: Place, fn: Function) -> bool:
    """Whether the caller decides which element it is."""
    return bool(one.names) and all(name in fn.parameters and name not in fn.bound for name in one.names)


def _keeps_order(fn: Function, at: ast.expr, names: frozenset[str]) -> bool:
    """Whether the function sorts or swaps the objects, or takes the locks under a test of them."""
    assigned = [t.id for t, _ in fn.assigns if isinstance(t, ast.Name)] + [n.id for n in fn.stores]
    roots = set(names) | {n for n in assigned if _from(fn.bound.get(n), names)}
    if any(assigned.count(name) > 2 for name in roots):
        return True
    if any(short_name(call.func) in _ORDERING for call in fn.calls):
        return True
    test = enclosing(at, ast.If)
    while isinstance(test, ast.If):
        if any(isinstance(n, ast.Name) and n.id in roots for n in ast.walk(test.test)):
            return True
        test = enclosing(test, ast.If)
    return False


def _from(value: ast.expr | None, names: frozenset[str]) -> bool:
    return value is not None and any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(value))
