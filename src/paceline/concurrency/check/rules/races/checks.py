"""Checks of shared state, and uses of it that another thread can come between."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS, LOCKS
from paceline.concurrency.check.rules.rule import Witness, resource_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.tree import dotted, enclosing, following, last_line, lines_of, parent, short_name
from paceline.concurrency.check.threads.accesses import SHRINKS, Access
from paceline.concurrency.check.threads.evidence import CLAIMS, IMPORTS, of_all_objects, of_threads
from paceline.concurrency.check.threads.shared_state import (
    accesses_of_arguments,
    accesses_of_locals,
    is_caught,
    is_shared,
    own_locks,
    shared_things,
)
from paceline.concurrency.check.threads.sharing import (
    absent,
    claimed_at_once,
    emptied_at_once,
    filled_if_missing,
    filled_under_late_lock,
    found_by,
    may_coincide,
    removed_at_once,
    stored_if_missing,
)


def check_then_act(facts: Facts) -> Iterator[Witness]:
    """Report checks and uses of attributes and globals that threads share, and `locked()` before acquire()."""
    for accesses, cls in shared_things(facts):
        if cls is not None and is_shared(cls, facts):
            yield from _vanishes(accesses, facts)
            yield from _removed(accesses, cls)
        if cls is None or is_shared(cls, facts):
            yield from _filled(accesses, cls)
        if sign := of_threads(cls, facts, accesses[0].line):
            yield from _at_once(accesses, sign, facts)
    for accesses in (*accesses_of_arguments(facts), *accesses_of_locals(facts)):
        yield from _at_once(accesses, 0.0, facts)
    yield from _locked(facts)


def _at_once(accesses: list[Access], sign: float, facts: Facts) -> Iterator[Witness]:
    """Checks of a key and uses of it in functions that threads run at the same time."""
    yield from _filled_twice(accesses, sign, facts)
    for access, line in list(claimed_at_once(accesses, facts))[:1]:
        yield Witness(access.node, access.fn, "claimed", access=access, line=line)
    for access, loop in list(emptied_at_once(accesses, facts))[:1]:
        yield Witness(access.node, access.fn, "last-item-taken", access=access, loop=loop)
    yield from _removed_between(accesses, facts)


def _filled_twice(accesses: list[Access], sign: float, facts: Facts) -> Iterator[Witness]:
    """A key that two threads find missing, and each store an object for."""
    late = list(filled_under_late_lock(accesses, facts))
    for access, line in [*filled_if_missing(accesses), *late][:1]:
        together = may_coincide(access, access, facts)
        least = IMPORTS if of_all_objects(access.fn) else CLAIMS
        alone = facts.runs_on_own(access.fn) and (access.fn.name == "run" or access.fn.name.startswith("_"))
        if not together and (sign < least or alone or access.fn.asynchronous or facts.guards(access.fn)):
            continue
        yield Witness(
            access.node, access.fn, "filled-twice", confidence=0.6 if together else 0.55, access=access, line=line
        )


def _removed_between(accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    """A key that another thread removes after it was found."""
    for access, check, other in list(removed_at_once(accesses, facts))[:1]:
        action, what = found_by(access, check)
        action += f" of {access.thing}" * isinstance(check, ast.For)
        sure = 0.6 if facts.threads_of(other.fn) else 0.5
        yield Witness(
            access.node,
            access.fn,
            "removed-between",
            confidence=sure,
            what=what,
            other=other,
            check=check,
            action=action,
            access=access,
        )


def _locked(facts: Facts) -> Iterator[Witness]:
    """`if not lock.locked(): lock.acquire()`."""
    for fn in facts.module.functions:
        for test in fn.tests:
            calls = [n for n in ast.walk(test.test) if isinstance(n, ast.Call) and short_name(n.func) == "locked"]
            lock = resource_of(calls[0], ("locked",), fn, facts) if calls and isinstance(test, ast.If) else None
            for effect in facts.walker.effects(fn) if lock is not None and lock.kind not in ASYNC_LOCKS else ():
                taken = effect.resource if effect.kind == "take" and enclosing(effect.node, ast.If) is test else None
                if taken is not None and lock is not None and taken.id == lock.id:
                    yield Witness(effect.node, fn, "locked", lock=lock, test=test, effect=effect)


def _filled(accesses: list[Access], cls: Class | None) -> Iterator[Witness]:
    """`if key not in d: d[key] = ...` without the lock under which others change it."""
    guarded = [a for a in accesses if a.changes and a.locks]
    if not guarded:
        return
    common = own_locks(frozenset.intersection(*(a.locks for a in guarded)), cls)
    for access in accesses:
        test = enclosing(access.node, ast.If)
        if access.kind == "grow" and not access.locks and common and test is not None and stored_if_missing(access):
            line = getattr(test, "lineno", 0)
            yield Witness(access.node, access.fn, "filled", access=access, line=line, common=common, guarded=guarded)
            return


def _vanishes(accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    """`if x: x.use()` while another thread may set `x` to None."""
    resets = [a for a in accesses if a.kind == "none" and "fork" not in a.fn.name]
    if not resets:
        return
    reported: set[bool] = set()  # at most one report inside threads and one outside
    for access in accesses:
        test = _test(access.node)
        if test is None or access.changes or bool(facts.threads_of(access.fn)) in reported:
            continue
        use = next((a for a in accesses if a.fn is access.fn and a is not access and _used_in(a, test)), None)
        if use is None or is_caught(use.node, "AttributeError", "TypeError"):
            continue
        other = next(
            (a for a in resets if _concurrent(a.fn, access.fn, facts) and not a.locks & access.locks & use.locks), None
        )
        if other is not None:
            reported.add(bool(facts.threads_of(access.fn)))
            yield Witness(use.node, access.fn, "vanishes", access=access, other=other, use=use)


def _test(node: ast.AST) -> ast.If | None:
    """The `if` that tests whether this is truthy or not None."""
    at: ast.AST | None = node
    while at is not None and not isinstance(at, ast.stmt):
        up = parent(at)
        if isinstance(up, ast.Compare) and not any(isinstance(op, ast.Is | ast.IsNot) for op in up.ops):
            return None
        if isinstance(up, ast.Attribute | ast.Call | ast.Subscript):
            return None
        if isinstance(up, ast.If) and up.test is at:
            return up
        at = up
    return None


def _used_in(access: Access, test: ast.If) -> bool:
    """`x.something` or `x[...]` on the branch where the check succeeded."""
    if not isinstance(parent(access.node), ast.Attribute | ast.Subscript) or (
        access.changes and access.kind in ("write", "none")
    ):
        return False
    body = test.body
    negative = isinstance(test.test, ast.UnaryOp) or any(
        isinstance(n, ast.Is) for c in ast.walk(test.test) if isinstance(c, ast.Compare) for n in c.ops
    )
    if negative:
        if test.orelse:
            body = test.orelse
        elif isinstance(test.body[-1], ast.Return | ast.Raise | ast.Continue):
            return access.line > last_line(test)
        else:
            return False
    return access.line in lines_of(body)


def _concurrent(one: Function, two: Function, facts: Facts) -> bool:
    """Whether two functions may run at the same time: they do not run in the same threads only."""
    if one is two:
        return False
    first, second = facts.threads_of(one), facts.threads_of(two)
    return bool(first) != bool(second) or bool(first and second and first != second)


def _removed(accesses: list[Access], cls: Class) -> Iterator[Witness]:
    """An item that is read without the lock under which items are removed."""
    removals = [a for a in accesses if a.kind == "shrink" and a.locks]
    if any(a.kind == "grow" and not a.locks for a in accesses):
        return  # _filled reports that
    if not removals or any(a.kind == "shrink" and not a.locks for a in accesses):
        return
    guard = frozenset(own_locks(frozenset.intersection(*(a.locks for a in removals)), cls))
    reported: set[int] = set()
    for access in accesses:
        if access.kind != "item" or access.locks & guard or not guard or id(access.fn) in reported:
            continue
        if is_caught(access.node, "KeyError", "IndexError", "LookupError"):
            continue
        subscript = parent(access.node)
        assert isinstance(subscript, ast.Subscript)
        if isinstance(subscript.slice, ast.Constant | ast.Slice) or any(r.fn is access.fn for r in removals):
            continue
        if not _looked_up(subscript, access):
            continue
        reported.add(id(access.fn))
        lock = min(guard)
        removal = removals[0]
        yield Witness(access.node, access.fn, "removed", access=access, lock=lock, removal=removal)


def _looked_up(subscript: ast.Subscript, access: Access) -> bool:
    """Whether a test before this line mentions the same key."""
    key = ast.unparse(subscript.slice)
    for test in access.fn.tests:
        if test.lineno <= access.line and any(
            isinstance(n, ast.Call | ast.Compare) and key in ast.unparse(n) for n in ast.walk(test.test)
        ):
            return True
    return False


_ASKS_FOR_FILES = {"exists", "isfile", "isdir", "is_file", "is_dir"}
_MAKES = re.compile(
    r"^(open|save|dump|write|mkdir|makedirs|download|copy|move|rmtree|extract|build|create|fetch|rename)"
)


def checked_before_lock(facts: Facts) -> Iterator[Witness]:
    """Report locks that are taken after a check, and under which nothing is checked again."""
    for fn in facts.module.functions:
        for test in fn.tests:
            lock = _lock_after(test, fn, facts) if isinstance(test, ast.If) and not facts.held_at(test, fn) else None
            change = _makes(test, lock, fn, facts) if lock is not None and isinstance(test, ast.If) else None
            if lock is None or not isinstance(test, ast.If) or change is None or _checks(test, lock, change, fn):
                continue
            again = "makes it once more" if isinstance(change, ast.Assign) else "relies on what may have changed since"
            yield Witness(lock, fn, test=test, again=again, line=getattr(change, "lineno", lock.lineno))


def _lock_after(test: ast.If, fn: Function, facts: Facts) -> ast.With | ast.AsyncWith | None:
    """The lock that is taken where the check found nothing: in the branch, or after a branch that returns."""
    if isinstance(test.body[-1], ast.Return | ast.Raise):
        rest = following(test)
    else:
        rest = test.body[:1] if len(test.body) == 1 else []
    for statement in rest:
        if isinstance(statement, ast.If | ast.For | ast.While | ast.Try):
            return None
        if isinstance(statement, ast.With | ast.AsyncWith) and _is_lock(statement, fn, facts):
            return statement
    return None


def _is_lock(block: ast.With | ast.AsyncWith, fn: Function, facts: Facts) -> bool:
    """Whether this takes a lock of threads, of files or of tasks, for which the task may have to wait."""
    node = block.items[0].context_expr
    lock = facts.module.resource(node, fn)
    if lock is not None:
        return lock.kind in LOCKS and (lock.kind in ASYNC_LOCKS) is isinstance(block, ast.AsyncWith)
    return isinstance(node, ast.Call) and short_name(node.func).lower().endswith(("lock", "lock_file", "locked"))


def _checks(test: ast.If, lock: ast.With | ast.AsyncWith, change: ast.AST, fn: Function) -> bool:
    """Whether something that the check asked for is asked for under the lock, before the change, or assigned again."""
    expressions = {ast.unparse(n) for n in ast.walk(test.test) if isinstance(n, ast.Call | ast.Attribute | ast.Name)}
    expressions -= {ast.unparse(n.func) for n in ast.walk(test.test) if isinstance(n, ast.Call)}
    last = getattr(change, "lineno", 0)
    nodes = (node for statement in lock.body for node in ast.walk(statement))
    return any(_asks_again(node, expressions, fn) for node in nodes if getattr(node, "lineno", 0) <= last)


def _asks_again(node: ast.AST, expressions: set[str], fn: Function) -> bool:
    if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
        return any(ast.unparse(n) in expressions for n in ast.walk(node.test) if isinstance(n, ast.expr))
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Store) and node.id in expressions - fn.globals
    return isinstance(node, ast.Call) and short_name(node.func) in (*_ASKS_FOR_FILES, "setdefault", "get")


def _makes(test: ast.If, lock: ast.With | ast.AsyncWith, fn: Function, facts: Facts) -> ast.AST | None:
    """What is made under the lock, of which the check asked whether it exists, or what it asked about is changed."""
    subject = absent(test.test) or _wanted(test, fn)
    operands = test.test.values if isinstance(test.test, ast.BoolOp) else [test.test]
    shared = set.intersection(*(_read(operand, fn, facts) for operand in operands))
    files = any(isinstance(n, ast.Call) and short_name(n.func) in _ASKS_FOR_FILES for n in ast.walk(test.test))
    for node in (n for statement in lock.body for n in ast.walk(statement)):
        if isinstance(node, ast.Assign) and subject:
            target = node.targets[0]
            base = target.value if isinstance(target, ast.Subscript) else target
            if dotted(base) == subject:
                return node
        name = _changed(node)
        if name in shared and not (isinstance(node, ast.Assign) and name in _read(node.value, fn, facts)):
            return node
        if files and isinstance(node, ast.Call) and _MAKES.match(short_name(node.func).strip("_")):
            return node
    return None


def _read(node: ast.expr, fn: Function, facts: Facts, of: str = "") -> set[str]:
    """The attributes of objects that an expression asks for; none in a test for a fork, which PC113 reports.

    A variable asks for what it was computed from, a getter for what it returns of the object (`of`) that has it.
    """
    if any(isinstance(n, ast.Call) and short_name(n.func) == "getpid" for n in ast.walk(node)):
        return set()
    names: set[str] = set()
    parts = [node, *(fn.bound[n.id] for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in fn.bound)]
    for each in (n for part in parts for n in ast.walk(part) if isinstance(n, ast.Attribute)):
        owner = of or dotted(each.value)
        cls = None if of else facts.module.type_of(each.value, fn)
        if cls is None and (fn.cls is None or dotted(each.value) != fn.self_name):
            continue
        names.add(f"{owner}.{each.attr}")
        getter = cls.method(each.attr) if cls is not None else None
        values = [r.value for r in getter.returns if r.value is not None] if getter is not None else []
        names |= {name for value in values for name in _read(value, getter, facts, owner)}  # type: ignore[arg-type]
    return names


def _changed(node: ast.AST) -> str:
    """What a statement or call changes by more than assigning a constant; empty where that is nothing."""
    if isinstance(node, ast.Assign | ast.Delete):
        target = node.targets[0]
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(target, ast.Attribute):
            return ""
    elif isinstance(node, ast.AugAssign):
        target = node.target
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SHRINKS:
        target = node.func.value
    else:
        return ""
    return dotted(target.value if isinstance(target, ast.Subscript) else target)


def _wanted(test: ast.If, fn: Function) -> str:
    """What a branch that returns has found: the `x` of `if x: return x`, or the `d` of `if key in d: return d[key]`."""
    if not isinstance(test.body[-1], ast.Return):
        return ""
    condition: ast.expr = test.test
    if isinstance(condition, ast.Compare) and isinstance(condition.ops[0], ast.In):
        return dotted(condition.comparators[0])
    if isinstance(condition, ast.Compare) and isinstance(condition.ops[0], ast.IsNot):
        condition = condition.left
    value = fn.bound.get(condition.id) if isinstance(condition, ast.Name) else None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "get":
        return dotted(value.func.value)
    name = dotted(condition)
    return name if "." in name or name in fn.globals else ""
