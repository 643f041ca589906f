"""The order in which locks are taken: every path that holds one lock and waits for another.

A path in terms of parameters (`with self.first: with self.second:`) is read once for each call that binds them, so
`Worker(a, b)` and `Worker(b, a)` give both orders. Two locks of one identity (`source.lock` and `target.lock`) make an
order of their own where nothing fixes which of the two objects comes first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from paceline.concurrency.check.flow.effects import Effect, lock_expression, runs_now
from paceline.concurrency.check.libraries.catalogue import LOCKS
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function, Resource
from paceline.concurrency.check.threads.instance_order import unordered
from paceline.concurrency.check.values.module import Module

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
                    if first.resource.kind in LOCKS and "Semaphore" not in first.resource.kind:
                        gates = frozenset(h.resource.id for h in locks_held if h is not first) | facts.guards(fn)
                        start = End(first.resource, first.node, fn)
                        yield from _bound(Edge(start, second, fn, first.line, steps, gates), facts.module, BINDINGS)


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


def _bound(edge: Edge, module: Module, depth: int) -> Iterator[Edge]:
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
            yield from _bound(edge._replace(first=ends[0], second=ends[1], bound=bound), module, depth - 1)


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
