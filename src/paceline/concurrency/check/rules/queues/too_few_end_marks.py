"""Fewer end marks in a queue than workers that wait for one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.libraries.catalogue import PUTS
from paceline.concurrency.check.rules.endings import ends_by
from paceline.concurrency.check.rules.rule import Witness, queue_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.threads.roots import Root, in_loop


def find(facts: Facts) -> Iterator[Witness]:
    """Report queues that get one end mark, of which several workers each need one."""
    for root in facts.roots:
        if root.kind not in ("thread", "process", "task") or not root.several:
            continue
        starts = [other for other in facts.roots if other.function is root.function]
        once_in = root.once_in.qualname if root.once_in is not None and len(starts) == 1 else ""
        for queue, mark, get in ends_by(root.function, facts):
            if once_in and queue.startswith(f"{once_in}."):
                continue  # one worker for each queue that this function makes
            if any(queue_of(c, PUTS, root.function, facts) == queue for c in root.function.calls):
                continue  # stages, each with a queue of its own
            puts = [
                (fn, call)
                for fn in facts.module.functions
                for call in fn.calls
                if queue_of(call, PUTS, fn, facts) == queue and call.args and ast.unparse(call.args[0]) == mark
            ]
            if len(puts) == 1 and puts[0][0] is not root.function and not in_loop(puts[0][1], puts[0][0]):
                yield _report(*puts[0], root, queue, mark, get)


def _report(fn: Function, put: ast.Call, root: Root, queue: str, mark: str, get: ast.Call) -> Witness:
    return Witness(put, fn, mark=mark, queue=queue, root=root, get=get)
