"""A child process that is waited for while its input is still open.

A program that reads its standard input to the end does not exit before that end comes. With `stdin=PIPE` it comes when
the parent closes `stdin`; a parent that writes and then calls `wait()` waits for ever. Close it, or call
`communicate()`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import has_timeout, text_of
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, keyword, short_name
from paceline.narrative import Wait

ENDS = ("close", "communicate", "terminate", "kill", "send_signal", "__exit__")
WRITES = ("write", "writelines")


def find(facts: Facts) -> Iterator[Finding]:
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
                yield _report(fn, wait, writes[0], name)


def _ended(name: str, wait: ast.Call, fn: Function) -> bool:
    """Whether the input is closed before the wait, or the child is asked to end; `with child.stdin:` counts."""
    before = [c for c in fn.calls if c.lineno <= wait.lineno]
    called = any(dotted(c.func).startswith(name) and short_name(c.func) in ENDS for c in before)
    passed = any(dotted(a) in (name, f"{name}.stdin") for c in before for a in c.args)
    entered = any(dotted(item.context_expr).startswith(name) for block in fn.withs for item in block.items)
    return called or passed or entered


def _report(fn: Function, wait: ast.Call, write: ast.Call, name: str) -> Finding:
    return finding(
        wait,
        fn,
        f"{text_of(wait)} waits for the child while its input is open (written to at line {write.lineno}): a child "
        "that reads to the end of its input never exits",
        [
            Step("the child", write.lineno, "reads what was written, and waits for more"),
            Step("the parent", wait.lineno, f"waits for the child, and does not close {name}.stdin"),
        ],
        remedy=f"call {name}.stdin.close() first, or use {name}.communicate(input)",
        about=name,
        confidence=0.75,
        waits=[
            Wait("the child", "reads its input", "close stdin", "the parent"),
            Wait("the parent", "started the child", "exit", "the child"),
        ],
    )


RULE = Rule(
    "PC235",
    "input-open",
    "a child process waited for while its input is still open",
    find,
    bad="""
        import subprocess

        def sort(lines):
            child = subprocess.Popen(["sort", "-o", "sorted.txt"], stdin=subprocess.PIPE, text=True)
            for line in lines:
                child.stdin.write(line)
            return child.wait()
    """,
    good="""
        import subprocess

        def sort(lines):
            child = subprocess.Popen(["sort", "-o", "sorted.txt"], stdin=subprocess.PIPE, text=True)
            for line in lines:
                child.stdin.write(line)
            child.stdin.close()
            return child.wait()
    """,
    needs=("PIPE",),
)
