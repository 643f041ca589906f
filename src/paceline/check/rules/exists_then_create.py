"""A file or directory that is looked for and then made, by several processes at once.

All ranks of a job find that the directory is not there, one makes it, and the others fail with `FileExistsError`, or
remove what another has just written. `os.makedirs(..., exist_ok=True)` and `unlink(missing_ok=True)` do not look.
Reported in files that deal with ranks, processes or threads.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.accesses import catches
from paceline.check.catalogue import RANK_CALLS
from paceline.check.findings import Finding, Step
from paceline.check.marks import said
from paceline.check.module import Function
from paceline.check.names import dotted, inside, is_constant, keyword, last
from paceline.check.ranks import condition
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts

ASKS = ("exists", "isdir", "isfile", "is_dir", "is_file")
MAKES = ("makedirs", "mkdir")


def find(facts: Facts) -> Iterator[Finding]:
    if not _several(facts):
        return
    for fn in facts.module.functions:
        for test in fn.tests:
            if not isinstance(test, ast.If):
                continue
            asked = next((n for n in ast.walk(test.test) if isinstance(n, ast.Call) and last(n.func) in ASKS), None)
            if asked is None or _one_rank(test, fn, facts) or facts.held_at(test, fn):
                continue
            path = ast.unparse(asked.args[0]) if asked.args else dotted(getattr(asked.func, "value", asked))
            for call in fn.calls:
                if inside(call, ast.If) is test and _makes(call, path) and not catches(call, "FileExistsError", "OSError"):
                    yield _tell(fn, test, call, path)


def _several(facts: Facts) -> bool:
    """Whether this file says that several of its kind run at once."""
    origins = set(facts.module.imports.values())
    if any(o.startswith(("torch.distributed", "mpi4py", "accelerate", "multiprocessing", "horovod")) for o in origins):
        return True
    return any(last(c.func) in RANK_CALLS or dotted(c.func).startswith("torch.distributed") for fn in facts.module.functions for c in fn.calls)


def _one_rank(test: ast.If, fn: Function, facts: Facts) -> bool:
    around = test
    while isinstance(around, ast.If):
        parts = around.test.values if isinstance(around.test, ast.BoolOp) else [around.test]
        if any(condition(part, fn, facts.module) is not None for part in parts):
            return True
        around = inside(around, ast.If)  # type: ignore[assignment]
    return False


def _makes(call: ast.Call, path: str) -> bool:
    if last(call.func) not in MAKES or is_constant(keyword(call, "exist_ok"), True):
        return False
    owner = dotted(getattr(call.func, "value", call.func))
    given = ast.unparse(call.args[0]) if call.args else ""
    return path in (given, owner)


def _tell(fn: Function, test: ast.If, call: ast.Call, path: str) -> Finding:
    return finding(
        call,
        fn,
        f"{path} is looked for (line {test.lineno}) and then made by {said(call)}: when two processes look at once, the second fails",
        [
            Step("rank 0", test.lineno, f"finds that {path} is not there"),
            Step("rank 1", test.lineno, "finds the same"),
            Step("rank 0", call.lineno, "makes it"),
            Step("rank 1", call.lineno, "FileExistsError"),
        ],
        "make it without looking: exist_ok=True",
        path,
        0.65,
    )


RULE = Rule(
    "PC406",
    "exists-then-create",
    "a directory looked for and then made, by several processes",
    find,
    bad="""
        import os
        import torch.distributed as dist

        def save(folder, image):
            if not os.path.exists(folder):
                os.makedirs(folder)
            image.write(os.path.join(folder, str(dist.get_rank())))
    """,
    good="""
        import os
        import torch.distributed as dist

        def save(folder, image):
            os.makedirs(folder, exist_ok=True)
            image.write(os.path.join(folder, str(dist.get_rank())))
    """,
    needs=("makedirs", "mkdir"),
)
