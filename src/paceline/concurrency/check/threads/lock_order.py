"""The order of locks: which is taken before which, and whether anything fixes the order of two of one class.

`with self.lock: with other.lock:` takes the locks in the order of the arguments, and `forks[i]` before
`forks[(i + 1) % n]` goes round in a circle. `sorted`, `min`, `max`, a comparison around the locks or a swap keeps an
order. A chain of attributes (`node.lock`, then `node.next.lock`) has one by itself, unless two objects are linked to
each other (`a.peer = b` and `b.peer = a`) or all of them in a circle.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Set
from typing import NamedTuple

from paceline.concurrency.check.flow.effects import Effect, lock_expression, runs_now
from paceline.concurrency.check.libraries.catalogue import LOCKS
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function, Resource
from paceline.concurrency.check.syntax.tree import around, dotted, parent, short_name
from paceline.concurrency.check.values.module import Module

# Expressions in terms of what they were bound from: local names by their values, parameters by what is passed.
# `with self.left.lock:` of a philosopher, made by `Philosopher(forks[i], forks[(i + 1) % n])`, takes the lock of
# `forks[i]`. Only names that are bound once are replaced; others may mean something else by then.

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
    replaced: ast.expr = _Replace(names, fields, owner).visit(copy.deepcopy(node, {id(parent(node)): None}))
    return ast.copy_location(replaced, node)


class _Replace(ast.NodeTransformer):
    def __init__(self, names: dict[str, ast.expr], fields: dict[str, ast.expr], owner: str) -> None:
        self.names, self.fields, self.owner = names, fields, owner

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.names.get(node.id, node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == self.owner and node.attr in self.fields:
            return self.fields[node.attr]
        return self.generic_visit(node)


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
    # Of neighbours in a ring the last takes them the other way round.
    if one.ring != two.ring and one.kind == two.kind == "element":
        return 0.85
    kinds = {one.kind, two.kind}
    if kinds == {"element"}:
        return 0.7 if all(_given(p, fn) for p in (one, two)) else 0.0
    # A parent and its child are mostly locked in one order: from the root, or towards it.
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
    # A name that is assigned again and again is most likely swapped.
    if any(assigned.count(name) > 2 for name in roots):
        return True
    if any(short_name(call.func) in _ORDERING for call in fn.calls):
        return True
    return any(_from(test.test, roots) for test in around(at, ast.If))


def _from(value: ast.expr | None, names: Set[str]) -> bool:
    return value is not None and not names_in(value).isdisjoint(names)


# The order in which locks are taken: every path that holds one lock and waits for another.
# A path in terms of parameters (`with self.first: with self.second:`) is read once for each call that binds them, so
# `Worker(a, b)` and `Worker(b, a)` give both orders. Two locks of one identity (`source.lock` and `target.lock`) make
# an order of their own where nothing fixes which of the two objects comes first.

WITNESSES = 6  # paths kept per pair of locks
BINDINGS = 4  # calls through which a parameter is followed to what was passed
Steps = tuple[tuple[Function, ast.expr], ...]


class End(NamedTuple):
    """A lock at one end of an edge, as an expression of a function."""

    resource: Resource
    node: ast.expr
    fn: Function


class Edge(NamedTuple):
    """A path that holds one lock and waits for another."""

    first: End
    second: End
    fn: Function
    taken: int  # the line where the first was taken
    steps: Steps
    gates: frozenset[str]  # what else is held
    bound: Steps = ()  # the calls that bind the parameters among the locks


def edges(facts: Facts) -> Iterator[Edge]:
    """Every path of a file on which a lock is waited for while another one is held."""
    for fn in facts.module.functions:
        if fn.name in ("__init__", "__new__"):
            continue  # no other thread has the object yet
        for effect, locks_held in facts.events(fn):
            for second, steps in _taken(effect, fn, facts) if locks_held else ():
                reentries = [
                    h for h in locks_held if h.resource.id == second.resource.id and h.resource.kind == "RLock"
                ]
                for first in locks_held:
                    if reentries and first not in reentries:
                        continue  # taken again by the thread that holds it: it does not wait
                    # A semaphore lets several in, so that its holder need not keep out the one who waits.
                    if first.resource.kind in LOCKS and "Semaphore" not in first.resource.kind:
                        gates = frozenset(h.resource.id for h in locks_held if h is not first) | facts.guards(fn)
                        start = End(first.resource, first.node, fn)
                        yield from _bound_edges(
                            Edge(start, second, fn, first.line, steps, gates), facts.module, BINDINGS
                        )


def _taken(effect: Effect, fn: Function, facts: Facts) -> Iterator[tuple[End, Steps]]:
    """The locks that a call waits for, each with the path of calls to it."""
    if effect.kind == "take" and effect.resource is not None:
        if "Semaphore" not in effect.resource.kind:
            yield End(effect.resource, lock_expression(effect.node), fn), ((fn, effect.node),)
    elif effect.callee is not None and runs_now(effect):
        for take in facts.takes(effect.callee).values():
            if "Semaphore" in take.resource.kind:
                continue
            where, node = take.steps[-1]
            steps = ((fn, effect.node), *take.steps)
            formal = take.resource.formal
            if formal is not None and formal.function is effect.callee and isinstance(effect.node, ast.Call):
                argument = facts.module.objects.argument_at(formal.function, formal.name, effect.node)
                resource = argument and facts.module.resource(argument.value, fn)
                if argument is not None and resource is not None:
                    yield End(resource, argument.value, fn), steps
                    continue
            at = lock_expression(node)
            if take.same and isinstance(at, ast.Attribute) and (owner := _object(effect)) is not None:
                yield End(take.resource, ast.copy_location(ast.Attribute(owner, at.attr), owner), fn), steps
            else:
                yield End(take.resource, at, where), steps


def _object(effect: Effect) -> ast.expr | None:
    """The object whose method a call runs; None for a plain function."""
    function = effect.node.func if isinstance(effect.node, ast.Call) else effect.node
    return function.value if isinstance(function, ast.Attribute) else None


def _bound_edges(edge: Edge, module: Module, depth: int) -> Iterator[Edge]:
    """The edge once for each call that binds the parameters among its locks."""
    formal = edge.first.resource.formal or edge.second.resource.formal
    sites = module.objects.sites(formal.function) if formal is not None and depth else []
    if formal is None or not sites:
        yield edge
        return
    for site in sites:
        ends = [_passed(end, formal.function, site, module) for end in (edge.first, edge.second)]
        if ends[0] is not None and ends[1] is not None:
            bound = ((ends[0].fn, site), *edge.bound)
            yield from _bound_edges(edge._replace(first=ends[0], second=ends[1], bound=bound), module, depth - 1)


def _passed(end: End, owner: Function, site: ast.Call, module: Module) -> End | None:
    """What a call passes for a lock that is a parameter; the same lock when it is none, None when it is unknown."""
    formal = end.resource.formal
    if formal is None or formal.function is not owner:
        return end
    argument = module.objects.argument_at(owner, formal.name, site)
    resource = argument and module.resource(argument.value, argument.caller)
    return None if argument is None or resource is None else End(resource, argument.value, argument.caller)


def of_instances(edge: Edge, module: Module) -> float:
    """How likely two threads take two locks of one identity in opposite orders; 0 where an order is kept."""
    first, second = edge.first, edge.second
    if first.fn is not second.fn or "Semaphore" in first.resource.kind:
        return 0.0
    return unordered(first.node, second.node, first.fn, edge.steps[0][1], module)
