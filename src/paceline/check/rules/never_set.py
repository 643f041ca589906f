"""What other threads wait for is not done when the work before it raises.

A thread works and then sets an event, or meets others at a barrier, for which they wait without a timeout. If the work
raises, also where the thread catches that and returns, the event stays unset or the barrier one party short, and they
wait for ever. Set an event in a `finally`; abort the barrier.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declarations import Function
from paceline.check.duties import Duty, Skipped
from paceline.check.effects import Effect, has_timeout
from paceline.check.findings import Finding, Step
from paceline.check.names import enclosing, short_name
from paceline.check.roots import in_loop
from paceline.check.rules.rule import Rule, finding, resource_of
from paceline.check.summaries import Facts

KINDS = ("Event", "Barrier")
MEETS = ("wait", "abort")


def find(facts: Facts) -> Iterator[Finding]:
    """Report threads in which an exception skips what others wait for."""
    waits: dict[str, tuple[Function, Effect]] = {}
    for fn in facts.module.functions:
        for effect in facts.walker.effects(fn):
            found = effect.resource
            if effect.kind == "wait" and not effect.timeout and found is not None and found.kind in KINDS:
                waits.setdefault(found.id, (fn, effect))
    run = {id(root.function): root.function for root in facts.roots if root.kind == "thread"} if waits else {}
    for fn in run.values():
        yield from _events(fn, waits, facts)
        yield from _barriers(fn, facts)
    for fn in facts.module.functions if waits else ():
        cleared = {e for call in fn.calls if (e := _subject(call, ("clear",), "Event", fn, facts)) in waits}
        if cleared and id(fn) not in run:  # says itself that others wait while it works
            yield from _events(fn, {e: waits[e] for e in cleared}, facts)


def _events(fn: Function, waits: dict[str, tuple[Function, Effect]], facts: Facts) -> Iterator[Finding]:
    """The events that a thread sets once, though not if it raises."""
    for event in dict.fromkeys(e for c in fn.calls if (e := _subject(c, ("set",), "Event", fn, facts)) in waits):
        sets = [c for c in fn.calls if _subject(c, ("set",), "Event", fn, facts) == event]
        conditional = any(enclosing(c, ast.If) or in_loop(c, fn) for c in sets)
        if conditional or waits[event][0] is fn or _set_elsewhere(event, fn, facts):
            continue
        duty = Duty(fn, lambda call, sets=sets: any(call is each for each in sets))  # type: ignore[misc]
        for skipped in list(duty.skipped_by_exceptions())[:1]:
            yield _report(fn, sets[0], skipped, event, waits[event])


def _barriers(fn: Function, facts: Facts) -> Iterator[Finding]:
    """The barriers at which a thread does not arrive once it has caught an exception."""
    for barrier in dict.fromkeys(b for c in fn.calls if (b := _subject(c, ("wait",), "Barrier", fn, facts))):
        if any(short_name(c.func) == "wait" and has_timeout(c, "wait") for c in fn.calls):
            continue
        duty = Duty(fn, lambda call, of=barrier: _subject(call, MEETS, "Barrier", fn, facts) == of)  # type: ignore[misc]
        for skipped in [s for s in duty.skipped_by_exceptions() if s.caught][:1]:
            yield _left(fn, skipped, barrier)


def _subject(call: ast.Call, methods: tuple[str, ...], kind: str, fn: Function, facts: Facts) -> str:
    """The event or barrier of which a call is such a method; empty where it is none."""
    found = resource_of(call, methods, fn, facts)
    return found.id if found is not None and found.kind == kind else ""


def _set_elsewhere(event: str, fn: Function, facts: Facts) -> bool:
    """Whether another function sets the event too."""
    others = (other for other in facts.module.functions if other is not fn)
    return any(_subject(c, ("set",), "Event", other, facts) == event for other in others for c in other.calls)


def _report(fn: Function, at: ast.Call, skipped: Skipped, event: str, waiter: tuple[Function, Effect]) -> Finding:
    other, effect = waiter
    line = skipped.node.line
    ends = "returns" if skipped.caught else "ends"
    return finding(
        at,
        fn,
        f"{event} is set only if everything before it succeeds; if line {line} raises, "
        f"{other.qualname} waits for it for ever (line {effect.line})",
        [
            Step("thread B", line, f"{fn.qualname} raises and {ends} without setting {event}"),
            Step("thread A", effect.line, f"{other.qualname} waits for {event}, which is never set"),
        ],
        "set it in a `finally`, and report the exception",
        event,
        0.6,
    )


def _left(fn: Function, skipped: Skipped, barrier: str) -> Finding:
    line = skipped.node.line
    return finding(
        skipped.node.syntax or fn.node,
        fn,
        f"if line {line} raises, {fn.qualname} returns without reaching {barrier}: the others wait there for ever",
        [
            Step("thread B", line, f"{fn.qualname} raises, catches that, and returns"),
            Step("thread A", fn.line, f"waits at {barrier}, where one party is missing"),
        ],
        f"call {barrier.rpartition('.')[2]}.abort() in the handler, or wait with a timeout",
        barrier,
        0.7,
    )


RULE = Rule(
    "PC209",
    "never-set",
    "an event that is not set, or a barrier not reached, when the work before it raises",
    find,
    bad="""
        import threading

        ready = threading.Event()

        def load(source):
            source.read()
            ready.set()

        def run(source):
            threading.Thread(target=load, args=(source,)).start()
            ready.wait()
    """,
    good="""
        import threading

        ready = threading.Event()

        def load(source):
            try:
                source.read()
            finally:
                ready.set()

        def run(source):
            threading.Thread(target=load, args=(source,)).start()
            ready.wait()
    """,
    needs=("Event", "Barrier"),
)
