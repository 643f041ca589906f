"""A child process that is waited for while its input is still open."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, keyword, short_name

ENDS = ("close", "communicate", "terminate", "kill", "send_signal", "__exit__")
WRITES = ("write", "writelines")


def find(facts: Facts) -> Iterator[Witness]:
    """Report waits for a child to whose input the function has written, and which it has not closed."""
    for fn in facts.module.functions:
        for target, value in fn.assigns:
            name = dotted(target)
            piped = isinstance(value, ast.Call) and short_name(keyword(value, "stdin") or value) == "PIPE"
            if not name or not piped or facts.module.constructed_kind(value, fn) != "Popen":  # type: ignore[arg-type]
                continue
            writes = [c for c in fn.calls if dotted(c.func) in [f"{name}.stdin.{how}" for how in WRITES]]
            wait = next((c for c in fn.calls if dotted(c.func) == f"{name}.wait" and not has_timeout(c, "wait")), None)
            if writes and wait is not None and wait.lineno > writes[0].lineno and not _ended(name, wait, fn):
                yield Witness(wait, fn, write=writes[0], name=name)


def _ended(name: str, wait: ast.Call, fn: Function) -> bool:
    """Whether the input is closed before the wait, or the child is asked to end; `with child.stdin:` counts."""
    before = [c for c in fn.calls if c.lineno <= wait.lineno]
    called = any(dotted(c.func).startswith(name) and short_name(c.func) in ENDS for c in before)
    passed = any(dotted(a) in (name, f"{name}.stdin") for c in before for a in c.args)
    entered = any(dotted(item.context_expr).startswith(name) for block in fn.withs for item in block.items)
    return called or passed or entered
