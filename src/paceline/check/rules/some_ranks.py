"""An operation of all ranks that only some of them call.

A collective returns when every rank of its group has called it. Under `if rank == 0:`, or under a question about what
this rank happens to hold, some never come, and the others wait. Both sides calling the same sequence is fine, and so
is a pair of opposite conditions that adds up to the same (one rank goes first). A collective of a named group is only
judged against a condition on the rank in that same group.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.catalogue import RANK_DECORATORS
from paceline.check.declared import Function
from paceline.check.findings import Finding, Step
from paceline.check.marks import said
from paceline.check.rules.rule import Rule, finding
from paceline.check.sequences import Difference, Item
from paceline.check.summaries import Facts
from paceline.narrative import Wait

RANK_WORDS = ("torch", "mpi4py", "accelerat", "lightning", "horovod", "deepspeed", "dist.", "distributed", "fabric")


def find(facts: Facts) -> Iterator[Finding]:
    for fn in facts.module.functions:
        if fn.decorated(*RANK_DECORATORS):
            for item in facts.sequences.operations(fn)[:1]:
                yield _tell(fn, item, f"{fn.qualname} runs on one rank only (line {fn.line})", fn.line, 0.85)
        told = 0
        for difference in facts.sequences.differences(fn):
            if not difference.exit and difference.items and told < 3:
                told += 1
                yield _difference(difference)


def _difference(found: Difference) -> Finding:
    asked = ast.unparse(found.test.test)
    why = "what this rank holds" if found.condition.local else "the rank"
    return _tell(
        found.fn,
        found.items[0],
        f"`if {asked}` at line {found.test.lineno} depends on {why}",
        found.test.lineno,
        0.7 if found.condition.local else 0.85,
    )


def _tell(fn: Function, item: Item, why: str, line: int, confidence: float) -> Finding:
    at = item.at
    by = said(at) if isinstance(at, ast.Call) else item.name
    within = "" if by.endswith(item.name + "()") else f", which calls {item.name},"
    return finding(
        at,
        fn,
        f"{by}{within} must be called by every rank, but {why}: the ranks that do not come here leave the "
        "others waiting",
        [
            Step("rank 0", line, "goes one way"),
            Step("rank 0", getattr(at, "lineno", line), f"calls {by}, and waits for all ranks"),
            Step("rank 1", line, f"goes the other way, without {item.name}"),
        ],
        f"call {item.name} on every rank, and let the condition guard only what one rank does alone",
        item.name,
        confidence,
        [
            Wait("rank 0", f"called {item.name}", f"call {item.name}", "rank 1"),
            Wait("rank 1", "went past it", "come to the next operation", "rank 0"),
        ],
    )


RULE = Rule(
    "PC501",
    "collective-on-some-ranks",
    "an operation of all ranks that only some of them call",
    find,
    bad="""
        import torch.distributed as dist

        def save(model, rank):
            if rank == 0:
                model.write("model.pt")
                dist.barrier()
    """,
    good="""
        import torch.distributed as dist

        def save(model, rank):
            if rank == 0:
                model.write("model.pt")
            dist.barrier()
    """,
    needs=RANK_WORDS,
)
