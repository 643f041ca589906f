"""A callback that is called while a lock is held."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import Effect
from paceline.concurrency.check.flow.walk import Held
from paceline.concurrency.check.libraries.catalogue import CALLBACK_WORDS
from paceline.concurrency.check.reporting.findings import Step
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts, call_steps
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name

COMPLETES = ("set_result", "set_exception", "set_running_or_notify_cancel")


def find(facts: Facts) -> Iterator[Witness]:
    """Report calls of unknown callbacks under a lock that a public method takes."""
    for fn in facts.module.functions:
        reported: set[str] = set()
        for effect, locks_held in facts.events(fn):
            locks = [
                h
                for h in locks_held
                if h.resource.sure and h.resource.kind in ("Lock", "RLock") and not h.resource.one_of_several
            ]
            if not locks or effect.kind != "call" or not isinstance(effect.node, ast.Call):
                continue
            if effect.callee is None:
                yield from _added(effect, locks, fn, facts)
            what = _callback(effect, fn, facts)
            first = next((h for h in locks if h.resource.non_reentrant or what == "the callbacks of a future"), None)
            if not what or first is None or first.resource.id in reported:
                continue
            lock = first.resource.id
            back = _way_back(effect, lock, fn, facts)
            if not back:
                continue
            reported.add(lock)
            yield Witness(effect.node, fn, what=what, lock=lock, first=first, back=back)


def _way_back(effect: Effect, lock: str, fn: Function, facts: Facts) -> list[Step]:
    """How a callback gets to the lock: the path of one that is known to take it, or else any public function.

    That some of the callbacks are known makes the call no less open: others may be registered. Empty where the call
    names one function, which does not take the lock.
    """
    callees = (e.callee for e in facts.walker.effects(fn) if e.node is effect.node and e.callee is not None)
    takes = next((t for callee in callees if (t := facts.takes(callee).get(lock)) is not None), None)
    if takes is not None:
        return call_steps("thread A", takes.steps, f"waits for {lock}, which it holds")
    named = effect.callee is not None and facts.module.callee(effect.node, fn) is not None  # type: ignore[arg-type]
    other = next((f for f in facts.module.functions if f is not fn and _enters(f, lock, facts)), None)
    if other is None or named:
        return []
    return [Step("thread A", other.line, f"calls back into {other.qualname}, which waits for {lock}")]


def _added(effect: Effect, locks: list[Held], fn: Function, facts: Facts) -> Iterator[Witness]:
    """A callback of a future that takes a held lock: it runs at once, in this thread, if the future is done already."""
    call = effect.node
    if not isinstance(call, ast.Call) or short_name(call.func) != "add_done_callback" or not call.args:
        return
    callback = facts.module.function_named(call.args[0], fn)
    takes = facts.takes(callback) if callback is not None and not fn.asynchronous else {}
    for lock_held in locks:
        lock = lock_held.resource
        if lock.non_reentrant and lock.id in takes:
            yield Witness(call, fn, "added", lock=lock, lock_held=lock_held, steps=takes[lock.id].steps)


def _enters(fn: Function, lock: str, facts: Facts) -> bool:
    """Whether a public function takes the lock."""
    return not fn.name.startswith("_") and any(
        m.kind == "take" and m.resource is not None and m.resource.id == lock for m, _ in facts.events(fn)
    )


def _callback(effect: Effect, fn: Function, facts: Facts) -> str:
    """What a call runs, if it is a callback; else empty."""
    call = effect.node
    assert isinstance(call, ast.Call)
    name = short_name(call.func).lower()
    if name in COMPLETES:
        return "the callbacks of a future"
    if name == "cancel" and isinstance(call.func, ast.Attribute) and "add_done_callback" in _words(facts):
        receiver = short_name(call.func.value).lower()
        if receiver in ("f", "fut", "future") or "future" in receiver:
            return "the callbacks of a future"
    if name.endswith(CALLBACK_WORDS) and not _is_plain(call.func, fn):
        return "a callback"
    if isinstance(call.func, ast.Name):
        for loop in fn.loops:
            target = getattr(loop, "target", None)
            if isinstance(target, ast.Name) and target.id == call.func.id:
                over = ast.unparse(loop.iter).lower()  # type: ignore[union-attr]
                if any(word.strip("_") in over for word in CALLBACK_WORDS):
                    return "callbacks"
    return ""


def _is_plain(function: ast.expr, fn: Function) -> bool:
    """Whether this names a function of this or another module, rather than one that was passed in."""
    if isinstance(function, ast.Name):
        return not any(function.id in scope.parameters or function.id in scope.bound for scope in fn.scopes())
    owner = function.value if isinstance(function, ast.Attribute) else None
    return not (isinstance(owner, ast.Name) and owner.id == fn.self_name) or _is_method(function, fn)


def _is_method(function: ast.expr, fn: Function) -> bool:
    return fn.cls is not None and (
        fn.cls.method(short_name(function)) is not None or short_name(function) not in fn.cls.values
    )


def _words(facts: Facts) -> set[str]:
    return {a.attr for f in facts.module.functions for a in f.attributes}
