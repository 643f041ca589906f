"""A decision by shared state that changes it, taken by several threads at once.

`if time() > self.expires: self.renew()` renews twice when another thread decides between the test and the change, and
`if len(self.threads) < limit: self.threads.append(...)` exceeds the limit. The change may be made by a method that the
branch calls. Hold one lock over both.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.flow.effects import runs_now
from paceline.check.reporting.findings import Finding, Step
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts, same_object
from paceline.check.syntax.declarations import Function
from paceline.check.syntax.names import dotted, parent
from paceline.check.threads.accesses import Access
from paceline.check.threads.shared_state import (
    BEGINNINGS,
    accesses_of_class,
    accesses_of_globals,
    is_caught,
    is_teardown,
)
from paceline.check.threads.sharing import THREAD_WORDS, absent, asked_before, checked, fills_a_gap, meet

_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def find(facts: Facts) -> Iterator[Finding]:
    """Report tests of attributes and globals whose branch changes them, in functions that several threads run."""
    if not facts.has_threads:
        return
    groups = [g for cls in facts.module.classes.values() for g in accesses_of_class(cls, facts).values()]
    groups += accesses_of_globals(facts).values()
    for accesses in groups:
        if any(a.changes for a in accesses):
            yield from _decided(accesses, facts)


def _decided(accesses: list[Access], facts: Facts) -> Iterator[Finding]:
    """The first decision by a value that is changed on the branch taken."""
    for read in accesses:
        test = _test(read)
        if test is None or read.locks or read.fn.asynchronous or read.fn.name in BEGINNINGS or is_teardown(read.fn):
            continue
        branch = _branch(test)
        change, callee = _change(read, branch, accesses, facts)
        if change is None or not _matters(test, read, change, branch) or not meet(read, read, facts):
            continue
        yield _report(read, change, callee)
        return


def _test(read: Access) -> ast.If | ast.While | None:
    """The test that a read decides: a comparison, or a flag that is asked for by itself."""
    if read.changes or not isinstance(read.node, ast.expr):
        return None
    at: ast.AST = read.node
    up = parent(at)
    while isinstance(up, ast.expr):
        if isinstance(up, ast.Call) and not (isinstance(up.func, ast.Name) and up.func.id in ("len", "bool", "int")):
            return None
        if isinstance(up, ast.Subscript | ast.Attribute | ast.Lambda | ast.IfExp | ast.GeneratorExp | ast.ListComp):
            return None
        if isinstance(up, ast.Compare) and isinstance(up.ops[0], ast.In | ast.NotIn | ast.Is | ast.IsNot):
            return None
        at, up = up, parent(up)
    return up if isinstance(up, ast.If | ast.While) and up.test is at else None


def _branch(test: ast.If | ast.While) -> list[ast.stmt]:
    """The statements that run because of a test: its body, and what follows where the body leaves instead."""
    block = test.body + test.orelse
    around = parent(test)
    for name in ("body", "orelse", "finalbody"):
        beside = getattr(around, name, None)
        if isinstance(test, ast.If) and isinstance(test.body[-1], _LEAVES) and beside and test in beside:
            block = block + beside[beside.index(test) + 1 :]
    return block


def _change(
    read: Access, branch: list[ast.stmt], accesses: list[Access], facts: Facts
) -> tuple[Access | None, Function | None]:
    """A change without a lock on a branch, or in a method of the same object that it calls."""
    inside = {id(node) for statement in branch for node in ast.walk(statement)}
    own = [a for a in accesses if a.changes and not a.locks and a.fn is read.fn and id(a.node) in inside]
    for change in own:
        if dotted(change.node) == dotted(read.node):
            return change, None
    for effect in facts.walker.effects(read.fn):
        callee = effect.callee
        if callee is None or id(effect.node) not in inside or not runs_now(effect) or callee is read.fn:
            continue
        if not same_object(effect, read.fn) or facts.held_at(effect.node, read.fn):
            continue
        for change in accesses:
            if change.fn is callee and change.changes and not change.locks and not _asks_again(callee, accesses):
                return change, callee
    return None, None


def _asks_again(callee: Function, accesses: list[Access]) -> bool:
    """Whether a method tests the value itself, or has nothing to do with a decision: it starts or ends the object."""
    return callee.name in BEGINNINGS or any(a.fn is callee and _test(a) is not None for a in accesses)


def _matters(test: ast.If | ast.While, read: Access, change: Access, branch: list[ast.stmt]) -> bool:
    """Whether two threads that both take the branch do harm, and no other rule reports it."""
    if absent(test.test) == dotted(read.node) and change.kind == "write" and not _is_flag(change):
        return False  # created on first use: PC405
    if isinstance(test, ast.While) or change.kind == "update":
        return False  # a lost update: PC402
    if is_caught(change.node, "IndexError", "KeyError", "LookupError", "ValueError"):
        return False
    compared = any(isinstance(n, ast.Compare) for n in ast.walk(test.test))
    if change.kind in ("grow", "shrink"):
        return compared and not (fills_a_gap(change) or checked(change) is not None or _by_key(change))
    if change.kind == "none" or _is_flag(change):
        works = [s for s in branch if any(isinstance(n, ast.Call) for n in ast.walk(s))]
        return bool(works) and _turns(test, change) and change.fn is read.fn
    return change.kind == "write" and compared


def _by_key(change: Access) -> bool:
    """Whether an item was asked for by itself, which PC401 reports."""
    method = parent(change.node)
    call = parent(method) if isinstance(method, ast.Attribute) else None
    return isinstance(call, ast.Call) and len(call.args) == 1 and asked_before(change, call.args[0]) > 0


def _is_flag(change: Access) -> bool:
    up = parent(change.node)
    return isinstance(up, ast.Assign) and isinstance(up.value, ast.Constant)


def _turns(test: ast.If | ast.While, change: Access) -> bool:
    """Whether a flag that was found unset is set: one thread is meant to go on."""
    up = parent(change.node)
    asked_for_none = absent(test.test) == dotted(change.node)
    value = up.value.value if isinstance(up, ast.Assign) and isinstance(up.value, ast.Constant) else None
    first = isinstance(test, ast.If) and isinstance(test.body[-1], _LEAVES) and dotted(test.test) == dotted(change.node)
    return bool(value) and (asked_for_none or first)


def _report(read: Access, change: Access, callee: Function | None) -> Finding:
    assert isinstance(read.node, ast.expr)
    where = f"{callee.qualname} changes it" if callee is not None else "it is changed"
    return finding(
        read.node,
        read.fn,
        f"{read.thing} decides here, and {where} at line {change.line}, without a lock over both; several threads run "
        f"{read.fn.qualname}, and two of them may decide by the same value",
        [
            Step("thread A", read.line, f"{read.fn.qualname} decides by {read.thing}"),
            Step("thread B", read.line, "decides by the same value"),
            Step("both", change.line, "change it: one of them decided by a value that was no longer so"),
        ],
        "hold one lock over the decision and the change",
        read.thing,
        0.65,
    )


RULE = Rule(
    "PC420",
    "decided-twice",
    "a decision by shared state that changes it, taken by two threads at once",
    find,
    bad="""
        import threading

        class Crew:
            def __init__(self):
                self.members = []

            def join(self, member):
                if len(self.members) < 8:
                    self.members.append(member)
                    return True
                return False

        def start(crew: Crew, members):
            for member in members:
                threading.Thread(target=crew.join, args=(member,)).start()
    """,
    good="""
        import threading

        class Crew:
            def __init__(self):
                self.members = []
                self.lock = threading.Lock()

            def join(self, member):
                with self.lock:
                    if len(self.members) < 8:
                        self.members.append(member)
                        return True
                    return False

        def start(crew: Crew, members):
            for member in members:
                threading.Thread(target=crew.join, args=(member,)).start()
    """,
    needs=THREAD_WORDS,
)
