"""Conditions that are waited for or notified in the wrong way."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import has_timeout, text_of
from paceline.concurrency.check.libraries.catalogue import NOTIFY
from paceline.concurrency.check.rules.rule import Witness, resource_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function, Resource
from paceline.concurrency.check.syntax.names import dotted, is_constant, short_name
from paceline.concurrency.check.syntax.tree import enclosing, parent
from paceline.concurrency.check.threads.accesses import SHRINKS, Access
from paceline.concurrency.check.threads.roots import in_loop
from paceline.concurrency.check.threads.shared_state import (
    BEGINNINGS,
    accesses_of_class,
    accesses_of_globals,
    is_teardown,
)


def wait_outside_loop(facts: Facts) -> Iterator[Witness]:
    """Report waits for a condition that neither the function nor its callers repeat in a loop."""
    for fn in facts.module.functions:
        calls = [(caller, event.effect.node) for caller, event in facts.callers.get(id(fn), ())]
        if fn.name.startswith("wait") and (not calls or any(in_loop(node, caller) for caller, node in calls)):
            continue  # its callers put it into a loop
        for effect in facts.walker.effects(fn):
            if effect.kind != "wait" or effect.waits_for != NOTIFY or effect.timeout or effect.resource is None:
                continue
            call = effect.node
            assert isinstance(call, ast.Call)
            assert isinstance(call.func, ast.Attribute)
            if call.func.attr != "wait" or not effect.resource.sure:
                continue
            loops = [event for caller, event in facts.callers.get(id(fn), ()) if in_loop(event.effect.node, caller)]
            if loops and not _unchecked(call) and not _acts(call):
                continue  # the loop of the caller checks again
            if enclosing(call, ast.While, ast.For, ast.AsyncFor) is not None:
                if _checked_outside(call):
                    yield _outside(fn, call, effect.resource.id)
                continue
            yield Witness(call, fn, confidence=0.5 if loops else 0.75, effect=effect)


def _checked_outside(call: ast.Call) -> bool:
    """Whether the loop checks the state before it takes the condition."""
    around = enclosing(call, ast.With, ast.AsyncWith, ast.While, ast.For, ast.AsyncFor)
    if not isinstance(around, ast.With | ast.AsyncWith) or len(around.body) != 1:
        return False
    loop = enclosing(around, ast.With, ast.AsyncWith, ast.While, ast.If)
    return isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant)


def _acts(call: ast.Call) -> bool:
    """Whether the function takes something away right after the wait, whatever its caller checks."""
    test = enclosing(call, ast.With, ast.AsyncWith, ast.While, ast.If)
    around = parent(test) if isinstance(test, ast.If) else None
    if not isinstance(around, ast.With | ast.AsyncWith) or test not in around.body:
        return False
    after = around.body[around.body.index(test) + 1 :]
    return any(isinstance(n, ast.Call) and short_name(n.func) in SHRINKS for s in after for n in ast.walk(s))


def _unchecked(call: ast.Call) -> bool:
    """Whether the function takes the condition itself, and then waits without a look at any state."""
    around = enclosing(call, ast.With, ast.AsyncWith, ast.While, ast.For, ast.If)
    return isinstance(around, ast.With | ast.AsyncWith) and len(around.body) == 1


def _outside(fn: Function, call: ast.Call, condition: str) -> Witness:
    line = getattr(enclosing(call, ast.While), "lineno", call.lineno)
    return Witness(call, fn, "outside", line=line, condition=condition)


def notify_without_lock(facts: Facts) -> Iterator[Witness]:
    """Report notifications in public functions that hold nothing."""
    for fn in facts.module.functions:
        if fn.name.startswith("_") or "notify" in fn.name or fn.name.endswith("locked"):
            continue  # the callers may hold it
        for call in fn.calls:
            resource = resource_of(call, ("notify", "notify_all", "notifyAll"), fn, facts)
            if resource is None or resource.kind not in ("Condition", "AsyncCondition") or not resource.sure:
                continue
            called = any(event.held for _, event in facts.callers.get(id(fn), ()))
            if not facts.held_at(call, fn) and not called:
                yield Witness(call, fn, resource=resource, condition=text_of(call).rpartition(".")[0])


CONDITIONS = ("Condition", "AsyncCondition")


def notify_one(facts: Facts) -> Iterator[Witness]:
    """Report functions that end something and notify one waiter, where the waiters are several."""
    for fn in facts.module.functions:
        for call in fn.calls:
            resource = resource_of(call, ("notify",), fn, facts)
            if resource is None or resource.kind not in CONDITIONS or call.args or call.keywords:
                continue
            flags = {dotted(t) for t, v in fn.assigns if isinstance(v, ast.Constant) and t.lineno <= call.lineno}
            if not is_teardown(fn):
                flags = {flag for flag in flags if _stays(flag, fn, facts)}
            waits = list(_notify_one_waits(resource.id, facts))
            asking = [(f, w) for f, w in waits if _asks(w, flags, fn, f)]
            if not asking and (kinds := _of_two_kinds(call, waits)) is not None:
                yield _report_kinds(call, fn, resource.id, *kinds)
            if asking and (len({id(f) for f, _ in waits}) > 1 or _in_several(asking[0][0], facts)):
                yield _report(call, fn, resource.id, *asking[0])


def _of_two_kinds(
    call: ast.Call, waits: list[tuple[Function, ast.Call]]
) -> tuple[tuple[Function, ast.Call], tuple[Function, ast.Call]] | None:
    """Two waits for the notified condition that ask for different things, in functions that both notify one waiter."""
    name = short_name(call.func.value)  # type: ignore[attr-defined]
    same = [(f, w) for f, w in waits if short_name(w.func.value) == name]  # type: ignore[attr-defined]
    tests = {id(f): ast.dump(loop.test) for f, w in same if isinstance(loop := enclosing(w, ast.While), ast.While)}
    notifying = [(f, w) for f, w in same if any(short_name(c.func) == "notify" for c in f.calls) and id(f) in tests]
    both = [pair for pair in notifying if tests[id(pair[0])] != tests[id(notifying[0][0])]]
    return (notifying[0], both[0]) if both and notifying[0][1].lineno < call.lineno < both[0][1].lineno else None


def _report_kinds(
    call: ast.Call, fn: Function, condition: str, one: tuple[Function, ast.Call], two: tuple[Function, ast.Call]
) -> Witness:
    return Witness(call, fn, "kinds", one=one, two=two, condition=condition)


def _stays(flag: str, fn: Function, facts: Facts) -> bool:
    """Whether a flag that a method sets is never assigned again, besides where the object is made."""
    name = flag.removeprefix(f"{fn.self_name}.")
    if fn.cls is None or name == flag:
        return False
    others = (other for other in facts.module.functions if other is not fn and other.name != "__init__")
    return not any(isinstance(t, ast.Attribute) and t.attr == name for other in others for t, _ in other.assigns)


def _notify_one_waits(condition: str, facts: Facts) -> Iterator[tuple[Function, ast.Call]]:
    """Where a condition is waited for without a timeout."""
    for fn in facts.module.functions:
        for call in fn.calls:
            resource = resource_of(call, ("wait", "wait_for"), fn, facts)
            if resource is not None and resource.id == condition and not has_timeout(call, short_name(call.func)):
                yield fn, call


def _asks(wait: ast.Call, flags: set[str], ends: Function, fn: Function) -> bool:
    """Whether a waiter asks for one of the flags, in a test around the wait or in its predicate."""
    around = (enclosing(wait, ast.While), enclosing(wait, ast.If))
    expressions: list[ast.AST] = [*wait.args, *(test for test in around if test is not None)]
    names = {f"{fn.self_name}.{flag.removeprefix(ends.self_name + '.')}" for flag in flags}
    return any(dotted(n) in names for part in expressions for n in ast.walk(part))


def _in_several(fn: Function, facts: Facts) -> bool:
    """Whether several threads run a function: it is public, or a thread that is started more than once."""
    roots = [root for root in facts.roots if root.function is fn]
    return any(root.several for root in roots) or (not roots and not fn.name.startswith("_"))


def _report(call: ast.Call, fn: Function, condition: str, waiter: Function, wait: ast.Call) -> Witness:
    return Witness(call, fn, waiter=waiter, wait=wait, condition=condition)


UP, DOWN = "up", "down"  # the change of an attribute that can end a wait


_MORE = (ast.Gt, ast.GtE)


_LESS = (ast.Lt, ast.LtE)


def unannounced(facts: Facts) -> Iterator[Witness]:
    """Report changes that can end a wait in functions that notify no waiter, themselves or around a call."""
    waits = list(_unannounced_waits(facts))
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


def _unannounced_waits(facts: Facts) -> Iterator[tuple[Function, ast.Call, Resource]]:
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
