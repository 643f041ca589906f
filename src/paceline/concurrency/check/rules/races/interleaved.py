"""Parts of one message that several threads send over the same connection.

`sock.sendall(header)` and then `sock.sendall(body)`: the message of another thread comes in between, and the other side
takes its beginning for the body. Hold one lock over all parts, or send them as one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted
from paceline.concurrency.check.syntax.tree import on_different_branches
from paceline.concurrency.check.threads.sharing import THREAD_WORDS, may_overlap

SENDS = ("sendall", "write", "sendmsg")


def find(facts: Facts) -> Iterator[Finding]:
    """Report two sends over a connection of the object in a function that several threads run at once."""
    for fn in facts.module.functions if facts.has_threads else ():
        if fn.cls is None or fn.asynchronous or facts.runs_on_own(fn):
            continue
        sends: dict[str, list[ast.Call]] = {}
        for call in sorted(fn.calls, key=lambda c: c.lineno):
            if isinstance(call.func, ast.Attribute) and call.func.attr in SENDS and not facts.held_at(call, fn):
                owner = dotted(call.func.value)
                if owner.startswith(f"{fn.self_name}.") and "(" not in owner:
                    sends.setdefault(owner, []).append(call)
        for owner, calls in sends.items():
            later = next((c for c in calls[1:] if not on_different_branches(calls[0], c)), None)
            if later is not None and may_overlap(fn, fn, facts):
                yield _report(fn, calls[0], later, owner)


def _report(fn: Function, first: ast.Call, later: ast.Call, owner: str) -> Finding:
    return finding(
        later,
        fn,
        f"{owner} gets a message in parts, at line {first.lineno} and here, without a lock; several threads run "
        f"{fn.qualname}, and the part of another one may come in between",
        [
            Step("thread A", first.lineno, f"{text_of(first)} sends the first part"),
            Step("thread B", first.lineno, "sends the first part of its own message"),
            Step("thread A", later.lineno, "sends the second part: the messages are mixed"),
        ],
        remedy="hold one lock over all parts, or send them in one call",
        about=owner,
        confidence=0.65,
    )


RULE = Rule(
    "PC421",
    "interleaved",
    "parts of one message that several threads send over the same connection",
    find,
    bad="""
        import threading

        class Link:
            def __init__(self, sock):
                self.sock = sock
                threading.Thread(target=self.keep_alive, daemon=True).start()

            def send(self, body):
                self.sock.sendall(len(body).to_bytes(4, "big"))
                self.sock.sendall(body)

            def keep_alive(self):
                while True:
                    self.send(b"")

        class Chat:
            def __init__(self, link: Link):
                self.link = link

            def say(self, text):
                self.link.send(text.encode())
    """,
    good="""
        import threading

        class Link:
            def __init__(self, sock):
                self.sock = sock
                self.sending = threading.Lock()
                threading.Thread(target=self.keep_alive, daemon=True).start()

            def send(self, body):
                with self.sending:
                    self.sock.sendall(len(body).to_bytes(4, "big"))
                    self.sock.sendall(body)

            def keep_alive(self):
                while True:
                    self.send(b"")

        class Chat:
            def __init__(self, link: Link):
                self.link = link

            def say(self, text):
                self.link.send(text.encode())
    """,
    needs=THREAD_WORDS,
)
