"""What ends the loop of a thread, and whether a function does that before it waits for the thread."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.concurrency.check.libraries.catalogue import PUT_ITEM, PUTS, THREAD_EVENTS, THREAD_QUEUES
from paceline.concurrency.check.rules.rule import queue_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import awaited, dotted, is_constant, is_within, short_name
from paceline.concurrency.check.threads.roots import in_loop
from paceline.concurrency.check.values.bindings import start_arguments

TELLS = ("set", "cancel", "notify", "notify_all")
ASKS = ("is_set", "isSet", "wait", "get", "get_nowait")
Loop = ast.For | ast.AsyncFor | ast.While | ast.comprehension
#: What gives a socket a timeout, or asks it whether anything has come.
LIMITS = ("settimeout", "setblocking", "setdefaulttimeout", "select", "poll", "register")
#: What wakes up a thread that waits at a socket, or ends it by force.
WAKES = ("close", "shutdown", "connect", "connect_ex", "create_connection", "terminate", "kill")
_MARK = re.compile(r"(^|_)(end|stop|done|eof|sentinel|finished|shutdown|poison|quit|exit)", re.IGNORECASE)


def ends_of(construction: ast.Call, maker: Function, runs: Function, fn: Function) -> set[str]:
    """What the loops of a thread ask for before they end, as the function that joins it names them."""
    names = names_in(construction, maker, runs, fn)
    ends: set[str] = set()
    for loop in runs.loops:
        if not isinstance(loop, ast.While):
            continue
        nodes = [n for n in ast.walk(loop.test) if isinstance(n, ast.Attribute | ast.Name)]
        methods = [c.func for c in runs.calls if isinstance(c.func, ast.Attribute) and is_within(c, loop)]
        nodes += [m.value for m in methods if m.attr in ASKS]  # type: ignore[misc]
        ends |= {renamed(dotted(n), names) for n in nodes} - {"", "self", fn.self_name}
    waits = (c for c in runs.calls if short_name(c.func) == "wait" and not c.args and not c.keywords)
    ends |= {renamed(dotted(c.func.value), names) for c in waits if isinstance(c.func, ast.Attribute)} - {""}
    changed = [target for target, _ in runs.assigns] + [change.target for change in runs.augmented]
    return ends - {renamed(dotted(target), names) for target in changed}  # those end it without a signal


def names_in(construction: ast.Call, maker: Function, runs: Function, fn: Function) -> dict[str, str]:
    """How the started function's names are called in the function that joins it."""
    parameters = [p for p in runs.parameters if p != runs.self_name or runs.cls is None]
    passed = (
        construction.args[1:] if short_name(construction.func) == "submit" else start_arguments(construction, maker)
    )
    names = {p: dotted(a) for p, a in zip(parameters, passed, strict=False)}
    if runs.cls is not None and fn.cls is not None:
        names[runs.self_name] = fn.self_name
    return names


def renamed(text: str, names: dict[str, str]) -> str:
    head, dot, rest = text.partition(".")
    return names.get(head, head) + dot + rest


def signals(node: ast.AST, ends: set[str], fn: Function) -> bool:
    """Whether this ends the loop of the thread."""
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Attribute) or dotted(node.func.value) not in ends:
            return False
        return node.func.attr in TELLS or (node.func.attr in PUTS and is_end_mark(node))
    return dotted(node) in ends


def done_before(fn: Function, join: ast.expr, facts: Facts) -> Iterator[ast.AST]:
    """What the function, and what it calls, does before a join."""
    for call in fn.calls:
        if call.lineno <= join.lineno:
            yield call
            callee = facts.module.callee(call, fn)
            if callee is not None:
                yield from callee.calls
                yield from (target for target, value in callee.assigns if isinstance(value, ast.Constant))
    yield from (t for t, v in fn.assigns if t.lineno <= join.lineno and isinstance(v, ast.Constant))


def never_told(
    construction: ast.Call, maker: Function, runs: Function, fn: Function, join: ast.Call, facts: Facts
) -> tuple[ast.Call, str, ast.expr] | None:
    """A wait without a timeout in the loop of a thread that only a flag ends, for what, and where the flag is set."""
    names = names_in(construction, maker, runs, fn)
    for loop in runs.loops:
        paused = _in_event(loop, names, runs, fn, join, facts)
        if paused is not None:
            return paused
        flag = renamed(_flag(loop.test), names) if isinstance(loop, ast.While) else ""
        signal = next((t for t, _ in fn.assigns if flag and dotted(t) == flag and t.lineno < join.lineno), None)
        signal = signal or next(
            (c.func for c in fn.calls if flag and dotted(c.func) == f"{flag}.set" and c.lineno < join.lineno), None
        )
        if signal is None or not isinstance(loop, ast.While) or _leaves(loop):
            continue
        asleep = _in_queue(loop, runs, fn, join, facts) or _in_socket(loop, runs, fn, join, facts)
        if asleep is not None:
            return *asleep, signal
    return None


def _in_event(
    loop: Loop, names: dict[str, str], runs: Function, fn: Function, join: ast.Call, facts: Facts
) -> tuple[ast.Call, str, ast.expr] | None:
    """A wait of a loop for an event that others clear, and that nothing sets before the join, though the flag is."""
    if isinstance(loop, ast.comprehension):
        return None
    tests = [loop.test] if isinstance(loop, ast.While) else []
    tests += [t.test for t in runs.tests if is_within(t, loop) and isinstance(t, ast.If) and _leaves(t.body[-1])]
    flags = {flag for test in tests if (flag := renamed(_flag(test), names))}
    signal = next((t for t, v in fn.assigns if dotted(t) in flags and t.lineno < join.lineno), None)
    signal = signal or next((c.func for c in fn.calls if dotted(c.func).removesuffix(".set") in flags), None)
    if signal is None:
        return None
    for effect in facts.walker.effects(runs):
        event, call = effect.resource, effect.node
        waits = effect.kind == "wait" and not effect.timeout and isinstance(call, ast.Call) and is_within(call, loop)
        if not waits or event is None or event.kind not in THREAD_EVENTS or event.id in {*flags}:
            continue
        if facts.uses(("clear",), of=event.id) and not any(
            isinstance(n, ast.Call) and short_name(n.func) == "set" and dotted(n.func) != dotted(signal) + ".set"
            for n in done_before(fn, join, facts)
        ):
            return call, f"{event.id} to be set", signal  # type: ignore[return-value]
    return None


def _leaves(loop: ast.stmt) -> bool:
    """Whether something in a loop or statement leaves it."""
    return any(isinstance(n, ast.Break | ast.Return) for n in ast.walk(loop))


def _in_queue(
    loop: ast.While, runs: Function, fn: Function, join: ast.Call, facts: Facts
) -> tuple[ast.Call, str] | None:
    """A `get` of a loop to which no end mark is put before the join, and its queue."""
    for effect in facts.walker.effects(runs):
        queue = effect.resource
        if queue is None or effect.kind != "wait" or effect.timeout or not is_within(effect.node, loop):
            continue
        if queue.kind not in THREAD_QUEUES or effect.waits_for != PUT_ITEM:
            continue
        wakes = any(short_name(c.func) in PUTS and c.lineno < join.lineno for c in fn.calls)
        if not wakes and not queue.one_of_several and isinstance(effect.node, ast.Call):
            return effect.node, f"an item of {queue.id}"
    return None


def _in_socket(
    loop: ast.While, runs: Function, fn: Function, join: ast.Call, facts: Facts
) -> tuple[ast.Call, str] | None:
    """An `accept()` of a loop, on a socket without a timeout that is not closed before the join."""
    every = [short_name(c.func) for c, _ in facts.module.calls]
    if any(name in LIMITS for name in every) or any(
        isinstance(n, ast.Call) and short_name(n.func) in WAKES for n in done_before(fn, join, facts)
    ):
        return None
    for call in runs.calls:
        accepts = isinstance(call.func, ast.Attribute) and call.func.attr == "accept" and not call.args
        if accepts and is_within(call, loop):
            return call, f"a connection to {dotted(call.func.value)}"  # type: ignore[attr-defined]
        reads = facts.module.canonical(call.func) == "os.read" and call.args
        wakes = any(isinstance(n, ast.Call) and short_name(n.func) == "write" for n in done_before(fn, join, facts))
        if reads and not wakes and is_within(call, loop):
            return call, f"data from {dotted(call.args[0])}"
    return None


def _flag(test: ast.expr) -> str:
    """The flag or event of `while self.running`, `while not self.stopped` and `while not self.stop.is_set()`."""
    operand = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
    if isinstance(operand, ast.Call) and short_name(operand.func) in ("is_set", "isSet"):
        return dotted(operand.func.value)  # type: ignore[attr-defined]
    return dotted(operand) if isinstance(operand, ast.Attribute) else ""


def is_end_mark(call: ast.Call) -> bool:
    """Whether None, or something named so, is put into a queue to say that nothing more comes."""
    argument = call.args[0] if call.args else None
    return is_constant(argument, None) or (argument is not None and _MARK.search(short_name(argument)) is not None)


def ends_by(fn: Function, facts: Facts) -> Iterator[tuple[str, str, ast.Call]]:
    """The queues whose end mark ends a worker: `item = queue.get()`, then `if item is None: return`."""
    for target, value in fn.assigns:
        get = awaited(value)
        if not isinstance(get, ast.Call) or not isinstance(target, ast.Name) or not in_loop(get, fn):
            continue
        queue = queue_of(get, ("get",), fn, facts)
        puts = [c.args[0] for c in fn.calls if c.args and queue_of(c, PUTS, fn, facts) == queue]
        for test in fn.tests if queue else ():
            comparison = test.test
            if not isinstance(comparison, ast.Compare):
                continue
            leaves = isinstance(test, ast.If) and isinstance(test.body[-1], ast.Return | ast.Break)
            ends = leaves and isinstance(comparison.ops[0], ast.Is | ast.Eq)
            goes_on = isinstance(test, ast.While) and isinstance(comparison.ops[0], ast.IsNot | ast.NotEq)
            item = comparison.left.target if isinstance(comparison.left, ast.NamedExpr) else comparison.left
            mark = ast.unparse(comparison.comparators[0])
            again = any(ast.unparse(put) in (mark, target.id) for put in puts)
            if dotted(item) == target.id and (ends or goes_on) and not again:
                yield queue, mark, get
