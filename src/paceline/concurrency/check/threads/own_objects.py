"""Whether each of several threads has an object of its own, or all of them share one.

`for _ in range(4): Worker().start()` starts four threads with an object each: what `run` does to `self` is the matter
of one thread. `Thread(target=self.run)` in a loop starts several threads with the same object. The answer is followed
along the calls: `self.count()` is about the same object, `self.report.add()` about one that the thread made itself, or
was given.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from paceline.concurrency.check.flow.effects import Effect
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import is_within, parent
from paceline.concurrency.check.values.module import Module


def owned(
    starts: Iterable[tuple[Function, bool]], effects: Callable[[Function], list[Effect]], module: Module
) -> set[int]:
    """The functions that no thread reaches with an object which another thread has too.

    `starts` are the functions in which threads begin, each with whether every thread brings an object of its own.
    """
    visited: set[tuple[int, bool]] = set()
    todo = list(starts)
    while todo:
        fn, is_confined = todo.pop()
        if (id(fn), is_confined) in visited:
            continue
        visited.add((id(fn), is_confined))
        todo += [(m.callee, _keeps(m, fn, is_confined, module)) for m in effects(fn) if m.callee is not None]
    return {fn for fn, own in visited if own and (fn, False) not in visited}


def brings_own(target: ast.expr, call: ast.Call, fn: Function) -> bool:
    """Whether each turn of the loop around a start makes or takes another object: `Thread(target=worker.run)`."""
    if not isinstance(target, ast.Attribute):
        return False
    if isinstance(target.value, ast.Call):
        return True
    return isinstance(target.value, ast.Name) and target.value.id != fn.self_name and _anew(target.value.id, call, fn)


def _anew(name: str, call: ast.Call, fn: Function) -> bool:
    """Whether a variable is bound in the loop around a call, so that it is another object in each turn."""
    at = parent(call)
    while at is not None and at is not fn.node:
        if isinstance(at, ast.For | ast.AsyncFor):
            bound = {n.id for n in ast.walk(at.target) if isinstance(n, ast.Name)}
            value = fn.bound.get(name)
            if name in bound or (value is not None and is_within(value, at)):
                return True
        elif isinstance(at, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            if any(isinstance(n, ast.Name) and n.id == name for g in at.generators for n in ast.walk(g.target)):
                return True
        elif isinstance(at, ast.While):
            value = fn.bound.get(name)
            if value is not None and is_within(value, at):
                return True
        at = parent(at)
    return False


def _keeps(effect: Effect, fn: Function, is_confined: bool, module: Module) -> bool:
    """Whether the object of a callee is the thread's own, where that of the caller is so or not."""
    call = effect.node
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return is_confined or (effect.callee is not None and effect.callee.name == "__init__")
    receiver = call.func.value
    if isinstance(receiver, ast.Name):
        if receiver.id == fn.self_name:
            callee = effect.callee.cls if effect.callee is not None else None
            same_object = callee is None or fn.cls is None or callee in fn.cls.ancestry or fn.cls in callee.ancestry
            return is_confined and same_object  # else it is the method of another object that this one was given
        value = fn.bound.get(receiver.id)
        if value is not None:
            return isinstance(value, ast.Call) and module.type_of(value, fn) is not None
        return receiver.id in fn.looped or (is_confined and receiver.id in fn.parameters)
    if isinstance(receiver, ast.Call):
        return is_confined or module.type_of(receiver, fn) is not None
    if isinstance(receiver, ast.Attribute) and is_confined:
        cls = module.type_of(receiver.value, fn)
        values = cls.values.get(receiver.attr, ()) if cls is not None else ()
        return any(isinstance(value, ast.Call) for value, _ in values)
    return False
