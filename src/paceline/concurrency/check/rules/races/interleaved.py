"""Parts of one message that several threads send over the same connection."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.names import dotted
from paceline.concurrency.check.syntax.tree import on_different_branches
from paceline.concurrency.check.threads.sharing import may_overlap

SENDS = ("sendall", "write", "sendmsg")


def find(facts: Facts) -> Iterator[Witness]:
    """Report two sends over a connection of the object in a function that several threads run at once."""
    for fn in facts.module.functions if facts.has_threads else ():
        if fn.cls is None or fn.asynchronous or facts.runs_on_own(fn):
            continue
        sends: dict[str, list[ast.Call]] = {}
        for call in sorted(fn.calls, key=lambda c: c.lineno):
            if isinstance(call.func, ast.Attribute) and call.func.attr in SENDS and not facts.held_at(call, fn):
                owner = dotted(call.func.value)
                if owner.startswith(f"{fn.self_name}.") and "(" not in owner:
                    sends.setdefault(owner, []).append(call)
        for owner, calls in sends.items():
            later = next((c for c in calls[1:] if not on_different_branches(calls[0], c)), None)
            if later is not None and may_overlap(fn, fn, facts):
                yield Witness(later, fn, owner=owner, first=calls[0])
