"""Why values differ from rank to rank, in words, and which tests of such a value turn out differently."""

from __future__ import annotations

import ast
import re

from paceline.concurrency.check.libraries import catalogue
from paceline.concurrency.check.syntax.names import short_name

RANK, DATA, CLOCK, HOST = "the rank", "the data of this rank", "the clock of this rank", "the machine of this rank"
CHANCE = "a random number of this rank"
FILES = "a file that one rank makes meanwhile"
SIGNAL = "a signal, which each rank gets at another time"
#: The rank of a matrix: `config.lora.rank`.
OF_MATRIX = re.compile(r"lora|low_?rank|svd|matrix|adapter", re.I)


def asks_for_ranks(test: ast.expr) -> bool:
    """Whether a test asks whether there are ranks at all, as `rank >= 0` and `rank is None` do."""
    if not isinstance(test, ast.Compare):
        return False
    named = short_name(test.left).lower().strip("_") in catalogue.RANK_NAMES
    numbers = [ast.unparse(c) for c in test.comparators]
    return "-1" in numbers or (named and "0" in numbers and not isinstance(test.ops[0], ast.Eq | ast.NotEq | ast.Gt))


def asks_for_several(test: ast.expr) -> bool | None:
    """Whether a test holds wherever there are several ranks: `dist.is_initialized()`; None where it asks otherwise."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = asks_for_several(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return True if all(asks_for_several(value) for value in test.values) else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and ast.unparse(test.comparators[0]) == "1":
        counted = test.left.func if isinstance(test.left, ast.Call) else test.left
        more = isinstance(test.ops[0], ast.Gt | ast.NotEq)
        counts_ranks = _SIZES.search(short_name(counted)) is not None
        return more if counts_ranks and (more or isinstance(test.ops[0], ast.Eq | ast.LtE)) else None
    asks = isinstance(test, ast.Call) and short_name(test.func) in _SEVERAL and "cuda" not in ast.unparse(test.func)
    return True if asks and not test.args else None  # type: ignore[attr-defined]


_SEVERAL = {"is_initialized", "is_distributed", "is_dist_avail_and_initialized", "is_available", "is_dist_initialized"}


def asks_for_one(test: ast.expr) -> bool:
    """Whether a test asks for a job of a single rank, between whose ranks nothing can differ: `comm.size == 1`."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq | ast.LtE):
        return False
    counted = test.left.func if isinstance(test.left, ast.Call) else test.left
    return _SIZES.search(short_name(counted)) is not None and ast.unparse(test.comparators[0]) == "1"


_SIZES = re.compile(r"size$|^num_processes$|^n?procs$|^n_?ranks$", re.I)


def decides(test: ast.expr, why: str) -> bool:
    """Whether a test of such a value can turn out differently: a batch is compared or counted, not asked for a mode."""
    if why != DATA:
        return True
    if isinstance(test, ast.Compare):
        asks = any(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in ast.walk(test))
        return not asks and not any(isinstance(op, ast.In | ast.NotIn) for op in test.ops)
    counted = {"len", "any", "all", "item", "isnan", "isinf", "isfinite", "numel", "sum"}
    return any(isinstance(n, ast.Call) and short_name(n.func) in counted for n in ast.walk(test))


def shown(node: ast.expr) -> str:
    """What is iterated over, as it is written, without what only shows the progress: `tqdm(batches, total=9)`."""
    while isinstance(node, ast.Call) and node.args and _SHOWS.search(short_name(node.func)):
        node = node.args[0]
    return ast.unparse(node)


_SHOWS = re.compile(r"tqdm|progress|^track$|^iter$|^list$|^tuple$", re.I)
