"""A message or operation that is begun and never waited for.

`isend`, `irecv` and operations with `async_op=True` give back a handle. Until its `wait()` the buffer may not be
touched and the message may not even have left; where the handle is thrown away, nobody can know.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declared import Function
from paceline.check.findings import Finding, Step
from paceline.check.marks import said
from paceline.check.names import dotted, is_constant, keyword, last, parent
from paceline.check.rules.rule import Rule, finding
from paceline.check.rules.some_ranks import RANK_WORDS
from paceline.check.summaries import Facts

BEGIN = ("isend", "irecv", "Isend", "Irecv", "issend", "Issend")


def find(facts: Facts) -> Iterator[Finding]:
    for fn in facts.module.functions:
        for call in fn.calls:
            if isinstance(parent(call), ast.Expr) and _begins(call, fn, facts):
                yield finding(
                    call,
                    fn,
                    f"{said(call)} gives back a handle that nobody waits for: whether it was done is never known",
                    [
                        Step("rank 0", call.lineno, f"begins {said(call)} and goes on"),
                        Step("rank 0", call.lineno, "changes or frees the buffer, or ends, before it has left"),
                        Step("rank 1", call.lineno, "waits for it, or reads half of it"),
                    ],
                    "keep the handle, and wait() for it before the buffer is used again",
                    said(call),
                    0.75,
                )


def _begins(call: ast.Call, fn: Function, facts: Facts) -> bool:
    if last(call.func) in BEGIN and isinstance(call.func, ast.Attribute):
        owner = dotted(call.func.value)
        mpi = any(name.startswith("mpi4py") for name in facts.module.imports.values())
        return owner in ("dist", "torch.distributed") or (mpi and "comm" in owner.lower())
    return is_constant(keyword(call, "async_op"), True) and facts.sequences.collective(call, fn) is not None


RULE = Rule(
    "PC508",
    "not-waited-for",
    "a message or operation that is begun and never waited for",
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
