"""Checks of shared state, and uses of it that another thread can come between."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS, LOCKS
from paceline.concurrency.check.rules.rule import Witness, not_atomic, resource_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.tree import dotted, enclosing, following, parent, short_name
from paceline.concurrency.check.threads.accesses import SHRINKS, Access
from paceline.concurrency.check.threads.atomicity import Region, absent, makes_one, regions, violations
from paceline.concurrency.check.threads.evidence import CLAIMS, IMPORTS, of_all_objects, of_threads
from paceline.concurrency.check.threads.shared_state import (
    accesses_of_arguments,
    accesses_of_locals,
    is_shared,
    own_locks,
    shared_things,
)
from paceline.concurrency.check.threads.sharing import may_coincide


def check_then_act(facts: Facts) -> Iterator[Witness]:
    """Report checks and uses of attributes and globals that threads share, and `locked()` before acquire()."""
    for accesses, cls in shared_things(facts):
        if cls is not None and is_shared(cls, facts):
            yield from _vanishes(accesses, facts)
            yield from _without_lock("found", "removed", accesses, cls, facts)
        if cls is None or is_shared(cls, facts):
            yield from _without_lock("missing", "filled", accesses, cls, facts)
        if sign := of_threads(cls, facts, accesses[0].line):
            yield from _at_once(accesses, sign, facts)
    for accesses in (*accesses_of_arguments(facts), *accesses_of_locals(facts)):
        yield from _at_once(accesses, 0.0, facts)
    yield from _locked(facts)


def _at_once(accesses: list[Access], sign: float, facts: Facts) -> Iterator[Witness]:
    """Checks and uses in functions that threads run at the same time, one of each form."""

    def preempts(region: Region, other: Access) -> bool:
        meant = makes_one(region, facts) and _is_meant(region.use, sign, facts)
        return meant or may_coincide(region.use, other, facts)

    reported = set()
    for established, form in (("missing", "claimed"), ("some", "last-item-taken"), ("found", "removed-between")):
        for region, other in violations(established, accesses, facts, preempts):
            kind = "filled-twice" if makes_one(region, facts) else form
            # One report of a form for each attribute: what repairs the first repairs the others.
            if kind not in reported and (kind != "claimed" or _claims(region)):
                reported.add(kind)
                yield not_atomic(region, kind, other=other)


def _is_meant(use: Access, sign: float, facts: Facts) -> bool:
    """Whether a function is meant for several threads, by the signs for its class."""
    fn, least = use.fn, IMPORTS if of_all_objects(use.fn) else CLAIMS
    # Each thread runs these on an object of its own, however many threads there are.
    alone = facts.runs_on_own(fn) and (fn.name == "run" or fn.name.startswith("_"))
    return sign >= least and not alone and not fn.asynchronous and not facts.guards(fn) and not use.locks


def _claims(region: Region) -> bool:
    """Whether an item is added to a set or a list, without any lock: under a late one, PC411 reports it."""
    return isinstance(parent(region.use.node), ast.Attribute) and not region.use.locks


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


def _without_lock(
    established: str, form: str, accesses: list[Access], cls: Class | None, facts: Facts
) -> Iterator[Witness]:
    """A check and a use without the lock that all other changes of such a kind hold."""
    kinds = ("shrink",) if established == "found" else ("write", "none", "update", "grow", "shrink")
    changes = [a for a in accesses if a.kind in kinds and a.locks]
    guard = own_locks(frozenset.intersection(*(a.locks for a in changes)), cls) if changes else []
    for region in regions(established, accesses) if guard else ():
        # A function that holds the lock for another change of the attribute leaves it out here on purpose.
        if not region.use.locks & {*guard} and all(a.fn is not region.use.fn for a in changes):
            yield not_atomic(region, form, lock=guard[0], other=changes[0])
            return


def _vanishes(accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    """`if x: x.use()` while another thread may set `x` to None."""

    def preempts(region: Region, other: Access) -> bool:
        return _concurrent(other.fn, region.use.fn, facts)

    reported = set()  # at most one report inside threads and one outside
    for region, other in violations("present", accesses, facts, preempts):
        inside = bool(facts.threads_of(region.use.fn))
        if inside not in reported:
            reported.add(inside)
            yield not_atomic(region, "vanishes", other=other)


def _concurrent(one: Function, two: Function, facts: Facts) -> bool:
    """Whether two functions may run at the same time: they do not run in the same threads only."""
    # What is named after a fork runs in a child, which has no other threads.
    if one is two or "fork" in one.name:
        return False
    first, second = facts.threads_of(one), facts.threads_of(two)
    return bool(first) != bool(second) or bool(first and second and first != second)


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
        # What is done before the lock may have checked again.
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
        # A second assignment of the same constant changes nothing.
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
