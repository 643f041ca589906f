"""Locks that stay taken, are given up by others, or keep no one out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import Effect, text_of
from paceline.concurrency.check.flow.walk import Leak
from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS, LOCKS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function, Resource
from paceline.concurrency.check.syntax.graph import may_raise
from paceline.concurrency.check.syntax.tree import (
    contexts_around,
    dotted,
    enclosing,
    following,
    is_constant,
    last_line,
    parent,
)
from paceline.concurrency.check.threads.evidence import IMPORTS, of_threads
from paceline.concurrency.check.threads.shared_state import BEGINNINGS

EXITS = {"__enter__": "__exit__", "__aenter__": "__aexit__"}
HANDS_ON = ("acquire", "lock", "enter", "aenter", "release_save")


def lock_leak(facts: Facts) -> Iterator[Witness]:
    """Report leaks of the walk, in functions that release the lock on another path."""
    for fn in facts.module.functions:
        yield from _entered(fn, facts)
        # A function that is called so is meant to leave the lock to its caller.
        if fn.name.strip("_").lower().startswith(HANDS_ON) or fn.name.lower().endswith("lock"):
            continue
        walk = facts.walk(fn)
        # A walk that was cut off has not seen every path, and a release may be on the others.
        if walk.cut or not walk.leaks:
            continue
        reported: set[str] = set()
        dropped = facts.drops(fn)  # taken again at the end, as the caller expects
        for leak in sorted(walk.leaks, key=lambda leak: (leak.raised, leak.line)):
            lock = leak.held.resource
            # An exception at the top of a module ends its import, and with it mostly the program.
            expected = lock.id in dropped and dropped[lock.id].line < leak.held.line
            if lock.id in reported or expected or (leak.raised and fn is facts.module.top):
                continue
            if _within(leak, fn, facts):
                continue
            frees = [m for m, _ in walk.events if m.line != leak.held.line and _gives_back(m, lock, facts)]
            kinds = ("call",) if leak.held.by_callee else ("take", "try")
            take = next((m for m, _ in walk.events if m.kind in kinds and m.line == leak.held.line), None)
            # Without any release of its own the function leaves the lock to others on purpose; and a release under a
            # flag may be the right one, since the walk does not know when the flag is true.
            if not frees or take is None or _depends(take, frees):
                continue
            # A release in handlers alone undoes what failed: on success the caller is meant to hold the lock.
            in_handlers = all(enclosing(free.node, ast.ExceptHandler) is not None for free in frees)
            if in_handlers if leak.held.by_callee else _handed_on(lock, fn, facts):
                continue
            reported.add(lock.id)
            yield _report(fn, leak, take, min(m.line for m in frees))


def _gives_back(effect: Effect, lock: Resource, facts: Facts) -> bool:
    """Whether a call releases a lock, itself or in the function that it runs."""
    if effect.callee is not None:
        return lock.id in facts.drops(effect.callee)
    return effect.kind == "free" and effect.resource is not None and effect.resource.id == lock.id


def _entered(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`__enter__` that raises after it has taken what only `__exit__` releases, which then does not run."""
    leaves = fn.cls.method(EXITS[fn.name]) if fn.name in EXITS and fn.cls is not None else None
    frees = any(m.kind == "free" for m in facts.walker.effects(fn)) if leaves is not None else True
    walk = None if frees else facts.walk(fn)
    for leak in sorted(walk.leaks, key=lambda leak: leak.line) if walk is not None and not walk.cut else ():
        freed = facts.drops(leaves).get(leak.held.resource.id) if leaves is not None else None
        takes = (m for m, _ in walk.events if m.kind == "take" and m.line == leak.held.line)  # type: ignore[union-attr]
        take = next(takes, None)
        if leak.raised and leak.line > leak.held.line and freed is not None and take is not None:
            yield _report(fn, leak, take, freed.line)
            return


def _within(leak: Leak, fn: Function, facts: Facts) -> bool:
    """Whether a `with` of the same lock is around: it was released in between, and the `with` releases it at last."""
    entered = (facts.module.resource(context, fn) for context in contexts_around(leak.held.node))
    return any(lock is not None and lock.id == leak.held.resource.id for lock in entered)


def _handed_on(lock: Resource, fn: Function, facts: Facts) -> bool:
    """Whether this is a permit of a semaphore that another function releases, such as the task that was started."""
    others = (other for other in facts.module.functions if other is not fn and lock.kind == "Semaphore")
    effects = (effect for other in others for effect in facts.walker.effects(other))
    return any(e.kind == "free" and e.resource is not None and e.resource.id == lock.id for e in effects)


def _depends(take: Effect, frees: list[Effect]) -> bool:
    """Whether the release depends on a condition, which may be the one under which the lock was taken."""
    around = enclosing(take.node, ast.If, ast.While)
    for free in frees:
        condition = enclosing(free.node, ast.If)
        if isinstance(condition, ast.If) and condition is not around and _tests_a_flag(condition, take):
            return True
    return False


def _tests_a_flag(condition: ast.If, take: Effect) -> bool:
    """Whether a condition tests a flag for the lock being held."""
    # What is taken under a condition, or only tried, is rightly released under the same condition.
    if isinstance(enclosing(take.node, ast.If), ast.If) or take.kind == "try":
        return True
    test = condition.test.operand if isinstance(condition.test, ast.UnaryOp) else condition.test
    name = test.id if isinstance(test, ast.Name) else test.attr if isinstance(test, ast.Attribute) else ""
    return any(word in name.lower() for word in ("lock", "acquired", "held", "owned", "taken"))


def _report(fn: Function, leak: Leak, take: Effect, freed: int) -> Witness:
    sure, way, how = 0.85, f"the path that leaves at line {leak.line}", ""
    if leak.raised:
        sure, way, how = 0.6, f"an exception at line {leak.line}", " by an exception"
    sure, leaves = sure - (0 if leak.held.resource.sure else 0.1), f"leaves{how} without releasing it"
    return Witness(take.node, fn, confidence=sure, leak=leak, way=way, freed=freed, take=take, leaves=leaves)


def left_taken(facts: Facts) -> Iterator[Witness]:
    """Report marks that an exception leaves set, and counts that it leaves too high."""
    for fn in facts.module.functions:
        yield from _counts(fn, facts)
        # While an object is being made, no one else can ask for its marks.
        if fn.name not in BEGINNINGS and fn.cls is not None:
            yield from _marks(fn, facts)


def _marks(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`self.busy = True`, then work, then `self.busy = False`, without a `finally`."""
    assert fn.cls is not None
    for statement in (n for block in _blocks(fn.node) for n in block):
        mark = _set_mark(statement, fn)
        rest = following(statement) if mark else []
        reset = next((i for i, s in enumerate(rest) if _resets(s, mark, statement)), 0)
        work = next((s for s in rest[:reset] if _may_fail(s)), None)
        check = _asked(mark, statement, fn, facts) if work is not None else None
        if work is not None and check is not None:
            # Without tasks or a sign of threads nobody asks for the mark while it is set.
            if not fn.asynchronous and of_threads(fn.cls, facts) < IMPORTS:
                continue
            yield _report_mark(fn, mark, statement, work, rest[reset], check)
            return


def _counts(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`self.used += 1`, then `return await connect()`: where that fails, nothing lowers the count."""
    for change in fn.augmented if fn.asynchronous and fn.cls is not None else ():
        mark = dotted(change.target)
        name = mark.rpartition(".")[2]
        if not isinstance(change.op, ast.Add) or not mark.startswith(f"{fn.self_name}."):
            continue
        back = [
            (m, a)
            for m in fn.cls.methods.values()  # type: ignore[union-attr]
            for a in m.augmented
            if isinstance(a.op, ast.Sub) and dotted(a.target) == f"{m.self_name}.{name}"
        ]
        rest = following(change)
        work = next((s for s in rest if _may_fail(s) and any(isinstance(n, ast.Await) for n in ast.walk(s))), None)
        hands_out = any(isinstance(s, ast.Return) and s.value is not None for s in rest)
        check = _asked(mark, change, fn, facts) if work is not None else None
        # The count is of what the function returns and is lowered when that comes back, so only a failure leaves it too
        # high.
        if back and all(m is not fn for m, _ in back) and hands_out and work is not None and check is not None:
            yield _report_mark(fn, mark, change, work, back[0][1], check)
            return


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The blocks of statements of a function, those of functions inside it left out."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
            for statement in block:
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield from _blocks(statement)


def _set_mark(statement: ast.stmt, fn: Function) -> str:
    """The attribute that a statement sets to True, or counts up."""
    if isinstance(statement, ast.Assign) and is_constant(statement.value, True):
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        target = statement.target
    else:
        return ""
    on_self = isinstance(target, ast.Attribute) and dotted(target.value) == fn.self_name
    return dotted(target) if on_self else ""


def _resets(statement: ast.stmt, mark: str, start: ast.stmt) -> bool:
    """Whether a statement resets the mark."""
    if isinstance(start, ast.Assign):
        same = isinstance(statement, ast.Assign) and dotted(statement.targets[0]) == mark
        return same and is_constant(statement.value, False)  # type: ignore[attr-defined]
    return (
        isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Sub) and dotted(statement.target) == mark
    )


def _may_fail(statement: ast.stmt) -> bool:
    """Whether a statement does work outside of a `try`: an await, or a call that is not about logs."""
    # A `try` may put the mark right in a handler or a `finally`.
    if isinstance(statement, ast.Try):
        return False
    calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call)]
    return may_raise(statement) and any(not _harmless(c) for c in calls)


def _harmless(call: ast.Call) -> bool:
    text = dotted(call.func).lower()
    return "log" in text or text in ("print", "len", "time.time", "str", "int", "time.sleep", "asyncio.sleep")


def _asked(mark: str, start: ast.stmt, fn: Function, facts: Facts) -> ast.AST | None:
    """A test by which others return, raise or wait while the mark is set, or compare the count with a limit."""
    counted = isinstance(start, ast.AugAssign)
    for method in fn.cls.methods.values() if fn.cls is not None else ():
        attribute = f"{method.self_name}.{mark.rpartition('.')[2]}"
        for test in method.tests:
            if counted:
                compares = [n for n in ast.walk(test.test) if isinstance(n, ast.Compare)]
                if any(dotted(part) == attribute for n in compares for part in (n.left, *n.comparators)):
                    return test
                continue
            leaves = isinstance(test.body[-1], ast.Return | ast.Raise | ast.Continue)
            if dotted(test.test) == attribute and (leaves or isinstance(test, ast.While)):
                return test
    return None


def _report_mark(fn: Function, mark: str, start: ast.stmt, work: ast.stmt, reset: ast.stmt, check: ast.AST) -> Witness:
    line = getattr(check, "lineno", fn.line)
    return Witness(start, fn, "mark", mark=mark, reset=reset, work=work, line=line)


def lock_dropped_by_callee(facts: Facts) -> Iterator[Witness]:
    """Report functions that release and retake a lock which a caller holds in a `with`."""
    for fn in facts.module.functions:
        for lock, free in facts.drops(fn).items():
            takes = (m for m, _ in facts.events(fn) if m.kind == "take" and m.line > free.line)
            again = next((m for m in takes if m.resource is not None and m.resource.id == lock), None)
            for caller, event in facts.callers.get(id(fn), ()) if again is not None else ():
                lock_held = next((h for h in event.held if h.resource.id == lock and h.by_with), None)
                if lock_held is not None:
                    yield Witness(
                        free.node,
                        fn,
                        lock=lock,
                        again=again,
                        caller=caller,
                        event=event,
                        lock_held=lock_held,
                        free=free,
                    )
                    break


def released_never_taken(facts: Facts) -> Iterator[Witness]:
    """Report releases of private locks that no function of the file takes."""
    frees: dict[str, tuple[Function, Effect]] = {}
    takes: set[str] = set()
    for fn in facts.module.functions:
        for effect, _ in facts.events(fn):
            if effect.resource is not None and effect.resource.sure and effect.resource.kind in ("Lock", "RLock"):
                if effect.kind == "free":
                    frees.setdefault(effect.resource.id, (fn, effect))
                elif effect.kind in ("take", "try"):
                    takes.add(effect.resource.id)
    for fn in facts.module.functions:
        yield from _given_up(fn, facts)
    for lock, (fn, effect) in frees.items():
        # The lock of an object of this file may be taken by users of its class in other files.
        if lock in takes or ("." in lock and lock.rpartition(".")[0] in facts.module.classes):
            continue
        # A function that is given the lock may take it.
        if any(c.args and text_of(a) == lock for c, _ in facts.module.calls for a in c.args):
            continue
        yield Witness(effect.node, fn, lock=lock, effect=effect)


def _given_up(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`if not lock.acquire(timeout=1): raise` inside a `try` whose `finally` releases the lock anyway."""
    effects = [e for e in facts.walker.effects(fn) if e.resource is not None and e.resource.sure]
    for tries in effects:
        test, tried = enclosing(tries.node, ast.If), enclosing(tries.node, ast.Try)
        negative = isinstance(test, ast.If) and isinstance(test.test, ast.UnaryOp) and test.test.operand is tries.node
        if tries.kind != "try" or not negative or not isinstance(tried, ast.Try) or not isinstance(test, ast.If):
            continue
        ends = isinstance(test.body[-1], ast.Return | ast.Raise) and tries.line <= last_line(tried.body)
        for frees in effects:
            # A release under an `if` may ask whether the lock was taken.
            last = {id(n) for s in tried.finalbody if not isinstance(s, ast.If) for n in ast.walk(s)}
            same = frees.kind == "free" and frees.resource.id == tries.resource.id  # type: ignore[union-attr]
            if ends and same and id(frees.node) in last:
                yield Witness(frees.node, fn, "given-up", tries=tries, frees=frees)


def not_taken(facts: Facts) -> Iterator[Witness]:
    """Report attempts to take a lock whose result is not looked at, with work before the release."""
    for fn in facts.module.functions:
        effects = facts.walker.effects(fn)
        for effect in effects:
            lock = effect.resource
            if effect.kind != "try" or lock is None or not lock.sure or lock.kind in ASYNC_LOCKS:
                continue
            freed = next((e for e in effects if _frees(e, lock.id) and e.line > effect.line), None)
            # `lock.acquire(blocking=False); lock.release()` frees a lock whoever holds it, and relies on nothing.
            if isinstance(parent(effect.node), ast.Expr) and freed is not None and _works(effect, freed, fn):
                yield Witness(effect.node, fn, effect=effect, freed=freed)


def _frees(effect: Effect, lock: str) -> bool:
    return effect.kind == "free" and effect.resource is not None and effect.resource.id == lock


def _works(take: Effect, freed: Effect, fn: Function) -> bool:
    """Whether anything is done in between, rather than a lock set free by all means."""
    return any(take.line < call.lineno < freed.line for call in fn.calls) or any(
        take.line < target.lineno < freed.line for target, _ in fn.assigns
    )


def lock_of_its_own(facts: Facts) -> Iterator[Witness]:
    """Report locks that are created where they are taken, and local locks that do not leave their function."""
    module = facts.module
    for fn in module.functions:
        for item in (item for block in fn.withs for item in block.items if item.optional_vars is None):
            lock = item.context_expr if isinstance(item.context_expr, ast.Call) else None
            if lock is not None and not lock.args and module.constructed_kind(lock, fn) in LOCKS:
                message = "a new lock is created here each time, so it excludes no other thread"
                yield Witness(lock, fn, message=message, name="")
        for target, value in fn.assigns if fn is not module.top else ():
            construction = module.constructed(value, fn) if isinstance(target, ast.Name) else None
            if construction is None or construction[0] not in ("Lock", "RLock", "AsyncLock"):
                continue
            also_stored = len(getattr(parent(target), "targets", ())) > 1  # `self.locks[key] = lock = Lock()`
            name = dotted(target)
            if not also_stored and name not in fn.globals and _stays(name, fn):
                message = f"the lock {name} never leaves {fn.qualname}: every call creates its own"
                yield Witness(value, fn, message=message, name=name)


def _stays(name: str, fn: Function) -> bool:
    """Whether the name is used only in `with` and for the lock's methods, in this function alone."""
    used = False
    for node in ast.walk(fn.node):
        if isinstance(node, ast.Nonlocal) and name in node.names:
            return False
        if not isinstance(node, ast.Name) or node.id != name or isinstance(node.ctx, ast.Store):
            continue
        around = parent(node)
        # A function inside this one may run in another thread, for which the lock is then shared.
        if _owner(node, fn) is not fn.node:
            return False
        if (isinstance(around, ast.withitem) and around.context_expr is node) or (
            isinstance(around, ast.Attribute) and around.attr in ("acquire", "release", "locked")
        ):
            used = True
        else:
            return False
    return used


def _owner(node: ast.AST, fn: Function) -> ast.AST | None:
    """The function in whose body a node is."""
    at = parent(node)
    while at is not None and not isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        at = parent(at)
    return at
