"""A process group that waits for another number of ranks than the program starts."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import keyword, short_name
from paceline.concurrency.check.syntax.tree import enclosing

STARTS = {"init_process_group": 2, "init_rpc": 3}  # the position of `world_size`


def find(facts: Facts) -> Iterator[Witness]:
    """Report processes of which so many are started, and that meet in a group of another size."""
    for fn in facts.module.functions:
        for call in fn.calls:
            name = short_name(call.func)
            if name not in ("spawn", "start_processes", "Process"):
                continue
            started = keyword(call, "nprocs", 2) if name != "Process" else _turns(call)
            target = keyword(call, "fn", 0) if name != "Process" else keyword(call, "target", 1)
            worker = facts.module.function_named(target, fn) if target is not None and started is not None else None
            arguments = keyword(call, "args", 1 if name != "Process" else 3)
            if worker is None or started is None or not isinstance(arguments, ast.Tuple):
                continue
            met = _world(worker, list(arguments.elts), 0 if name == "Process" else 1)
            more = facts.sequences.lengths.more(met[1], started, fn) if met is not None else 0
            if met is not None and more:
                yield Witness(
                    call,
                    fn,
                    started=started,
                    met=met,
                    need="the ranks wait for one that is never started"
                    if more > 0
                    else "a further process finds its group complete",
                )


def _turns(call: ast.Call) -> ast.expr | None:
    """How many processes a loop or comprehension over `range(n)` starts."""
    at: ast.AST | None = enclosing(call, ast.For, ast.ListComp)
    over = at.iter if isinstance(at, ast.For) else at.generators[0].iter if isinstance(at, ast.ListComp) else None
    ranged = isinstance(over, ast.Call) and short_name(over.func) == "range" and len(over.args) == 1
    return over.args[0] if ranged else None  # type: ignore[union-attr]


def _world(worker: Function, arguments: list[ast.expr], first: int) -> tuple[ast.Call, ast.expr] | None:
    """The call of the worker that joins a group, and the number of ranks as the caller writes it."""
    for call in worker.calls:
        size = keyword(call, "world_size", STARTS.get(short_name(call.func)))
        if short_name(call.func) not in STARTS or size is None:
            continue
        if isinstance(size, ast.Constant):
            return call, size
        place = list(worker.parameters).index(size.id) - first if _is_parameter(size, worker) else -1  # type: ignore[attr-defined]
        if 0 <= place < len(arguments):
            return call, arguments[place]
    return None


def _is_parameter(node: ast.expr, worker: Function) -> bool:
    return isinstance(node, ast.Name) and node.id in worker.parameters and node.id not in worker.bound
