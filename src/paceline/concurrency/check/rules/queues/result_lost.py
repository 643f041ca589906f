"""A job that is taken from a queue and for which no result is put into another one, where one is counted on.

A function puts its jobs into a queue and then takes as many results from another. A worker that catches the error of a
job and continues with the next one puts no result: one is missing, and the last `get()` waits for ever. Put something
for every job: the result, or the error.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.duties import Duty, Skipped, one_of
from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.libraries.catalogue import PUTS
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding, queue_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import enclosing
from paceline.concurrency.check.threads.roots import in_loop


def find(facts: Facts) -> Iterator[Finding]:
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
                    yield _report(worker, skipped, results, fn, get)


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


def _report(worker: Function, skipped: Skipped, results: str, fn: Function, get: ast.Call) -> Finding:
    line = skipped.node.line
    how = "if this raises, which is caught" if skipped.raised else "on the way that ends here"
    return finding(
        skipped.node.syntax or worker.node,
        worker,
        f"{worker.qualname} puts no result into {results} {how}; {fn.qualname} takes one for every job, and waits for "
        f"the missing one for ever (line {get.lineno})",
        [
            Step("thread B", line, f"{worker.qualname} continues with the next job, without a result"),
            Step("thread A", get.lineno, f"{fn.qualname} waits for as many results as it has put jobs"),
        ],
        remedy="put a result, or the error, for every job",
        about=results,
        confidence=0.75,
    )


RULE = Rule(
    "PC239",
    "result-lost",
    "a job without a result, where one for each is waited for",
    find,
    bad="""
        import queue
        import threading

        jobs, results = queue.Queue(), queue.Queue()

        def work():
            while True:
                job = jobs.get()
                try:
                    result = job.run()
                except ValueError:
                    continue
                results.put(result)

        def run(items):
            threading.Thread(target=work, daemon=True).start()
            found = []
            for item in items:
                jobs.put(item)
            for _ in items:
                found.append(results.get())
            return found
    """,
    good="""
        import queue
        import threading

        jobs, results = queue.Queue(), queue.Queue()

        def work():
            while True:
                job = jobs.get()
                try:
                    result = job.run()
                except ValueError as error:
                    result = error
                results.put(result)

        def run(items):
            threading.Thread(target=work, daemon=True).start()
            found = []
            for item in items:
                jobs.put(item)
            for _ in items:
                found.append(results.get())
            return found
    """,
    needs=("Queue",),
)
