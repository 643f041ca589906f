"""A wait without a timeout for a child process that may be dead."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.names import dotted
from paceline.concurrency.check.values.bindings import start_arguments

LOOKS = ("is_alive", "exitcode", "sentinel", "sentinels")


def find(facts: Facts) -> Iterator[Witness]:
    """Report waits for what a child process must send, in functions that never check the child."""
    module = facts.module
    shared: dict[str, ast.Call] = {}
    for fn in module.functions:
        for call in fn.calls:
            if module.constructed_kind(call, fn) == "Process":
                for value in start_arguments(call, fn):
                    resource = module.resource(value, fn)
                    if resource is not None and resource.kind in ("ProcessEvent", "ProcessQueue"):
                        shared[resource.id] = call
    if not shared:
        return
    for fn in module.functions:
        if any(tag.startswith("process:") for tag in facts.reached.get(id(fn), ())):
            continue
        if any(a.attr in LOOKS for a in fn.attributes):
            continue
        reported: set[str] = set()
        for effect in facts.walker.effects(fn):
            resource = effect.resource
            if (
                effect.kind != "wait"
                or effect.timeout
                or resource is None
                or resource.id not in shared
                or resource.id in reported
            ):
                continue
            if not dotted(effect.node).endswith(("get()", "wait()")):
                continue
            reported.add(resource.id)
            yield Witness(effect.node, fn, started=shared[resource.id], what=effect.waits_for, resource=resource.id)
