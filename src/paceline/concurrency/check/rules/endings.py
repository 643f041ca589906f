"""What ends the loop of a thread, and whether a function does that before it waits for the thread."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from paceline.concurrency.check.libraries.catalogue import PUT_ITEM, PUTS, THREAD_EVENTS, THREAD_QUEUES
from paceline.concurrency.check.rules.rule import queue_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import awaited, dotted, is_constant, is_within, receiver_of, short_name
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


@dataclass(eq=False)
class Ending:
    """A thread, process or task for whose end a function waits."""

    construction: ast.Call  # its construction, or the call that submits it
    maker: Function
    runs: Function
    fn: Function  # that waits
    line: int  # where it waits
    facts: Facts

    @cached_property
    def _names(self) -> dict[str, str]:
        """How the names of what is run are called in the function that waits for it."""
        runs, submitted = self.runs, short_name(self.construction.func) == "submit"
        parameters = [p for p in runs.parameters if p != runs.self_name or runs.cls is None]
        passed = self.construction.args[1:] if submitted else start_arguments(self.construction, self.maker)
        names = {p: dotted(a) for p, a in zip(parameters, passed, strict=False)}
        if runs.cls is not None and self.fn.cls is not None:
            names[runs.self_name] = self.fn.self_name
        return names

    def _here(self, node: ast.AST) -> str:
        """A name of what is run, as the function that waits calls it."""
        head, dot, rest = dotted(node).partition(".")
        return self._names.get(head, head) + dot + rest

    @cached_property
    def ends(self) -> set[str]:
        """What the loops ask for before they end, but for what they change themselves: that needs no signal."""
        runs, conditions = self.runs, list[ast.expr]()
        methods = [(c, c.func) for c in runs.calls if isinstance(c.func, ast.Attribute)]
        for loop in (each for each in runs.loops if isinstance(each, ast.While)):
            conditions += [n for n in ast.walk(loop.test) if isinstance(n, ast.Attribute | ast.Name)]
            conditions += [m.value for c, m in methods if m.attr in ASKS and is_within(c, loop)]
        conditions += [m.value for c, m in methods if m.attr == "wait" and not c.args and not c.keywords]
        changed = [target for target, _ in runs.assigns] + [change.target for change in runs.augmented]
        return {self._here(n) for n in conditions} - {self._here(n) for n in changed} - {"", "self", self.fn.self_name}

    def signals(self, node: ast.AST) -> bool:
        """Whether this ends the loop."""
        if not isinstance(node, ast.Call):
            return dotted(node) in self.ends
        method, receiver = short_name(node.func), receiver_of(node)
        ends = method in TELLS or (method in PUTS and is_end_mark(node))
        return ends and receiver is not None and dotted(receiver) in self.ends

    @cached_property
    def done(self) -> list[ast.AST]:
        """What the function, and what it calls, does before it waits."""
        nodes: list[ast.AST] = [t for t, v in self.fn.assigns if t.lineno <= self.line and isinstance(v, ast.Constant)]
        for call in (c for c in self.fn.calls if c.lineno <= self.line):
            callee = self.facts.module.callee(call, self.fn)
            inner = (t for t, v in callee.assigns if isinstance(v, ast.Constant)) if callee is not None else ()
            nodes += [call, *(callee.calls if callee is not None else ()), *inner]
        return nodes

    @property
    def is_signalled(self) -> bool:
        """Whether the function ends the loop before it waits."""
        return any(map(self.signals, self.done))

    def late_signal(self) -> ast.AST | None:
        """What the function does after it has waited, and would have ended the loop."""
        later = [c for c in self.fn.calls if c.lineno > self.line and self.signals(c)]
        flags = [t for t, v in self.fn.assigns if t.lineno > self.line and isinstance(v, ast.Constant)]
        return min([*later, *filter(self.signals, flags)], key=lambda n: n.lineno, default=None)

    def asleep(self) -> tuple[ast.Call, str, ast.expr] | None:
        """A wait without a timeout in a loop that only a flag ends, for what, and where the flag is set."""
        for loop in self.runs.loops:
            if (paused := self._in_event(loop)) is not None:
                return paused
            flag = _flag(loop.test) if isinstance(loop, ast.While) else None
            signal = self._signal({self._here(flag)}) if flag is not None else None
            if signal is None or not isinstance(loop, ast.While) or _leaves(loop):
                continue
            wait = self._in_queue(loop) or self._in_socket(loop)
            if wait is not None:
                return *wait, signal
        return None

    def _signal(self, flags: set[str]) -> ast.expr | None:
        """Where the function sets one of these flags or events before it waits."""
        places = [t for t, _ in self.fn.assigns if dotted(t) in flags]
        places += [c.func for c in self.fn.calls if dotted(c.func) in {f"{flag}.set" for flag in flags}]
        return next((place for place in places if place.lineno < self.line), None)

    def _in_event(self, loop: Loop) -> tuple[ast.Call, str, ast.expr] | None:
        """A wait for an event that others clear, and that nothing sets before the join, though the flag is."""
        if isinstance(loop, ast.comprehension):
            return None
        tests = [loop.test] if isinstance(loop, ast.While) else []
        inner = (t for t in self.runs.tests if isinstance(t, ast.If) and is_within(t, loop))
        tests += [t.test for t in inner if _leaves(t.body[-1])]
        flags = {self._here(flag) for test in tests if (flag := _flag(test)) is not None} - {""}
        signal = self._signal(flags)
        for effect in self.facts.walker.effects(self.runs) if signal is not None else ():
            event, call = effect.resource, effect.node
            waits = effect.kind == "wait" and not effect.timeout and isinstance(call, ast.Call)
            if not waits or not is_within(call, loop) or event is None or event.kind not in THREAD_EVENTS:
                continue
            sets = (n.func for n in self.done if isinstance(n, ast.Call) and short_name(n.func) == "set")
            others = [set_ for set_ in sets if dotted(set_) != f"{dotted(signal)}.set"]  # type: ignore[arg-type]
            if event.id not in flags and self.facts.uses(("clear",), of=event.id) and not others:
                return call, f"{event.id} to be set", signal  # type: ignore[return-value]
        return None

    def _in_queue(self, loop: ast.While) -> tuple[ast.Call, str] | None:
        """A `get` to which no end mark is put before the join, and its queue."""
        if any(short_name(c.func) in PUTS and c.lineno < self.line for c in self.fn.calls):
            return None
        for effect in self.facts.walker.effects(self.runs):
            queue, get = effect.resource, effect.node
            if effect.kind != "wait" or effect.timeout or effect.waits_for != PUT_ITEM or not is_within(get, loop):
                continue
            if queue is not None and queue.kind in THREAD_QUEUES and not queue.one_of_several:
                return get, f"an item of {queue.id}"  # type: ignore[return-value]
        return None

    def _in_socket(self, loop: ast.While) -> tuple[ast.Call, str] | None:
        """An `accept()` on a socket without a timeout that is not closed before the join, or a read of a pipe."""
        done = {short_name(n.func) for n in self.done if isinstance(n, ast.Call)}
        if any(short_name(c.func) in LIMITS for c, _ in self.facts.module.calls) or not done.isdisjoint(WAKES):
            return None
        for call in (c for c in self.runs.calls if is_within(c, loop)):
            receiver = receiver_of(call)
            if receiver is not None and short_name(call.func) == "accept" and not call.args:
                return call, f"a connection to {dotted(receiver)}"
            if self.facts.module.canonical(call.func) == "os.read" and call.args and "write" not in done:
                return call, f"data from {dotted(call.args[0])}"
        return None


def _leaves(part: ast.stmt) -> bool:
    """Whether something in a loop or statement leaves it."""
    return any(isinstance(n, ast.Break | ast.Return) for n in ast.walk(part))


def _flag(test: ast.expr) -> ast.expr | None:
    """The flag or event of `while self.running`, `while not self.stopped` and `while not self.stop.is_set()`."""
    operand = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
    if isinstance(operand, ast.Call) and short_name(operand.func) in ("is_set", "isSet"):
        return receiver_of(operand)
    return operand if isinstance(operand, ast.Attribute) else None


def is_end_mark(call: ast.Call) -> bool:
    """Whether None, or something named so, is put into a queue to say that nothing more comes."""
    argument = call.args[0] if call.args else None
    return is_constant(argument, None) or (argument is not None and _MARK.search(short_name(argument)) is not None)


def ends_by(fn: Function, facts: Facts) -> Iterator[tuple[str, str, ast.Call]]:
    """The queues whose end mark ends a worker: `item = queue.get()`, then `if item is None: return`, or an iterator."""
    for loop in fn.loops:
        call = loop.iter if isinstance(loop, ast.For) else None
        if isinstance(call, ast.Call) and short_name(call.func) == "iter" and len(call.args) == 2:
            queue = queue_of(ast.Call(call.args[0], [], []), ("get",), fn, facts)
            if queue:
                yield queue, ast.unparse(call.args[1]), call
    for target, value in fn.assigns:
        get = awaited(value)
        if not isinstance(get, ast.Call) or not isinstance(target, ast.Name) or not in_loop(get, fn):
            continue
        queue = queue_of(get, ("get",), fn, facts)
        puts = [ast.unparse(c.args[0]) for c in fn.calls if c.args and queue_of(c, PUTS, fn, facts) == queue]
        for test in fn.tests if queue else ():
            comparison = test.test
            if not isinstance(comparison, ast.Compare):
                continue
            leaves = isinstance(test, ast.If) and isinstance(test.body[-1], ast.Return | ast.Break)
            ends = leaves and isinstance(comparison.ops[0], ast.Is | ast.Eq)
            goes_on = isinstance(test, ast.While) and isinstance(comparison.ops[0], ast.IsNot | ast.NotEq)
            item = comparison.left.target if isinstance(comparison.left, ast.NamedExpr) else comparison.left
            mark = ast.unparse(comparison.comparators[0])
            if dotted(item) == target.id and (ends or goes_on) and not {mark, target.id} & set(puts):
                yield queue, mark, get
