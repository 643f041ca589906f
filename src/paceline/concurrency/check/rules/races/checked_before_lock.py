"""A check before a lock is taken, which is not repeated once it is held."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS, LOCKS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import following
from paceline.concurrency.check.threads.accesses import SHRINKS
from paceline.concurrency.check.threads.sharing import absent

_ASKS_FOR_FILES = {"exists", "isfile", "isdir", "is_file", "is_dir"}
_MAKES = re.compile(
    r"^(open|save|dump|write|mkdir|makedirs|download|copy|move|rmtree|extract|build|create|fetch|rename)"
)


def find(facts: Facts) -> Iterator[Witness]:
    """Report locks that are taken after a check, and under which nothing is checked again."""
    for fn in facts.module.functions:
        for test in fn.tests:
            lock = _lock_after(test, fn, facts) if isinstance(test, ast.If) and not facts.held_at(test, fn) else None
            change = _makes(test, lock, fn) if lock is not None and isinstance(test, ast.If) else None
            if lock is None or not isinstance(test, ast.If) or change is None or _checks(test, lock, change, fn):
                continue
            yield _report(test, lock, change, fn)


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


def _makes(test: ast.If, lock: ast.With | ast.AsyncWith, fn: Function) -> ast.AST | None:
    """What is made under the lock, of which the check asked whether it exists, or what it asked about is changed."""
    subject = absent(test.test) or _wanted(test, fn)
    operands = test.test.values if isinstance(test.test, ast.BoolOp) else [test.test]
    shared = set.intersection(*(_own(operand, fn) for operand in operands))
    files = any(isinstance(n, ast.Call) and short_name(n.func) in _ASKS_FOR_FILES for n in ast.walk(test.test))
    for node in (n for statement in lock.body for n in ast.walk(statement)):
        if isinstance(node, ast.Assign) and subject:
            target = node.targets[0]
            base = target.value if isinstance(target, ast.Subscript) else target
            if dotted(base) == subject:
                return node
        name = _changed(node)
        if name in shared and not (isinstance(node, ast.Assign) and name in _own(node.value, fn)):
            return node
        if files and isinstance(node, ast.Call) and _MAKES.match(short_name(node.func).strip("_")):
            return node
    return None


def _own(node: ast.expr, fn: Function) -> set[str]:
    """The attributes of the own object that an expression asks for; none in a test for a fork, which PC113 reports."""
    if any(isinstance(n, ast.Call) and short_name(n.func) == "getpid" for n in ast.walk(node)):
        return set()
    attributes = (n for n in ast.walk(node) if isinstance(n, ast.Attribute) and dotted(n.value) == fn.self_name)
    return {dotted(n) for n in attributes} if fn.cls is not None else set()


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


def _report(test: ast.If, lock: ast.With | ast.AsyncWith, change: ast.AST, fn: Function) -> Witness:
    line = getattr(change, "lineno", lock.lineno)
    again = "makes it once more" if isinstance(change, ast.Assign) else "relies on what may have changed since"
    return Witness(lock, fn, test=test, again=again, line=line)
