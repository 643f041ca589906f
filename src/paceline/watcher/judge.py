"""Decides from glances and looks whether a program hangs. Pure: a recorded trace is judged as the live program was."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.watcher.classifier import probabilities
from paceline.watcher.footprint import footprint
from paceline.watcher.graph import Knot, find_knot
from paceline.watcher.history import History
from paceline.watcher.ranks import find_divergence
from paceline.watcher.report import Report, Span, report_divergence, report_knot
from paceline.watcher.samples import Look, Process

#: The seconds between a first look and the second one that has to confirm it.
CONFIRM = 3.0
#: What is found is only said from this probability on.
SAID = 0.5
#: A program that is still and not hung, such as an idle server, is looked at again after this many seconds: looks cost
#: much more than glances. It doubles up to the last one, and begins anew when other processes become still.
FIRST_PAUSE, LAST_PAUSE = 4.0, 32.0


@dataclass
class Schedule:
    """When to take the next look."""

    _suspects: frozenset[int] = frozenset()
    _pause: float = 0.0
    _next: float = 0.0

    def due(self, history: History) -> bool:
        """Return whether a look is due after the newest glance."""
        now, suspects = history.last.at, history.suspects()
        if suspects - self._suspects:
            self._pause, self._next = FIRST_PAUSE, now
        self._suspects = suspects
        if not suspects or now < self._next:
            return False
        self._next, self._pause = now + self._pause, min(2 * self._pause, LAST_PAUSE)
        return True

    def confirm(self, now: float) -> None:
        """Take the next look soon, because the last one found a hang."""
        self._next = now + CONFIRM


def suspected(history: History, look: Look) -> frozenset[int]:
    """Return the processes whose stacks are worth asking for: those that nothing can wake, and ranks that are still."""
    knot = find_knot(look, history.still, stopped=True)
    ranks = {process.pid for process in look.processes if process.rank is not None}
    still = {pid for pid in ranks if history.still(pid, pid)}
    return frozenset(still | ({process.pid for process in knot.processes} if knot else set()))


def judge(history: History, look: Look, before: Look | None) -> Report | None:
    """Return what hangs; None if nothing does, or if the look before this one does not confirm it.

    Args:
        history: Glances up to the look.
        look: The newest look, with stacks where they can be had.
        before: The look before it, at least `CONFIRM` seconds ago.
    """
    if before is None:
        return None
    scores = probabilities(footprint(history, look))
    divergence = find_divergence(look, history.still)
    knot = find_knot(look, history.still) or find_knot(look, history.still, stopped=True)
    if divergence is not None:
        seconds = _seconds(history, divergence.cause + divergence.victims)
        found = report_divergence(divergence, scores["deadlocked"], Span(look.time - seconds, seconds))
    elif knot is not None and _unchanged(knot, before):
        stopped = any(process.main.kind == "stopped" for process in knot.processes)
        seconds = _seconds(history, knot.processes)
        found = report_knot(knot, scores["stopped" if stopped else "deadlocked"], Span(look.time - seconds, seconds))
    else:
        return None
    return found if found.probability >= SAID else None


def _unchanged(knot: Knot, before: Look) -> bool:
    """Whether every thread of the knot waited for the same thing in the look before."""
    return all(
        (old := before.process(process.pid)) is not None and set(process.threads) <= set(old.threads)
        for process in knot.processes
    )


def _seconds(history: History, processes: tuple[Process, ...]) -> float:
    """Return for how long all of these processes have been still."""
    since = [history.still_since(process.pid, process.pid) for process in processes]
    return history.last.at - max((each for each in since if each is not None), default=history.last.at)
