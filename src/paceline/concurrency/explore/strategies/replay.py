"""Replay: the plain order but for a list of switches, each named by the thread and its own step.

A switch that does not fit any more, because an earlier one was left out, is passed over. So a list can be made shorter
by leaving switches out and looking whether the finding stays.

Without any switch it is the plain order: no thread is interrupted, as if every step were short. What goes wrong in that
is a bug, but no finding of the schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.concurrency.explore.operation import Option
from paceline.concurrency.explore.strategies import Decision, Strategy


class Switch(NamedTuple):
    """After which step of which thread another one continues, or time passes."""

    thread: int
    own_step: int
    to: int
    expires: bool


class Replay(Strategy):
    """Follows switches."""

    def __init__(self, switches: Sequence[Switch] = ()) -> None:
        self._to = {(each.thread, each.own_step): Option(each.to, each.expires) for each in switches}

    def pick(self, decision: Decision) -> Option:
        option = self._to.get((decision.current, decision.own_step))
        return option if option in decision.options else decision.plain  # type: ignore[return-value]
