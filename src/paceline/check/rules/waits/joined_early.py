"""A thread that is joined before it is asked to end.

The thread works until an event is set, a flag changes or an end mark arrives, and the function that joins it does that
only afterwards: the join never returns. Likewise a thread that puts into a bounded queue: once the queue is full, it
waits for a reader, and the reader waits for the thread. Tell it first, empty the queue, then join.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.flow.effects import has_timeout, text_of
from paceline.check.libraries.catalogue import PUT_ITEM
from paceline.check.reporting.findings import Finding, Step
from paceline.check.rules.rule import Rule, finding
from paceline.check.rules.waits.join_before_drain import arguments
from paceline.check.rules.waits.never_set import is_end_mark
from paceline.check.summaries import Facts
from paceline.check.syntax.declarations import Function
from paceline.check.syntax.names import dotted, keyword, parent, short_name
from paceline.check.threads.roots import STARTS, in_loop
from paceline.narrative import Wait

TELLS = ("set", "cancel", "notify", "notify_all")
PUTS = ("put", "put_nowait")
ASKS = ("is_set", "isSet", "wait", "get", "get_nowait")
READS = ("get", "get_nowait")
#: What gives a socket a timeout, or asks it whether anything has come.
LIMITS = ("settimeout", "setblocking", "setdefaulttimeout", "select", "poll", "register")
#: What wakes up a thread that waits at a socket, or ends it by force.
WAKES = ("close", "shutdown", "connect", "connect_ex", "create_connection", "terminate", "kill")


def find(facts: Facts) -> Iterator[Finding]:
    """Report joins before what ends the thread, and joins of threads that may wait for room in a queue."""
    for fn in facts.module.functions:
        for join in fn.calls:
            started = _joined(join, fn, facts)
            if started is None:
                continue
            made, maker, runs = started
            ends = _ends(made, maker, runs, fn)
            signal = _signalled(fn, join, ends)
            if signal is not None and not any(_tells(c, ends, fn) for c in _before(fn, join, facts)):
                yield _report(fn, join, signal, runs)
                continue
            get = _never_told(made, maker, runs, fn, join, facts)
            if get is not None:
                yield _report_asleep(fn, join, runs, *get)
                continue
            put = _full(made, maker, runs, facts)
            if put is not None and not _drained(fn, join, put[1], facts):
                yield _report_full(fn, join, runs, *put)


def _joined(call: ast.Call, fn: Function, facts: Facts) -> tuple[ast.Call, Function, Function] | None:
    """The thread or process that a call joins without a timeout: where it is made, by whom, and what it runs."""
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr != "join" or call.args or has_timeout(call, "join"):
        return None
    found = facts.module.resource(func.value, fn)
    if found is not None and found.kind not in ("Thread", "Process"):
        return None
    for maker, value in _values(func.value, fn):
        if isinstance(value, ast.Call) and facts.module.constructed_kind(value, maker) in ("Thread", "Process"):
            name = short_name(value.func)
            given = keyword(value, STARTS[name][1], STARTS[name][2]) if name in STARTS else None
            runs = facts.module.function_named(given, maker) if given is not None else None
            if runs is not None:
                return value, maker, runs
    return None


def _values(node: ast.expr, fn: Function) -> Iterator[tuple[Function, ast.expr]]:
    """What a name, an attribute of the own object, or the elements of a list in one, were given."""
    if isinstance(node, ast.Name) and node.id in fn.looped:
        over = fn.looped[node.id]
        owners = fn.cls.methods.values() if fn.cls is not None else [fn]
        for other in owners:
            own = dotted(over).replace(f"{fn.self_name}.", f"{other.self_name}.", 1)
            for call in other.calls:
                if call.args and dotted(call.func) == f"{own}.append":
                    yield from ((other, v) for v in [other.bound.get(dotted(call.args[0])), call.args[0]] if v)
    elif isinstance(node, ast.Name) and node.id in fn.bound:
        yield fn, fn.bound[node.id]
    elif isinstance(node, ast.Attribute) and dotted(node.value) == fn.self_name and fn.cls is not None:
        yield from ((maker, value) for value, maker in fn.cls.values.get(node.attr, ()))


def _ends(made: ast.Call, maker: Function, runs: Function, fn: Function) -> set[str]:
    """What the loops of a thread ask for before they end, as the function that joins it names them."""
    names = _names(made, maker, runs, fn)
    found: set[str] = set()
    for loop in runs.loops:
        if not isinstance(loop, ast.While):
            continue
        asked = [n for n in ast.walk(loop.test) if isinstance(n, ast.Attribute | ast.Name)]
        methods = [c.func for c in runs.calls if isinstance(c.func, ast.Attribute) and _inside(c, loop)]
        asked += [m.value for m in methods if m.attr in ASKS]  # type: ignore[misc]
        found |= {_renamed(dotted(n), names) for n in asked} - {"", "self", fn.self_name}
    changed = [target for target, _ in runs.assigns] + [change.target for change in runs.augmented]
    return found - {_renamed(dotted(target), names) for target in changed}  # those end it without a signal


def _inside(node: ast.AST, loop: ast.While) -> bool:
    return loop.lineno <= getattr(node, "lineno", 0) <= (loop.end_lineno or 0)


def _names(made: ast.Call, maker: Function, runs: Function, fn: Function) -> dict[str, str]:
    """How the started function's names are called in the function that joins it."""
    parameters = [p for p in runs.parameters if p != runs.self_name or runs.cls is None]
    given = {p: dotted(a) for p, a in zip(parameters, arguments(made, maker), strict=False)}
    if runs.cls is not None and fn.cls is not None:
        given[runs.self_name] = fn.self_name
    return given


def _renamed(text: str, names: dict[str, str]) -> str:
    head, dot, rest = text.partition(".")
    return names.get(head, head) + dot + rest


def _signalled(fn: Function, join: ast.Call, ends: set[str]) -> ast.AST | None:
    """What the function does after the join that would have ended the thread."""
    if in_loop(join, fn):
        return None
    later = [c for c in fn.calls if c.lineno > join.lineno and _tells(c, ends, fn)]
    flags = [t for t, v in fn.assigns if t.lineno > join.lineno and isinstance(v, ast.Constant) and dotted(t) in ends]
    return min([*later, *flags], key=lambda n: n.lineno, default=None)


def _tells(node: ast.AST, ends: set[str], fn: Function) -> bool:
    """Whether this ends the loop of the thread."""
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Attribute) or dotted(node.func.value) not in ends:
            return False
        return node.func.attr in TELLS or (node.func.attr in PUTS and is_end_mark(node))
    return dotted(node) in ends


def _before(fn: Function, join: ast.Call, facts: Facts) -> Iterator[ast.AST]:
    """What the function, and what it calls, does before a join."""
    for call in fn.calls:
        if call.lineno <= join.lineno:
            yield call
            callee = facts.module.callee(call, fn)
            if callee is not None:
                yield from callee.calls
                yield from (target for target, value in callee.assigns if isinstance(value, ast.Constant))
    yield from (t for t, v in fn.assigns if t.lineno <= join.lineno and isinstance(v, ast.Constant))


def _never_told(
    made: ast.Call, maker: Function, runs: Function, fn: Function, join: ast.Call, facts: Facts
) -> tuple[ast.Call, str, ast.expr] | None:
    """A wait without a timeout in the loop of a thread that only a flag ends, for what, and where the flag is set."""
    names = _names(made, maker, runs, fn)
    for loop in runs.loops:
        flag = _renamed(_flag(loop.test), names) if isinstance(loop, ast.While) else ""
        told = next((t for t, _ in fn.assigns if flag and dotted(t) == flag and t.lineno < join.lineno), None)
        told = told or next(
            (c.func for c in fn.calls if flag and dotted(c.func) == f"{flag}.set" and c.lineno < join.lineno), None
        )
        if told is None or not isinstance(loop, ast.While) or _leaves(loop):
            continue
        asleep = _in_queue(loop, runs, fn, join, facts) or _in_socket(loop, runs, fn, join, facts)
        if asleep is not None:
            return *asleep, told
    return None


def _leaves(loop: ast.While) -> bool:
    """Whether something in a loop leaves it."""
    return any(isinstance(n, ast.Break | ast.Return) for n in ast.walk(loop))


def _in_queue(
    loop: ast.While, runs: Function, fn: Function, join: ast.Call, facts: Facts
) -> tuple[ast.Call, str] | None:
    """A `get` of a loop to which no end mark is put before the join, and its queue."""
    for effect in facts.walker.effects(runs):
        queue = effect.resource
        if queue is None or effect.kind != "wait" or effect.timeout or not _inside(effect.node, loop):
            continue
        if queue.kind not in ("Queue", "SimpleQueue", "ProcessQueue") or effect.waits_for != PUT_ITEM:
            continue
        wakes = any(short_name(c.func) in PUTS and c.lineno < join.lineno for c in fn.calls)
        if not wakes and not queue.one_of_several and isinstance(effect.node, ast.Call):
            return effect.node, f"an item of {queue.id}"
    return None


def _in_socket(
    loop: ast.While, runs: Function, fn: Function, join: ast.Call, facts: Facts
) -> tuple[ast.Call, str] | None:
    """An `accept()` of a loop, on a socket without a timeout that is not closed before the join."""
    every = [short_name(c.func) for f in facts.module.functions for c in f.calls]
    if any(name in LIMITS for name in every) or any(
        isinstance(n, ast.Call) and short_name(n.func) in WAKES for n in _before(fn, join, facts)
    ):
        return None
    for call in runs.calls:
        accepts = isinstance(call.func, ast.Attribute) and call.func.attr == "accept" and not call.args
        if accepts and _inside(call, loop):
            return call, f"a connection to {dotted(call.func.value)}"  # type: ignore[attr-defined]
    return None


def _flag(test: ast.expr) -> str:
    """The flag or event of `while self.running`, `while not self.stopped` and `while not self.stop.is_set()`."""
    asked = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
    if isinstance(asked, ast.Call) and short_name(asked.func) in ("is_set", "isSet"):
        return dotted(asked.func.value)  # type: ignore[attr-defined]
    return dotted(asked) if isinstance(asked, ast.Attribute) else ""


def _report_asleep(fn: Function, join: ast.Call, runs: Function, wait: ast.Call, what: str, told: ast.expr) -> Finding:
    socket = short_name(wait.func) == "accept"
    return finding(
        join,
        fn,
        f"{text_of(join)} waits for {runs.qualname}, which waits in {text_of(wait)} (line {wait.lineno}) and sees its "
        f"flag only once {'a connection' if socket else 'an item'} comes",
        [
            Step("thread B", wait.lineno, f"{runs.qualname} waits for {what}"),
            Step("thread A", told.lineno, f"{fn.qualname} asks it to end; thread B does not wake up"),
            Step("thread A", join.lineno, "waits for it to end"),
        ],
        "connect to the socket once more before the join, or give it a timeout"
        if socket
        else f"put an end mark into {what.rpartition(' ')[2]} before the join, or get with a timeout",
        what.rpartition(" ")[2],
        0.65,
        [
            Wait("thread A", "joined the thread", "end", "thread B"),
            Wait("thread B", f"waits for {what}", "connect" if socket else "put one", "thread A"),
        ],
    )


def _full(made: ast.Call, maker: Function, runs: Function, facts: Facts) -> tuple[ast.Call, str] | None:
    """A `put` in a loop of the thread that waits for room, and the queue."""
    parameters = [p for p in runs.parameters if runs.cls is None or p != runs.self_name]
    given = dict(zip(parameters, arguments(made, maker), strict=False))
    for call in runs.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "put" and in_loop(call, runs):
            passed = given.get(dotted(call.func.value))
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
    """Whether a thread, process or task runs a function, and so goes on while another one is joined."""
    return any(root.startswith(("thread:", "process:", "task:")) for root in facts.reached.get(id(fn), ()))


def _leaves_unread(runs: Function) -> bool:
    """Whether a process says that it does not wait for its queue to be read."""
    return any(short_name(c.func) == "cancel_join_thread" for c in runs.calls)


def _gets(call: ast.Call, queue: str, fn: Function, facts: Facts) -> bool:
    """Whether a call takes an item out of a queue."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in READS:
        return False
    found = facts.module.resource(call.func.value, fn)
    return found is not None and found.id == queue


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


def _report(fn: Function, join: ast.Call, signal: ast.AST, runs: Function) -> Finding:
    line = getattr(signal, "lineno", join.lineno)
    what = text_of(signal) if isinstance(signal, ast.Call) else f"{dotted(signal)} = ..."
    return finding(
        join,
        fn,
        f"{text_of(join)} waits for {runs.qualname} to end, and line {line} ({what}), which would end it, comes after",
        [
            Step("thread A", join.lineno, f"{fn.qualname} waits for the thread to end"),
            Step("thread B", runs.line, f"{runs.qualname} continues until it is asked to end"),
            Step("thread A", line, "would tell it, and is never reached"),
        ],
        "tell the thread to end before it is joined",
        dotted(join.func),
        0.75,
        [
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
        f"take everything out of {queue} before and while it is joined, or put with a timeout",
        queue,
        0.65,
        [
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
    needs=("join",),
)
