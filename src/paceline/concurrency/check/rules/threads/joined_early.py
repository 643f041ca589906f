"""A thread that is joined before it is asked to end.

The thread works until an event is set, a flag changes or an end mark arrives, and the function that joins it does that
only afterwards: the join never returns. Likewise a thread that puts into a bounded queue: once the queue is full, it
waits for a reader, and the reader waits for the thread. Tell it first, empty the queue, then join.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import has_timeout, text_of
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.endings import done_before, ends_of, never_told, signals
from paceline.concurrency.check.rules.rule import Rule, blocks_that_make, finding, resource_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, is_constant, keyword, short_name
from paceline.concurrency.check.syntax.tree import is_within, last_line, parent
from paceline.concurrency.check.threads.roots import STARTS, in_loop
from paceline.concurrency.check.values.bindings import start_arguments
from paceline.narrative import Wait

READS = ("get", "get_nowait")


def find(facts: Facts) -> Iterator[Finding]:
    """Report joins before what ends the thread, and joins of threads that may wait for room in a queue."""
    for fn in facts.module.functions:
        findings = (_signalled_after(*task, fn, facts) for task in _tasks(fn, facts))
        yield from [f for f in findings if f is not None][:1]
        for join in fn.calls:
            if _left_open(join, fn, facts):
                yield _report_open(fn, join)
            started = _joined(join, fn, facts)
            if started is None:
                continue
            constructor, maker, runs = started
            ends = ends_of(constructor, maker, runs, fn)
            signal = _signalled(fn, join, ends)
            register = _only_at_exit(fn, facts)
            if (
                register is not None
                and not _is_daemon(constructor, maker)
                and any(signals(c, ends, fn) for c in done_before(fn, join, facts))
            ):
                yield _report_exit(fn, join, register, runs)
                continue
            if signal is not None and not any(signals(c, ends, fn) for c in done_before(fn, join, facts)):
                yield _report(fn, join, signal, runs)
                continue
            get = never_told(constructor, maker, runs, fn, join, facts)
            if get is not None:
                yield _report_asleep(fn, join, runs, *get)
                continue
            put = _full(constructor, maker, runs, facts)
            if put is not None and not _drained(fn, join, put[1], facts):
                yield _report_full(fn, join, runs, *put)


def _left_open(join: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a pool of processes is joined that nothing closes or terminates."""
    pool = resource_of(join, ("join",), fn, facts)
    if pool is None or pool.kind != "Pool":
        return False
    ends = ((c, f) for f in facts.module.functions for c in f.calls if short_name(c.func) in ("close", "terminate"))
    closed = (resource_of(c, ("close", "terminate"), f, facts) for c, f in ends)
    return not any(other is not None and other.id == pool.id for other in closed)


def _only_at_exit(fn: Function, facts: Facts) -> ast.Call | None:
    """Where a function is registered to run at exit, if nothing else calls it."""
    if facts.callers.get(id(fn)):
        return None
    for other in facts.module.functions:
        for call in other.calls:
            registers = facts.module.canonical(call.func) == "atexit.register" and call.args
            if registers and facts.module.function_named(call.args[0], other) is fn:
                return call
    return None


def _is_daemon(constructor: ast.Call, maker: Function) -> bool:
    """Whether a thread does not keep the interpreter from its exit."""
    daemon = keyword(constructor, "daemon")
    later = any(isinstance(t, ast.Attribute) and t.attr == "daemon" for t, _ in maker.assigns)
    return (
        later
        or any(short_name(c.func) == "setDaemon" for c in maker.calls)
        or not (daemon is None or is_constant(daemon, False))
    )


def _report_exit(fn: Function, join: ast.Call, register: ast.Call, runs: Function) -> Finding:
    return finding(
        register,
        fn,
        f"{fn.qualname} runs at exit, when all threads have ended that are no daemons; {runs.qualname} is one of them, "
        f"and only {fn.qualname} ends it",
        [
            Step("thread A", register.lineno, "leaves the program: the interpreter waits for the threads"),
            Step("thread B", runs.line, f"{runs.qualname} continues until it is asked to end"),
            Step("thread A", join.lineno, f"would ask it in {fn.qualname}, which comes after that"),
        ],
        remedy="make the thread a daemon, or end it before the end of the program",
        about=f"{fn.qualname} at exit",
        confidence=0.75,
        waits=[
            Wait("thread A", "leaves the program", "end", "thread B"),
            Wait("thread B", "runs its loop", "tell it to end", "thread A"),
        ],
    )


def _report_open(fn: Function, join: ast.Call) -> Finding:
    return finding(
        join,
        fn,
        f"{text_of(join)} is called while the pool is open: it raises ValueError, and the tasks may not have ended",
        [
            Step("the parent", join.lineno, f"{fn.qualname} joins a pool that still takes tasks"),
            Step("the parent", join.lineno, "ValueError: Pool is still running"),
        ],
        remedy="call close() before join()",
        about=dotted(join.func),
        confidence=0.8,
    )


def _tasks(fn: Function, facts: Facts) -> Iterator[tuple[ast.stmt, ast.Call, Function]]:
    """The tasks of an executor whose block waits at its end until they have ended: that end, the call, the function."""
    for block, executor in blocks_that_make("Executor", fn, facts):
        for call in fn.calls:
            submits = dotted(call.func) == f"{executor}.submit" and call.args
            runs = facts.module.function_named(call.args[0], fn) if submits else None
            if runs is not None and is_within(call, block):
                yield block.body[-1], call, runs


def _signalled_after(
    end: ast.stmt, constructor: ast.Call, runs: Function, fn: Function, facts: Facts
) -> Finding | None:
    """What would end a task comes after the block of its executor, which waits for it."""
    ends = ends_of(constructor, fn, runs, fn)
    last = ast.copy_location(ast.Name("end"), end)
    last.lineno = last_line(end)
    within = [c for f in fn.nested.values() for c in f.calls]
    if any(signals(c, ends, fn) for c in (*done_before(fn, last, facts), *within)):
        return None
    later = [c for c in fn.calls if c.lineno > last.lineno and signals(c, ends, fn)]
    flags = [t for t, v in fn.assigns if t.lineno > last.lineno and isinstance(v, ast.Constant) and dotted(t) in ends]
    signal = min([*later, *flags], key=lambda n: n.lineno, default=None)
    return (
        None if signal is None or in_loop(end, fn) else _report(fn, constructor, signal, runs, "the end of the block")
    )


def _joined(call: ast.Call, fn: Function, facts: Facts) -> tuple[ast.Call, Function, Function] | None:
    """The thread or process that a call joins without a timeout: where it is made, by whom, and what it runs."""
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr != "join" or call.args or has_timeout(call, "join"):
        return None
    resource = facts.module.resource(func.value, fn)
    if resource is not None and resource.kind not in ("Thread", "Process"):
        return None
    for maker, value in _values(func.value, fn):
        if isinstance(value, ast.Call) and facts.module.constructed_kind(value, maker) in ("Thread", "Process"):
            name = short_name(value.func)
            target = keyword(value, STARTS[name][1], STARTS[name][2]) if name in STARTS else None
            runs = facts.module.function_named(target, maker) if target is not None else None
            if runs is not None:
                return value, maker, runs
    return None


def _values(node: ast.expr, fn: Function) -> Iterator[tuple[Function, ast.expr]]:
    """What a name, an attribute of the own object, or the elements of a list in one, were given."""
    if isinstance(node, ast.Name) and node.id in fn.looped:
        over = fn.looped[node.id]
        owners = fn.cls.methods.values() if fn.cls is not None else [fn]
        for other in owners:
            receiver = dotted(over).replace(f"{fn.self_name}.", f"{other.self_name}.", 1)
            for call in other.calls:
                if call.args and dotted(call.func) == f"{receiver}.append":
                    yield from ((other, v) for v in [other.bound.get(dotted(call.args[0])), call.args[0]] if v)
    elif isinstance(node, ast.Name) and node.id in fn.bound:
        yield fn, fn.bound[node.id]
    elif isinstance(node, ast.Attribute) and dotted(node.value) == fn.self_name and fn.cls is not None:
        yield from ((maker, value) for value, maker in fn.cls.values.get(node.attr, ()))


def _signalled(fn: Function, join: ast.Call, ends: set[str]) -> ast.AST | None:
    """What the function does after the join that would have ended the thread."""
    if in_loop(join, fn):
        return None
    later = [c for c in fn.calls if c.lineno > join.lineno and signals(c, ends, fn)]
    flags = [t for t, v in fn.assigns if t.lineno > join.lineno and isinstance(v, ast.Constant) and dotted(t) in ends]
    return min([*later, *flags], key=lambda n: n.lineno, default=None)


def _report_asleep(
    fn: Function, join: ast.Call, runs: Function, wait: ast.Call, what: str, signal: ast.expr
) -> Finding:
    socket, event = short_name(wait.func) == "accept", short_name(wait.func) == "wait"
    return finding(
        join,
        fn,
        f"{text_of(join)} waits for {runs.qualname}, which waits in {text_of(wait)} (line {wait.lineno}) and sees its "
        f"flag only once {'that happens' if event else 'a connection comes' if socket else 'something comes'}",
        [
            Step("thread B", wait.lineno, f"{runs.qualname} waits for {what}"),
            Step("thread A", signal.lineno, f"{fn.qualname} asks it to end; thread B does not wake up"),
            Step("thread A", join.lineno, "waits for it to end"),
        ],
        remedy="connect to the socket once more before the join, or give it a timeout"
        if socket
        else "set the event before the join, after the flag"
        if event
        else "wait for the data with a timeout, or for a second pipe as well, by select()"
        if short_name(wait.func) == "read"
        else f"put an end mark into {what.rpartition(' ')[2]} before the join, or get with a timeout",
        about=what.removesuffix(" to be set").rpartition(" ")[2],
        confidence=0.65,
        waits=[
            Wait("thread A", "joined the thread", "end", "thread B"),
            Wait("thread B", f"waits for {what}", "connect" if socket else "set it" * event or "put one", "thread A"),
        ],
    )


def _full(constructor: ast.Call, maker: Function, runs: Function, facts: Facts) -> tuple[ast.Call, str] | None:
    """A `put` in a loop of the thread that waits for room, and the queue."""
    parameters = [p for p in runs.parameters if runs.cls is None or p != runs.self_name]
    arguments = dict(zip(parameters, start_arguments(constructor, maker), strict=False))
    for call in runs.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "put" and in_loop(call, runs):
            passed = arguments.get(dotted(call.func.value))
            queue = facts.module.resource(passed or call.func.value, maker if passed else runs)
            piped = queue is not None and queue.kind == "ProcessQueue"
            if queue is None or not (piped or (queue.bounded and queue.kind == "Queue")) or has_timeout(call, "put"):
                continue
            if queue.one_of_several or _leaves_unread(runs):
                continue
            readers = [f for f in facts.module.functions for c in f.calls if _gets(c, queue.id, f, facts)]
            if readers and not any(_runs_beside(f, facts) for f in readers):
                return call, queue.id
    return None


def _runs_beside(fn: Function, facts: Facts) -> bool:
    """Whether a thread, process or task runs a function, and so continues while another one is joined."""
    return any(root.startswith(("thread:", "process:", "task:")) for root in facts.reached.get(id(fn), ()))


def _leaves_unread(runs: Function) -> bool:
    """Whether a process says that it does not wait for its queue to be read."""
    return any(short_name(c.func) == "cancel_join_thread" for c in runs.calls)


def _gets(call: ast.Call, queue: str, fn: Function, facts: Facts) -> bool:
    """Whether a call takes an item out of a queue."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in READS:
        return False
    resource = facts.module.resource(call.func.value, fn)
    return resource is not None and resource.id == queue


def _drained(fn: Function, join: ast.Call, queue: str, facts: Facts) -> bool:
    """Whether the function reads the queue until it is empty before it joins, or ends the child by force."""
    first = _cut_off(join)  # what comes before the cleanup may have been left early
    earlier = [c for c in fn.calls if first <= c.lineno <= join.lineno]
    if any(short_name(c.func) in ("terminate", "kill", "cancel_join_thread") for c in earlier):
        return True
    if fn.cls is None and any(_gets(c, queue, fn, facts) for c in earlier):
        return True
    helpers = [(h, c) for e in earlier if (h := facts.module.callee(e, fn)) is not None for c in h.calls]
    return any(_gets(c, queue, f, facts) and in_loop(c, f) for f, c in [*((fn, c) for c in earlier), *helpers])


def _cut_off(join: ast.Call) -> int:
    """The first line of the `finally` in which a thread is joined; 0 where it is not in one."""
    at: ast.AST | None = join
    while at is not None and not isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef):
        around = parent(at)
        if isinstance(around, ast.Try) and at in around.finalbody:
            return around.finalbody[0].lineno
        at = around
    return 0


def _report(fn: Function, join: ast.Call, signal: ast.AST, runs: Function, waits: str = "") -> Finding:
    line = getattr(signal, "lineno", join.lineno)
    what = text_of(signal) if isinstance(signal, ast.Call) else f"{dotted(signal)} = ..."
    return finding(
        join,
        fn,
        f"{waits or text_of(join)} waits for {runs.qualname} to end, and line {line} ({what}), which would end it, "
        "comes after",
        [
            Step("thread A", join.lineno, f"{fn.qualname} waits for the thread to end"),
            Step("thread B", runs.line, f"{runs.qualname} continues until it is asked to end"),
            Step("thread A", line, "would tell it, and is never reached"),
        ],
        remedy="tell the thread to end before it is joined",
        about=dotted(join.func),
        confidence=0.75,
        waits=[
            Wait("thread A", "joined the thread", "end", "thread B"),
            Wait("thread B", "runs its loop", "tell it to end", "thread A"),
        ],
    )


def _report_full(fn: Function, join: ast.Call, runs: Function, put: ast.Call, queue: str) -> Finding:
    return finding(
        join,
        fn,
        f"{text_of(join)} waits for {runs.qualname} to end, which waits for room in {queue} once that is full (line "
        f"{put.lineno}); nothing takes the items out any more",
        [
            Step("thread B", put.lineno, f"{runs.qualname} puts into {queue}, which is full, and waits for room"),
            Step("thread A", join.lineno, f"{fn.qualname} waits for it to end, and does not empty {queue}"),
        ],
        remedy=f"take everything out of {queue} before and while it is joined, or put with a timeout",
        about=queue,
        confidence=0.65,
        waits=[
            Wait("thread B", f"filled {queue}", "take an item", "thread A"),
            Wait("thread A", "stopped to read", "end", "thread B"),
        ],
    )


RULE = Rule(
    "PC217",
    "joined-early",
    "a thread joined before it is asked to end, or while it may wait for room in a queue",
    find,
    bad="""
        import threading

        class Sampler:
            def __init__(self):
                self.stopped = threading.Event()
                self.thread = threading.Thread(target=self._run)
                self.thread.start()

            def _run(self):
                while not self.stopped.is_set():
                    self.sample()

            def close(self):
                self.thread.join()
                self.stopped.set()
    """,
    good="""
        import threading

        class Sampler:
            def __init__(self):
                self.stopped = threading.Event()
                self.thread = threading.Thread(target=self._run)
                self.thread.start()

            def _run(self):
                while not self.stopped.is_set():
                    self.sample()

            def close(self):
                self.stopped.set()
                self.thread.join()
    """,
    needs=("join", "Executor"),
)
