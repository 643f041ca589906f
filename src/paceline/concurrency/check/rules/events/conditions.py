"""Conditions that are waited for or notified in the wrong way, and timeouts and limits that do nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import has_timeout, text_of
from paceline.concurrency.check.libraries.catalogue import NOTIFY, THREAD_EVENTS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts, Use
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.tree import dotted, enclosing, is_constant, names_of, parent, short_name
from paceline.concurrency.check.threads.accesses import SHRINKS, Access
from paceline.concurrency.check.threads.roots import in_loop
from paceline.concurrency.check.threads.shared_state import (
    BEGINNINGS,
    accesses_of_class,
    accesses_of_globals,
    is_teardown,
)
from paceline.concurrency.check.values.bindings import start_arguments

CONDITIONS = ("Condition", "AsyncCondition")
NOTIFIES = ("notify", "notify_all", "notifyAll")


def wait_outside_loop(facts: Facts) -> Iterator[Witness]:
    """Report waits for a condition that neither the function nor its callers repeat in a loop."""
    for fn in facts.module.functions:
        calls = [(caller, event.effect.node) for caller, event in facts.callers.get(id(fn), ())]
        if fn.name.startswith("wait") and (not calls or any(in_loop(node, caller) for caller, node in calls)):
            continue  # its callers put it into a loop
        for effect in facts.walker.effects(fn):
            call = effect.node
            if effect.waits_for != NOTIFY or effect.timeout or effect.resource is None or not effect.resource.sure:
                continue
            if not isinstance(call, ast.Call) or short_name(call.func) != "wait":
                continue
            loops = [node for caller, node in calls if in_loop(node, caller)]
            if loops and not _unchecked(call) and not _acts(call):
                continue  # the loop of the caller checks again
            if enclosing(call, ast.While, ast.For, ast.AsyncFor) is not None:
                if _checked_outside(call):
                    line = getattr(enclosing(call, ast.While), "lineno", call.lineno)
                    yield Witness(call, fn, "outside", line=line, condition=effect.resource.id)
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


def notify_without_lock(facts: Facts) -> Iterator[Witness]:
    """Report notifications in public functions that hold nothing."""
    for use in facts.uses(NOTIFIES, CONDITIONS):
        name = use.fn.name
        if name.startswith("_") or "notify" in name or name.endswith("locked") or not use.resource.sure:
            continue  # the callers may hold it
        called = any(event.held for _, event in facts.callers.get(id(use.fn), ()))
        if not facts.held_at(use.call, use.fn) and not called:
            yield Witness(use.call, use.fn, resource=use.resource, condition=text_of(use.call).rpartition(".")[0])


def notify_one(facts: Facts) -> Iterator[Witness]:
    """Report functions that end something and notify one waiter, where the waiters are several."""
    for use in facts.uses(("notify",), CONDITIONS):
        fn, call = use.fn, use.call
        # `notify(n)` says how many are to be woken.
        if call.args or call.keywords:
            continue
        flags = {dotted(t) for t, v in fn.assigns if isinstance(v, ast.Constant) and t.lineno <= call.lineno}
        if not is_teardown(fn):
            flags = {flag for flag in flags if _stays(flag, fn, facts)}
        waits = [w for w in _waits(facts) if w.of == use.of]
        asking = [w for w in waits if _asks(w.call, flags, fn, w.fn)]
        if not asking and (kinds := _of_two_kinds(call, waits)) is not None:
            yield Witness(call, fn, "kinds", one=kinds[0], two=kinds[1], condition=use.of)
        # A single waiter is woken by `notify` as well.
        if asking and (len({id(w.fn) for w in waits}) > 1 or _in_several(asking[0].fn, facts)):
            yield Witness(call, fn, wait=asking[0], condition=use.of)


def _waits(facts: Facts) -> list[Use]:
    """Where conditions are waited for without a timeout."""
    waits = facts.uses(("wait", "wait_for"))
    return [use for use in waits if not has_timeout(use.call, short_name(use.call.func))]


def _of_two_kinds(call: ast.Call, waits: list[Use]) -> tuple[Use, Use] | None:
    """Two waits for the notified condition that ask for different things, in functions that both notify one waiter."""
    name = short_name(call.func.value)  # type: ignore[attr-defined]
    same = [w for w in waits if short_name(w.call.func.value) == name]  # type: ignore[attr-defined]
    tests = {id(w.fn): ast.dump(loop.test) for w in same if isinstance(loop := enclosing(w.call, ast.While), ast.While)}
    notifying = [w for w in same if any(short_name(c.func) == "notify" for c in w.fn.calls) and id(w.fn) in tests]
    both = [w for w in notifying if tests[id(w.fn)] != tests[id(notifying[0].fn)]]
    return (notifying[0], both[0]) if both and notifying[0].line < call.lineno < both[0].line else None


def _stays(flag: str, fn: Function, facts: Facts) -> bool:
    """Whether a flag that a method sets is never assigned again, besides where the object is made."""
    name = flag.removeprefix(f"{fn.self_name}.")
    if fn.cls is None or name == flag:
        return False
    others = (other for other in facts.module.functions if other is not fn and other.name != "__init__")
    return not any(isinstance(t, ast.Attribute) and t.attr == name for other in others for t, _ in other.assigns)


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


_MORE = (ast.Gt, ast.GtE)
_LESS = (ast.Lt, ast.LtE)
UP, DOWN = "up", "down"  # the change of an attribute that can end a wait


def unannounced(facts: Facts) -> Iterator[Witness]:
    """Report changes that can end a wait in functions that notify no waiter, themselves or around a call."""
    waits = [w for w in _waits(facts) if w.resource.kind in CONDITIONS and w.resource.sure]
    notifying = _notifying(facts) if waits else {}
    reported: set[tuple[int, str]] = set()
    for wait in (w for w in waits if not w.resource.one_of_several):
        parts = [pair for asked, holds in _asked(wait.call) for pair in _directions(asked, holds)]
        for access, way in ((access, way) for node, way in parts for access in _accesses(node, wait.fn, facts)):
            key = id(access.fn), access.thing
            if key in reported or not _ends(access, way) or access.fn.name in BEGINNINGS:
                continue
            if _is_late(access, wait.of, notifying, facts):
                reported.add(key)
                yield Witness(access.node, access.fn, access=access, condition=wait.of, caller=wait.fn, call=wait.call)


def _asked(call: ast.Call) -> Iterator[tuple[ast.expr, bool]]:
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
    # What is assigned is not known, but is more likely something than nothing.
    if access.kind == "write" and way == UP and isinstance(value, ast.Name | ast.Call):
        return True
    if access.kind not in ("write", "none") or not isinstance(value, ast.Constant):
        return False
    return bool(value.value) == (way == UP)


def _notifying(facts: Facts) -> dict[int, set[str]]:
    """Function -> the conditions that it notifies, itself or by a call."""
    conditions: dict[int, set[str]] = {}
    for use in facts.uses(NOTIFIES):
        conditions.setdefault(id(use.fn), set()).add(use.of)
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


def _is_late(access: Access, condition: str, notifying: dict[int, set[str]], facts: Facts) -> bool:
    """Whether nothing around a change notifies a condition, or, where it is not held, nothing after the change."""
    if condition in access.locks:
        callers = [caller for caller, _ in facts.callers.get(id(access.fn), ())]
        return all(condition not in notifying.get(id(each), ()) for each in (access.fn, *callers))
    lines = [use.line for use in facts.uses(NOTIFIES[:2], of=condition) if use.fn is access.fn]
    return bool(lines) and max(lines) < access.line


# Timeouts whose outcome is ignored, and limits that do not limit.

ASKS = ("is_alive", "exitcode", "terminate", "kill")


def timeout_unnoticed(facts: Facts) -> Iterator[Witness]:
    """Report waits whose result is dropped, before a use of what the setter of the event has stored."""
    for fn in facts.module.functions:
        yield from _joined(fn, facts)
        for call in fn.calls:
            if not _unnoticed(call, fn, facts):
                continue
            read = _used(call, fn)
            setter = _stores(read, call, fn, facts) if read is not None else None
            if read is not None and setter is not None:
                yield Witness(call, fn, read=read, setter=setter)
                break


def _joined(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`child.join(60)`, and then a use of what the child was given, whether or not it has ended."""
    for target, value in fn.assigns:
        if not isinstance(target, ast.Name) or not isinstance(value, ast.Call):
            continue
        if facts.module.constructed_kind(value, fn) not in ("Process", "Thread"):
            continue
        join = next((c for c in fn.calls if dotted(c.func) == f"{target.id}.join" and has_timeout(c, "join")), None)
        is_checked = any(dotted(a) in [f"{target.id}.{how}" for how in ASKS] for a in fn.attributes)
        if join is None or is_checked or not isinstance(parent(join), ast.Expr):
            continue
        names = {n.id for argument in start_arguments(value, fn) for n in names_of(argument)}
        later = (n for n in fn.names if n.id in names - {fn.self_name, target.id} and n.lineno > join.lineno)
        used = next((n for n in later if enclosing(n, ast.Call) is not None), None)
        if used is not None:
            yield Witness(join, fn, "joined", used=used)


def _unnoticed(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether this waits for an event with a timeout, outside a loop, and drops what the wait returns."""
    if short_name(call.func) != "wait" or not isinstance(call.func, ast.Attribute) or not has_timeout(call, "wait"):
        return False
    dropped = isinstance(parent(call), ast.Expr) and enclosing(call, ast.While, ast.For) is None
    event = call.func.value
    resource = facts.module.resource(event, fn) if dropped else None
    if resource is not None:
        return resource.kind in THREAD_EVENTS
    key = event.slice if isinstance(event, ast.Subscript) else None
    return dropped and isinstance(key, ast.Constant) and _is_event(key.value, facts)


def _is_event(key: object, facts: Facts) -> bool:
    """Whether some dictionary of this file has an event under a key."""
    dicts = (n for c, _ in facts.module.calls if isinstance(n := parent(c), ast.Dict))
    return any(
        is_constant(k, key) and isinstance(v, ast.Call) and short_name(v.func) == "Event"
        for n in dicts
        for k, v in zip(n.keys, n.values, strict=True)
    )


def _used(call: ast.Call, fn: Function) -> ast.expr | None:
    """What is returned after the wait: an attribute or item that nothing has tested since."""
    later = [r for r in fn.returns if r.value is not None and r.lineno > call.lineno]
    read = later[0].value if later else None
    if not isinstance(read, ast.Attribute | ast.Subscript) or not dotted(read).strip("[]"):
        return None
    text = ast.unparse(read)
    tests = [t.test for t in fn.tests if t.lineno > call.lineno]
    event = ast.unparse(call.func.value)  # type: ignore[attr-defined]
    is_checked = any(part in ast.unparse(test) for test in tests for part in (text, event))
    return None if is_checked or enclosing(later[0], ast.If) is not enclosing(call, ast.If) else read


def _stores(read: ast.expr, call: ast.Call, fn: Function, facts: Facts) -> Function | None:
    """Another function that stores what is read, and then sets an event of the same object."""
    name = _last(read)
    event = _last(call.func.value)  # type: ignore[attr-defined]
    for other in facts.module.functions:
        sets = [c for c in other.calls if short_name(c.func) == "set" and _last(getattr(c.func, "value", c)) == event]
        stored = [t for t, _ in other.assigns if isinstance(t, ast.Attribute | ast.Subscript) and _last(t) == name]
        if other is not fn and any(s.lineno <= c.lineno for s in stored for c in sets):
            return other
    return None


def _last(node: ast.expr) -> object:
    """The attribute or the constant key at the end of an expression."""
    if isinstance(node, ast.Subscript):
        return node.slice.value if isinstance(node.slice, ast.Constant) else ""
    return short_name(node)


STARTS = ("submit", "apply_async", "start")
WAITS = ("result", "join", "get", "wait", "map", "as_completed", "run")


def slot_freed(facts: Facts) -> Iterator[Witness]:
    """Report blocks of a semaphore that start a task and wait for nothing."""
    for fn in facts.module.functions:
        for block in fn.withs:
            slots = facts.module.resource(block.items[0].context_expr, fn) if isinstance(block, ast.With) else None
            if slots is None or slots.kind != "Semaphore" or not slots.sure:
                continue
            calls = [n for s in block.body for n in ast.walk(s) if isinstance(n, ast.Call)]
            start = next((c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr in STARTS), None)
            # A block that waits for what it has started holds its slot meanwhile.
            if start is not None and not any(short_name(c.func) in WAITS for c in calls):
                yield Witness(start, fn, slots=slots.id)
