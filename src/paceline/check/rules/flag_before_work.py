"""A flag that says "done" before the work is done.

`if _ready: return _value; _ready = True; _value = load()` lets a second thread, or a greenlet that runs while `load`
waits, find the flag set and use a value that does not exist yet. Set the flag after the work, test the value itself, or
hold a lock over both.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declarations import Function
from paceline.check.evidence import IMPORTS, OWNS_OTHER, of_threads
from paceline.check.findings import Finding, Step
from paceline.check.names import dotted, is_constant
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts

WORDS = ("init", "ready", "done", "loaded", "setup", "set_up", "attempted", "started", "checked", "created", "cached",
         "registered", "configured", "patched", "complete", "populated", "imported", "finalized")  # fmt: skip


def find(facts: Facts) -> Iterator[Finding]:
    """Report functions that return early on a flag which they set before they do the work."""
    for fn in facts.module.functions:
        if fn.name == "__init__" or fn is facts.module.top:
            continue
        for test in fn.tests:
            name = _flag(test, fn) if isinstance(test, ast.If) else ""
            if not name or facts.held_at(test, fn):
                continue
            sign = of_threads(fn.cls if "." in name else None, facts, fn.line)
            assert isinstance(test, ast.If)
            found = _set_early(name, test, fn)
            if found is not None and (sign >= IMPORTS or "." not in name) and not facts.held_at(found[0], fn):
                yield _report(fn, test, name, *found, 0.6 if sign >= OWNS_OTHER else 0.5)
                break


def _flag(test: ast.If, fn: Function) -> str:
    """The global or attribute that makes a function return at once, where it is called like a flag of being done."""
    name = dotted(test.test)
    own = name in fn.globals or (bool(fn.self_name) and name.startswith(f"{fn.self_name}.") and name.count(".") == 1)
    named = any(word in name.lower() for word in WORDS)
    return name if own and named and isinstance(test.body[0], ast.Return) else ""


def _set_early(name: str, test: ast.If, fn: Function) -> tuple[ast.Assign, ast.Assign] | None:
    """The assignment of True to the flag, and the assignment of other state that comes after it."""
    flag = next((n for n in _assigns(fn) if dotted(n.targets[0]) == name and is_constant(n.value, True)), None)
    if flag is None or flag.lineno < test.lineno:
        return None
    for later in _assigns(fn):
        target = dotted(later.targets[0])
        shared = target in fn.globals or (bool(fn.self_name) and target.startswith(f"{fn.self_name}."))
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


def _report(fn: Function, test: ast.If, name: str, flag: ast.Assign, later: ast.Assign, confidence: float) -> Finding:
    target = dotted(later.targets[0])
    return finding(
        flag,
        fn,
        f"{name} is set before {target} is (line {later.lineno}): another thread that calls {fn.qualname} meanwhile "
        f"returns at line {test.lineno} and uses {target} too early",
        [
            Step("thread A", flag.lineno, f"{fn.qualname} sets {name}"),
            Step("thread B", test.lineno, f"finds {name} set, and returns"),
            Step("thread A", later.lineno, f"sets {target}, which thread B has already used"),
        ],
        f"set {name} last, and hold a lock over the test and the work",
        name,
        confidence,
    )


RULE = Rule(
    "PC410",
    "flag-before-work",
    'a flag that says "done" before the work is done',
    find,
    bad="""
        import threading

        _loaded = False
        _table = None

        def table(load):
            global _loaded, _table
            if _loaded:
                return _table
            _loaded = True
            _table = load()
            return _table
    """,
    good="""
        import threading

        _lock = threading.Lock()
        _table = None

        def table(load):
            global _table
            with _lock:
                if _table is None:
                    _table = load()
                return _table
    """,
)
