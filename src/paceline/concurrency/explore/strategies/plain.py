"""The plain order: no thread is interrupted, as if every step were short.

What goes wrong in it happens without a switch: it is a bug, but no finding of the schedule.
"""

from __future__ import annotations

from paceline.concurrency.explore.operation import Operation, Option
from paceline.concurrency.explore.strategies import Decision


class Plain:
    """Continues the current thread while it can."""

    def pick(self, decision: Decision) -> Option:
        return decision.plain

    def executed(self, option: Option, operation: Operation) -> None:
        pass
