"""A log call under a lock that a log handler takes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.walk import Held
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts, Take
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.names import dotted

LEVELS = ("debug", "info", "warning", "warn", "error", "exception", "critical", "log")


def find(facts: Facts) -> Iterator[Witness]:
    """Report log calls, direct ones and those of callees, under a lock that a handler of the program takes."""
    takes = {take.resource.id: (emit, take) for emit in _handlers(facts) for take in facts.takes(emit).values()}
    takes = {lock: found for lock, found in takes.items() if found[1].resource.non_reentrant and found[1].resource.sure}
    if not takes:
        return
    logs = {id(fn): call for fn in facts.module.functions for call in fn.calls if _is_log_call(call)}
    for fn in facts.module.functions:
        for effect, locks_held in facts.events(fn):
            first = next((h for h in locks_held if h.resource.id in takes), None)
            if first is None or not isinstance(effect.node, ast.Call):
                continue
            via = None if effect.callee is None else logs.get(id(effect.callee))
            if _is_log_call(effect.node) or (via is not None and effect.callee is not takes[first.resource.id][0]):
                yield _report(fn, first, effect.node, *takes[first.resource.id])
                break


def _handlers(facts: Facts) -> Iterator[Function]:
    """What the handlers of `logging` do with a record."""
    for cls in facts.module.classes.values():
        if _is_handler(cls):
            yield from (cls.methods[name] for name in ("emit", "handle") if name in cls.methods)


def _is_handler(cls: Class) -> bool:
    return any(base.startswith("logging.") and base.endswith("Handler") for c in cls.ancestry for base in c.bases)


def _is_log_call(call: ast.Call) -> bool:
    """Whether this is `logger.info(...)`, `logging.info(...)` or `self.log.info(...)`."""
    name, _, level = dotted(call.func).rpartition(".")
    return level in LEVELS and "log" in name.rpartition(".")[2].lower()


def _report(fn: Function, first: Held, call: ast.Call, emit: Function, take: Take) -> Witness:
    return Witness(call, fn, first=first, emit=emit, take=take)
