"""A job that is taken from a queue and for which no result is put into another one, where one is counted on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.duties import Duty, one_of
from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.libraries.catalogue import PUTS
from paceline.concurrency.check.rules.rule import Witness, queue_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import enclosing
from paceline.concurrency.check.threads.roots import in_loop


def find(facts: Facts) -> Iterator[Witness]:
    """Report workers that continue without a result, where one for each job is waited for."""
    for fn in facts.module.functions:
        for jobs, results, get in _counted(fn, facts):
            for worker in facts.module.functions:
                takes = [c for c in worker.calls if _is(c, ("get",), jobs, worker, facts) and in_loop(c, worker)]
                if worker is fn or not takes or not any(_is(c, PUTS, results, worker, facts) for c in worker.calls):
                    continue
                puts = [c for c in worker.calls if any(_is(c, PUTS, name, worker, facts) for name in (results, jobs))]
                duty = Duty(worker, one_of(puts))
                starts = duty.steps(one_of(takes))
                ways = list(duty.skipped_after(starts))
                lost = sorted((s for s in ways if not s.raised or s.caught), key=lambda s: (s.raised, s.node.line))
                for skipped in lost[:1]:
                    yield Witness(
                        skipped.node.syntax or worker.node,
                        worker,
                        results=results,
                        how="if this raises, which is caught" if skipped.raised else "on the way that ends here",
                        caller=fn,
                        get=get,
                        skipped=skipped,
                    )


def _counted(fn: Function, facts: Facts) -> Iterator[tuple[str, str, ast.Call]]:
    """The queues of which a function fills one in a loop, and empties the other in a loop of as many turns."""
    put, got = dict[str, str](), dict[str, tuple[str, ast.Call]]()
    for call in fn.calls:
        loop = enclosing(call, ast.For)
        over = _over(loop.iter) if isinstance(loop, ast.For) else ""
        if over and (queue := queue_of(call, PUTS, fn, facts)):
            put.setdefault(queue, over)
        elif over and (queue := queue_of(call, ("get",), fn, facts)) and not has_timeout(call, "get"):
            got.setdefault(queue, (over, call))
    for jobs, one in put.items():
        yield from ((jobs, results, get) for results, (two, get) in got.items() if one == two and jobs != results)


def _over(node: ast.expr) -> str:
    """What a loop goes over: `items` of `enumerate(items)` and `range(len(items))`."""
    while isinstance(node, ast.Call) and short_name(node.func) in ("enumerate", "range", "len") and len(node.args) == 1:
        node = node.args[0]
    return ast.unparse(node)


def _is(call: ast.Call, methods: tuple[str, ...], queue: str, fn: Function, facts: Facts) -> bool:
    return queue_of(call, methods, fn, facts) == queue
