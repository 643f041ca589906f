"""Fewer end marks in a queue than workers that wait for one.

Each worker ends when it takes the mark (`None`, `STOP`) out of the queue, and takes it away from the others. One mark
for several workers ends one of them; the others wait for an item for ever, and so does a join of them. Put one mark per
worker, or let a worker put the mark back.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.libraries.catalogue import PUTS
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.endings import ends_by
from paceline.concurrency.check.rules.rule import Rule, finding, queue_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.threads.roots import Root, in_loop
from paceline.narrative import Wait


def find(facts: Facts) -> Iterator[Finding]:
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


def _report(fn: Function, put: ast.Call, root: Root, queue: str, mark: str, get: ast.Call) -> Finding:
    name = root.function.qualname
    return finding(
        put,
        fn,
        f"one {mark} is put into {queue}, but each of the workers that run {name} needs one to end (line "
        f"{get.lineno}): the others wait for an item for ever",
        [
            Step("thread A", put.lineno, f"{fn.qualname} puts one {mark} into {queue}"),
            Step("thread B", get.lineno, f"{name} takes it, and ends"),
            Step("thread C", get.lineno, f"{name} waits for an item, and none comes"),
        ],
        remedy=f"put one {mark} per worker, or let each worker put it back before it ends",
        about=queue,
        confidence=0.75,
        waits=[Wait("thread C", "took the last item", f"put {mark} once more", "thread A")],
    )


RULE = Rule(
    "PC211",
    "too-few-end-marks",
    "fewer end marks in a queue than workers that wait for one",
    find,
    bad="""
        import queue
        import threading

        items = queue.Queue()

        def work():
            while True:
                item = items.get()
                if item is None:
                    return
                item.run()

        def run(workers):
            threads = [threading.Thread(target=work) for _ in range(workers)]
            for thread in threads:
                thread.start()
            items.put(None)
            for thread in threads:
                thread.join()
    """,
    good="""
        import queue
        import threading

        items = queue.Queue()

        def work():
            while True:
                item = items.get()
                if item is None:
                    return
                item.run()

        def run(workers):
            threads = [threading.Thread(target=work) for _ in range(workers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                items.put(None)
            for thread in threads:
                thread.join()
    """,
    needs=("Queue",),
)
