"""What a file says around a finding, as numbers, for the model of `ranker`.

A rule knows the form of a mistake. Whether it matters depends on what stands around it: callers that all hold a lock, a
command that one person runs, an exception that is caught, how many functions change what it is about.
"""

from __future__ import annotations

import math
from functools import cached_property

from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import last_line, lines_of
from paceline.concurrency.check.threads.shared_state import accesses_of_class, accesses_of_globals, is_caught

_QUEUES = {"queue", "Queue", "concurrent", "multiprocessing"}
_BEGINS = ("init", "setup", "start", "open", "connect", "create", "load", "configure")
_COMMANDS = {"argparse", "click", "typer", "optparse", "fire", "docopt", "absl"}


class Signs:
    """The signs around the findings of one file."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def of(self, finding: Finding) -> dict[str, float]:
        """The signs around a finding, each between zero and one; what is absent is zero."""
        fn = self._function(finding)
        at = next((call for call in fn.calls if call.lineno == finding.line), None)
        raises = finding.rule.startswith(("PC3", "PC4"))  # rather than waits for ever
        values = {
            "all callers hold a lock": float(bool(self.facts.guards(fn))),
            "a coroutine": float(fn.asynchronous),
            "a command": float(bool(_COMMANDS & self._imported)),
            "its exception is caught": float(raises and at is not None and is_caught(at, "OSError", "RuntimeError")),
            "length of the function": min(1.0, max(0, last_line(fn.node) - fn.line) / 100),
            "a method": float(fn.cls is not None),
            "a special method": float(fn.name.startswith("__")),
            "a class of threads": float(fn.cls is not None and fn.cls.is_thread),
            "it begins something": float(any(word in fn.name.lower() for word in _BEGINS)),
            "functions that change it": min(1.0, self._changing(finding, fn) / 4),
            **self._of_file,
        }
        return {name: round(value, 3) for name, value in values.items() if value}

    @cached_property
    def _of_file(self) -> dict[str, float]:
        """The signs that are the same for all findings of the file."""
        started = {root.kind for root in self.facts.roots}
        return {
            "the file starts threads": float("thread" in started),
            "the file starts processes": float(not started.isdisjoint(("process", "fork"))),
            "queues or pools": float(bool(_QUEUES & self._imported)),
            "functions of the file": min(1.0, math.log1p(len(self.facts.module.functions)) / 7),
        }

    def _changing(self, finding: Finding, fn: Function) -> int:
        """The number of functions that change the attribute or global that a finding is about."""
        owner, _, name = finding.about.rpartition(".")
        if owner in ("self", "cls") and fn.cls is not None:
            owner = fn.cls.name
        cls = self.facts.module.classes.get(owner)
        if owner and cls is None:
            return 0
        accesses = accesses_of_class(cls, self.facts) if cls is not None else accesses_of_globals(self.facts)
        return len({id(access.fn) for access in accesses.get(name, ()) if access.changes})

    @cached_property
    def _imported(self) -> set[str]:
        """The packages that the file imports from."""
        return {origin.partition(".")[0] for origin in self.facts.module.imports.values()}

    def _function(self, finding: Finding) -> Function:
        """The function that a finding names, at its line."""
        named = [fn for fn in self.facts.module.functions if fn.qualname == finding.function]
        around = [fn for fn in named if finding.line in lines_of(fn.node)]
        return next(iter(around or named), self.facts.module.top)
