"""A tensor that has another shape on the rank that sends it than on those that receive it.

The root builds the tensor from a list whose length depends on its data; the others make an empty one of a fixed size.
`broadcast` does not look: it waits for the missing numbers, or fills what follows. Pad the list to the fixed size, or
send the length first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declared import Function
from paceline.check.findings import Finding, Step
from paceline.check.marks import said
from paceline.check.names import last
from paceline.check.rules.rule import Rule, finding
from paceline.check.rules.some_ranks import RANK_WORDS
from paceline.check.summaries import Facts

MADE_OF_DATA, MADE_OF_SIZE = (
    ("tensor", "LongTensor", "FloatTensor", "IntTensor", "as_tensor", "array"),
    ("empty", "zeros", "ones"),
)
SENT = ("broadcast", "bcast", "Bcast")


def find(facts: Facts) -> Iterator[Finding]:
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
                        yield _tell(fn, call, of_data, of_size)


def _made(name: str, body: list[ast.stmt]) -> ast.Call | None:
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
    return last(call.func) in MADE_OF_DATA and bool(call.args) and isinstance(call.args[0], ast.Name)


def _of_size(call: ast.Call) -> bool:
    return last(call.func) in MADE_OF_SIZE


def _padded(made: ast.Call, test: ast.If) -> bool:
    """The list is brought to a size on the way: `x += [0] * (n - len(x))`."""
    name = made.args[0].id  # type: ignore[attr-defined]
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.right, ast.Call):
            padding = node.right
            if last(padding.func) == "len" and ast.unparse(padding.args[0]) == name:
                return True
    return False


def _tell(fn: Function, call: ast.Call, of_data: ast.Call, of_size: ast.Call) -> Finding:
    return finding(
        call,
        fn,
        f"{said(call)} sends a tensor as long as the data of one rank (line {of_data.lineno}) into one of a "
        f"fixed size on the others (line {of_size.lineno})",
        [
            Step("rank 0", of_data.lineno, f"makes it by {said(of_data)}, as long as its data"),
            Step("rank 1", of_size.lineno, f"makes it by {said(of_size)}, of a fixed size"),
            Step("all ranks", call.lineno, "wait for numbers that are never sent, or read what was not meant"),
        ],
        "pad the data to the fixed size, or broadcast the length first",
        said(call),
        0.75,
    )


RULE = Rule(
    "PC506",
    "shape-mismatch",
    "a tensor of another shape on the rank that sends it",
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
