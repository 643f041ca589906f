"""A message or collective that is started and never waited for.

`isend`, `irecv` and collectives with `async_op=True` return a handle. Until its `wait()` returns, the buffer must not
be used, and the message may not even have been sent; where the handle is dropped, the program cannot know.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.flow.effects import text_of
from paceline.check.reporting.findings import Finding, Step
from paceline.check.rules.collectives.some_ranks import RANK_WORDS
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts
from paceline.check.syntax.declarations import Function
from paceline.check.syntax.names import dotted, is_constant, keyword, parent, short_name

BEGIN = ("isend", "irecv", "Isend", "Irecv", "issend", "Issend")


def find(facts: Facts) -> Iterator[Finding]:
    """Report calls whose handle is dropped."""
    for fn in facts.module.functions:
        for call in fn.calls:
            if isinstance(parent(call), ast.Expr) and _begins(call, fn, facts):
                yield finding(
                    call,
                    fn,
                    f"{text_of(call)} returns a handle that is dropped: the program cannot tell when it is done",
                    [
                        Step("rank 0", call.lineno, f"starts {text_of(call)} and goes on"),
                        Step("rank 0", call.lineno, "changes or frees the buffer, or exits, before the data is sent"),
                        Step("rank 1", call.lineno, "waits for the data, or receives half of it"),
                    ],
                    "keep the handle, and wait() for it before the buffer is used again",
                    text_of(call),
                    0.75,
                )


def _begins(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a call starts a message or collective and returns a handle."""
    if short_name(call.func) in BEGIN and isinstance(call.func, ast.Attribute):
        owner = dotted(call.func.value)
        mpi = any(name.startswith("mpi4py") for name in facts.module.imports.values())
        return owner in ("dist", "torch.distributed") or (mpi and "comm" in owner.lower())
    return is_constant(keyword(call, "async_op"), True) and facts.sequences.collective(call, fn) is not None


RULE = Rule(
    "PC508",
    "not-waited-for",
    "a message or collective that is started and never waited for",
    find,
    bad="""
        import torch.distributed as dist

        def push(tensor):
            dist.isend(tensor, dst=1)
            tensor.zero_()
    """,
    good="""
        import torch.distributed as dist

        def push(tensor):
            sent = dist.isend(tensor, dst=1)
            sent.wait()
            tensor.zero_()
    """,
    needs=RANK_WORDS,
)
