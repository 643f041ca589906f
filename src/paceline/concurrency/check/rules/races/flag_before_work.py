"""A flag that says "done" before the work is done."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, is_constant
from paceline.concurrency.check.threads.evidence import IMPORTS, OWNS_OTHER, of_threads
from paceline.concurrency.check.threads.sharing import absent

WORDS = ("init", "ready", "done", "loaded", "setup", "set_up", "attempted", "started", "checked", "created", "cached",
         "registered", "configured", "patched", "complete", "populated", "imported", "finalized")  # fmt: skip


def find(facts: Facts) -> Iterator[Witness]:
    """Report functions that return early on a flag which they set before they do the work."""
    for fn in facts.module.functions:
        if fn.name == "__init__" or fn is facts.module.top:
            continue
        for test in fn.tests:
            if isinstance(test, ast.If):
                yield from _half_made(test, fn, facts)
            name = _flag(test, fn, facts) if isinstance(test, ast.If) else ""
            if not name or facts.held_at(test, fn):
                continue
            sign = of_threads(fn.cls if "." in name else None, facts, fn.line)
            assert isinstance(test, ast.If)
            assignments = _set_early(name, test, fn, facts)
            everywhere = name in fn.globals or name.split(".")[0] in facts.module.classes
            if assignments is not None and (sign >= IMPORTS or everywhere) and not facts.held_at(assignments[0], fn):
                yield _report(fn, test, name, *assignments, 0.6 if sign >= OWNS_OTHER else 0.5)
                break


def _half_made(test: ast.If, fn: Function, facts: Facts) -> Iterator[Witness]:
    """`if x is None: with lock: if x is None: x = make(); x.set_up()`: the check before the lock finds it too early."""
    name = absent(test.test)
    if not name or facts.held_at(test, fn) or not (name in fn.globals or _is_shared(name, fn, facts)):
        return
    locked = (s for s in test.body if isinstance(s, ast.With))
    for again in (s for block in locked for s in block.body if isinstance(s, ast.If) and absent(s.test) == name):
        assignment = next((s for s in again.body if isinstance(s, ast.Assign) and dotted(s.targets[0]) == name), None)
        if (
            assignment is None
            or not isinstance(assignment.value, ast.Call | ast.Dict | ast.List)
            or not facts.held_at(assignment, fn)
        ):
            continue
        for later in again.body[again.body.index(assignment) + 1 :]:
            if _completes(later, name):
                yield Witness(assignment, fn, "half-made", name=name, later=later, test=test)
                return


def _completes(statement: ast.stmt, name: str) -> bool:
    """Whether a statement calls a method of an object or sets an attribute or item of it."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return dotted(statement.value.func).startswith(f"{name}.")
    if isinstance(statement, ast.For):
        return any(_completes(s, name) for s in statement.body)
    target = dotted(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    return target.startswith((f"{name}.", f"{name}["))


def _flag(test: ast.If, fn: Function, facts: Facts) -> str:
    """The flag of being done that makes a function return at once, or without which it does the work."""
    missing = absent(test.test)
    name = missing or (dotted(test.test) if isinstance(test.body[0], ast.Return) else "")
    named = any(word in name.rpartition(".")[2].lower() for word in WORDS)
    return name if named and _is_shared(name, fn, facts) and (not missing or not test.orelse) else ""


def _is_shared(name: str, fn: Function, facts: Facts) -> bool:
    """Whether this is a global, an attribute of the own object, or state of a class of the file."""
    on_self = bool(fn.self_name) and name.startswith(f"{fn.self_name}.") and name.count(".") == 1
    return on_self or name in fn.globals or ("." in name and name.split(".")[0] in facts.module.classes)


def _set_early(name: str, test: ast.If, fn: Function, facts: Facts) -> tuple[ast.Assign, ast.Assign] | None:
    """The assignment of True to the flag, and the assignment of other state that comes after it."""
    flag = next((n for n in _assigns(fn) if dotted(n.targets[0]) == name and is_constant(n.value, True)), None)
    if flag is None or flag.lineno < test.lineno:
        return None
    for later in _assigns(fn):
        target = dotted(later.targets[0])
        on_self = bool(fn.self_name) and target.startswith(f"{fn.self_name}.")
        shared = on_self or _is_shared(target, fn, facts)
        works = any(isinstance(n, ast.Call) for n in ast.walk(later.value))
        if later.lineno > flag.lineno and shared and target != name and works:
            return flag, later
    return None


def _assigns(fn: Function) -> Iterator[ast.Assign]:
    todo: list[ast.AST] = list(fn.body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.Assign):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt | ast.ExceptHandler)] + todo


def _report(fn: Function, test: ast.If, name: str, flag: ast.Assign, later: ast.Assign, confidence: float) -> Witness:
    return Witness(flag, fn, confidence=confidence, name=name, later=later, test=test)
