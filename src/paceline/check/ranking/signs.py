"""What a file says around a finding, as numbers, for the model of `ranker`.

A rule knows the form of a mistake. Whether it matters depends on what stands around it: callers that all hold a lock, a
command that one person runs, an exception that is caught.
"""

from __future__ import annotations

import ast
from functools import cached_property

from paceline.check.reporting.findings import Finding
from paceline.check.summaries import Facts
from paceline.check.syntax.declarations import Function
from paceline.check.threads.shared_state import is_caught

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
            "length of the function": min(1.0, (_end(fn.node) - fn.line) / 100),
        }
        return {name: round(value, 3) for name, value in values.items() if value}

    @cached_property
    def _imported(self) -> set[str]:
        """The packages that the file imports from."""
        return {origin.partition(".")[0] for origin in self.facts.module.imports.values()}

    def _function(self, finding: Finding) -> Function:
        """The function that a finding names, at its line."""
        named = [fn for fn in self.facts.module.functions if fn.qualname == finding.function]
        around = [fn for fn in named if fn.line <= finding.line <= _end(fn.node)]
        return next(iter(around or named), self.facts.module.top)


def _end(node: ast.AST) -> int:
    return getattr(node, "end_lineno", None) or 1
