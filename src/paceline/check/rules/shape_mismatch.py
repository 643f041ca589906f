"""A tensor whose shape on the sending rank differs from that on the receiving ranks.

The root builds the tensor from a list whose length depends on its data; the others create an empty one of a fixed
size. `broadcast` does not check: it waits for the missing numbers, or overwrites what follows. Pad the list to the
fixed size, or broadcast the length first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declarations import Function
from paceline.check.effects import text_of
from paceline.check.findings import Finding, Step
from paceline.check.names import short_name
from paceline.check.rules.rule import Rule, finding
from paceline.check.rules.some_ranks import RANK_WORDS
from paceline.check.summaries import Facts

MADE_OF_DATA, MADE_OF_SIZE = (
    ("tensor", "LongTensor", "FloatTensor", "IntTensor", "as_tensor", "array"),
    ("empty", "zeros", "ones"),
)
SENT = ("broadcast", "bcast", "Bcast")


def find(facts: Facts) -> Iterator[Finding]:
    """Report broadcasts of a tensor made from data on one branch and of a fixed size on the other."""
    for fn in facts.module.functions:
        for call in fn.calls:
            found = facts.sequences.collective(call, fn)
            if found is None or found.name not in SENT or not call.args or not isinstance(call.args[0], ast.Name):
                continue
            name = call.args[0].id
            for test in fn.tests:
                if (
                    isinstance(test, ast.If)
                    and test.orelse
                    and test.lineno < call.lineno
                    and facts.sequences.conditions(test.test, fn)
                ):
                    one, two = _made(name, test.body), _made(name, test.orelse)
                    of_data = next((v for v in (one, two) if v is not None and _of_list(v)), None)
                    of_size = next((v for v in (one, two) if v is not None and _of_size(v)), None)
                    if of_data is not None and of_size is not None and not _padded(of_data, test):
                        yield _report(fn, call, of_data, of_size)


def _made(name: str, body: list[ast.stmt]) -> ast.Call | None:
    """The call that creates the tensor of this name in a body."""
    found = None
    for statement in body:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
            and statement.targets[0].id == name
        ):
            value = statement.value
            while (
                isinstance(value, ast.Call)
                and isinstance(value.func, ast.Attribute)
                and isinstance(value.func.value, ast.Call)
            ):
                value = value.func.value  # .view(-1), .to(device)
            found = value if isinstance(value, ast.Call) else None
    return found


def _of_list(call: ast.Call) -> bool:
    return short_name(call.func) in MADE_OF_DATA and bool(call.args) and isinstance(call.args[0], ast.Name)


def _of_size(call: ast.Call) -> bool:
    return short_name(call.func) in MADE_OF_SIZE


def _padded(made: ast.Call, test: ast.If) -> bool:
    """Whether the list is padded to a fixed size: `x += [0] * (n - len(x))`."""
    name = made.args[0].id  # type: ignore[attr-defined]
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.right, ast.Call):
            padding = node.right
            if short_name(padding.func) == "len" and ast.unparse(padding.args[0]) == name:
                return True
    return False


def _report(fn: Function, call: ast.Call, of_data: ast.Call, of_size: ast.Call) -> Finding:
    return finding(
        call,
        fn,
        f"{text_of(call)} sends a tensor as long as the data of one rank (line {of_data.lineno}) into one of a "
        f"fixed size on the others (line {of_size.lineno})",
        [
            Step("rank 0", of_data.lineno, f"creates it by {text_of(of_data)}, as long as its data"),
            Step("rank 1", of_size.lineno, f"creates it by {text_of(of_size)}, of a fixed size"),
            Step("all ranks", call.lineno, "wait for numbers that are never sent, or read unrelated ones"),
        ],
        "pad the data to the fixed size, or broadcast the length first",
        text_of(call),
        0.75,
    )


RULE = Rule(
    "PC506",
    "shape-mismatch",
    "a tensor whose shape differs between sender and receivers",
    find,
    bad="""
        import torch
        import torch.distributed as dist

        def next_batch(sampler, size, rank):
            if rank == 0:
                batch = sampler.draw()
                batch = torch.tensor(batch)
            else:
                batch = torch.empty(size, dtype=torch.long)
            dist.broadcast(batch, 0)
            return batch
    """,
    good="""
        import torch
        import torch.distributed as dist

        def next_batch(sampler, size, rank):
            if rank == 0:
                batch = sampler.draw()
                batch += [-1] * (size - len(batch))
                batch = torch.tensor(batch)
            else:
                batch = torch.empty(size, dtype=torch.long)
            dist.broadcast(batch, 0)
            return batch
    """,
    needs=RANK_WORDS,
)
