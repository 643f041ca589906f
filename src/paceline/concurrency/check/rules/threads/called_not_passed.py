"""A function that is called where it was meant to be passed.

`Thread(target=self.listen())` runs `listen` at once, in the thread that creates the other one, and passes on what it
returns: nothing. If it loops, the program never gets to `start()`. Without the parentheses the function is passed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import is_constant, keyword, short_name
from paceline.concurrency.check.threads.roots import STARTS, STARTS_IN_MODULE

#: Further calls that take a function -> its name and position.
TAKES = {"add_done_callback": ("fn", 0), "call_soon_threadsafe": ("callback", 0), "call_later": ("callback", 1)}


def find(facts: Facts) -> Iterator[Finding]:
    """Report calls, of functions that return nothing, in the place of the function that a thread or callback is."""
    for fn in facts.module.functions:
        for call in fn.calls:
            target = _function_of(call, facts)
            if isinstance(target, ast.Call) and _returns_nothing(facts.module.callee(target, fn)):
                yield finding(
                    target,
                    fn,
                    f"{text_of(target)} is called here, before {short_name(call.func)} gets what it returns: nothing",
                    [
                        Step("thread A", target.lineno, f"{fn.qualname} runs {text_of(target)} itself"),
                        Step("thread A", call.lineno, f"gives None to {short_name(call.func)}, which runs nothing"),
                    ],
                    remedy=f"pass the function: {text_of(target).removesuffix('()')}, and its arguments apart",
                    about=text_of(target),
                    confidence=0.85,
                )


def _function_of(call: ast.Call, facts: Facts) -> ast.expr | None:
    """What a call is given as the function to run."""
    name = short_name(call.func)
    if name in TAKES:
        return keyword(call, *TAKES[name])
    kind, argument, position = STARTS.get(name, ("task", "", 0))
    if kind == "task" or name == "map":
        return None
    if name in STARTS_IN_MODULE and STARTS_IN_MODULE[name] not in facts.module.canonical(call.func).split("."):
        return None
    return keyword(call, argument, None if kind == "fork" else position)


def _returns_nothing(fn: Function | None) -> bool:
    """Whether a function of this file returns None only, and a plain call runs it."""
    if fn is None or fn.asynchronous or fn.generator or fn.name == "__init__" or isinstance(fn.node, ast.Lambda):
        return False
    plain = not getattr(fn.node, "decorator_list", ())
    raises = len(fn.body) == 1 and isinstance(fn.body[0], ast.Raise)
    return plain and not raises and all(r.value is None or is_constant(r.value, None) for r in fn.returns)


RULE = Rule(
    "PC221",
    "called-not-passed",
    "a function that is called where it was meant to be passed",
    find,
    bad="""
        import threading

        class Service:
            def listen(self):
                while True:
                    self.accept()

            def start(self):
                threading.Thread(target=self.listen()).start()
    """,
    good="""
        import threading

        class Service:
            def listen(self):
                while True:
                    self.accept()

            def start(self):
                threading.Thread(target=self.listen).start()
    """,
    needs=("hread", "Timer", "submit", "Process", "call", "signal", "register", "apply_async", "executor"),
)
