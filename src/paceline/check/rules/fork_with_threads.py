"""A fork of a process that has threads.

`os.fork()` copies one thread. Whatever lock another one holds at that moment (of the allocator, of logging, of a
queue) stays taken in the child for ever. A child that at once replaces itself (`exec`) or ends is safe. Reported where
the same file starts threads.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.check.findings import Finding, Step
from paceline.check.names import last
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts


def find(facts: Facts) -> Iterator[Finding]:
    started = next((r for r in facts.roots if r.kind == "thread" and not r.alone), None)
    made = [c for fn in facts.module.functions for c in fn.calls if facts.module.kind_made(c, fn) == "Thread"]
    if started is None and not made:
        return
    line = started.line if started is not None else made[0].lineno
    for fn in facts.module.functions:
        if any(last(c.func).startswith(("exec", "spawn")) and c.lineno > fn.line for c in fn.calls):
            continue
        for call in fn.calls:
            if facts.module.canonical(call.func) in ("os.fork", "os.forkpty", "pty.fork"):
                yield finding(
                    call,
                    fn,
                    f"this process is forked, and it has threads (line {line}): a lock that one of them holds "
                    "stays taken in the child for ever",
                    [
                        Step("thread B", line, "runs, and holds some lock: of logging, of the allocator, of a queue"),
                        Step(
                            "thread A",
                            call.lineno,
                            f"{fn.qualname} forks; the child has the lock taken, but no thread B",
                        ),
                        Step("the child", call.lineno, "waits for it"),
                    ],
                    "fork before the first thread is started, or use subprocess or the spawn method",
                    "fork",
                    0.65,
                )


RULE = Rule(
    "PC114",
    "fork-with-threads",
    "a fork of a process that has threads",
    find,
    bad="""
        import os
        import threading

        def serve(watch, work):
            threading.Thread(target=watch).start()
            if os.fork() == 0:
                work()
    """,
    good="""
        import os
        import threading

        def serve(watch, command):
            threading.Thread(target=watch).start()
            if os.fork() == 0:
                os.execv(command, [command])
    """,
    needs=("fork",),
)
