"""A change that waiters of a condition ask for, without a notification."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.rules.rule import Witness, resource_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function, Resource
from paceline.concurrency.check.syntax.names import dotted, is_constant, short_name
from paceline.concurrency.check.syntax.tree import enclosing, parent
from paceline.concurrency.check.threads.accesses import Access
from paceline.concurrency.check.threads.shared_state import BEGINNINGS, accesses_of_class, accesses_of_globals

CONDITIONS = ("Condition", "AsyncCondition")
UP, DOWN = "up", "down"  # the change of an attribute that can end a wait
_MORE = (ast.Gt, ast.GtE)
_LESS = (ast.Lt, ast.LtE)


def find(facts: Facts) -> Iterator[Witness]:
    """Report changes that can end a wait in functions that notify no waiter, themselves or around a call."""
    waits = list(_waits(facts))
    if not waits:
        return
    notifying = _notifying(facts)
    reported: set[tuple[int, str]] = set()
    for fn, call, condition in waits:
        for part, holds in _asked(fn, call):
            for node, way in _directions(part, holds):
                for access in _accesses(node, fn, facts):
                    key = id(access.fn), access.thing
                    if key in reported or not _ends(access, way) or access.fn.name in BEGINNINGS:
                        continue
                    if condition.id in access.locks:
                        late = _silent(access.fn, condition, notifying, facts)
                    else:
                        late = _notified_before(access, condition, facts)
                    if not late:
                        continue
                    reported.add(key)
                    yield Witness(access.node, access.fn, access=access, condition=condition.id, caller=fn, call=call)


def _waits(facts: Facts) -> Iterator[tuple[Function, ast.Call, Resource]]:
    """The waits for a condition of this file that have no timeout."""
    for fn in facts.module.functions:
        for call in fn.calls:
            resource = resource_of(call, ("wait", "wait_for"), fn, facts)
            is_condition = (
                resource is not None and resource.kind in CONDITIONS and resource.sure and not resource.one_of_several
            )
            if resource is not None and is_condition and not has_timeout(call, short_name(call.func)):
                yield fn, call, resource


def _asked(fn: Function, call: ast.Call) -> Iterator[tuple[ast.expr, bool]]:
    """What a wait asks for, and whether it continues waiting while that is true."""
    if short_name(call.func) == "wait_for":
        predicate = call.args[0] if call.args else None
        if isinstance(predicate, ast.Lambda):
            yield predicate.body, False
        return
    loop = enclosing(call, ast.While)
    if isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant):
        yield loop.test, True


def _directions(test: ast.expr, waits: bool) -> Iterator[tuple[ast.expr, str]]:
    """The attributes and globals of a test, each with the change that can end a wait while the test has this value."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _directions(value, waits)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _directions(test.operand, not waits)
    elif isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = _counted(test.left), _counted(test.comparators[0])
        operator = test.ops[0]
        equal = isinstance(operator, ast.Eq) and is_constant(right, 0)
        rises = isinstance(operator, _LESS) or equal
        if isinstance(operator, _LESS + _MORE) or equal or (isinstance(operator, ast.NotEq) and is_constant(right, 0)):
            yield left, UP if rises == waits else DOWN
            yield right, DOWN if rises == waits else UP
        elif isinstance(operator, ast.Is | ast.IsNot) and is_constant(right, None):
            yield left, UP if isinstance(operator, ast.Is) == waits else DOWN
    else:
        yield _counted(test), DOWN if waits else UP


def _counted(node: ast.expr) -> ast.expr:
    """The container of which a length is taken."""
    return node.args[0] if isinstance(node, ast.Call) and short_name(node.func) == "len" and node.args else node


def _accesses(node: ast.expr, fn: Function, facts: Facts) -> list[Access]:
    """The accesses of an attribute of the own object, or of a global."""
    if isinstance(node, ast.Attribute) and fn.cls is not None and dotted(node.value) == fn.self_name:
        owners: list[Class] = [cls for cls in fn.cls.ancestry if node.attr in cls.values]
        return [a for cls in owners for a in accesses_of_class(cls, facts).get(node.attr, ())]
    return accesses_of_globals(facts).get(node.id, []) if isinstance(node, ast.Name) else []


def _ends(access: Access, way: str) -> bool:
    """Whether a change goes in the direction that can end the wait."""
    if access.kind in ("grow", "shrink"):
        method = parent(access.node)
        moved = isinstance(method, ast.Attribute) and method.attr == "move_to_end"
        return (access.kind == "grow") == (way == UP) and not moved
    if access.kind == "update":
        operator = getattr(parent(access.node), "op", None)
        return isinstance(operator, ast.Add if way == UP else ast.Sub)
    assigned = parent(access.node)
    value = assigned.value if isinstance(assigned, ast.Assign) else None
    if access.kind == "write" and way == UP and isinstance(value, ast.Name | ast.Call):
        return True
    if access.kind not in ("write", "none") or not isinstance(value, ast.Constant):
        return False
    return bool(value.value) == (way == UP)


def _notifying(facts: Facts) -> dict[int, set[str]]:
    """Function -> the conditions that it notifies, itself or by a call."""
    conditions: dict[int, set[str]] = {}
    for fn in facts.module.functions:
        for call in fn.calls:
            woken = resource_of(call, ("notify", "notify_all", "notifyAll"), fn, facts)
            if woken is not None:
                conditions.setdefault(id(fn), set()).add(woken.id)
    changed = bool(conditions)
    while changed:
        changed = False
        for fn in facts.module.functions:
            for effect in facts.walker.effects(fn):
                new = conditions.get(id(effect.callee), set()) if effect.callee is not None else set()
                if new - conditions.get(id(fn), set()):
                    conditions.setdefault(id(fn), set()).update(new)
                    changed = True
    return conditions


def _silent(fn: Function, condition: Resource, notifying: dict[int, set[str]], facts: Facts) -> bool:
    """Whether neither a function nor any that calls it notifies a condition."""
    callers = [caller for caller, _ in facts.callers.get(id(fn), ())]
    return all(condition.id not in notifying.get(id(each), ()) for each in (fn, *callers))


def _notified_before(access: Access, condition: Resource, facts: Facts) -> bool:
    """Whether a change without the condition comes after the notification of its function."""
    woken = ((c, resource_of(c, ("notify", "notify_all"), access.fn, facts)) for c in access.fn.calls)
    lines = [call.lineno for call, found in woken if found is not None and found.id == condition.id]
    return bool(lines) and max(lines) < access.line
