"""How the next thread is chosen: one file for each published strategy.

A strategy is a pure machine: it sees a `Decision` and returns an `Option`, which is executed. Its chance comes from a
seed. One strategy chooses for one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple, Protocol

from paceline.concurrency.explore.operation import Operation, Option


class Decision(NamedTuple):
    """The moment before a step: who could make it."""

    step: int  # of the run
    current: int  # the thread that made the last step
    own_step: int  # how many steps that thread has made
    options: Sequence[Option]
    pending: Mapping[int, Operation]  # what each thread would do next
    plain: Option  # without a switch: the current thread continues, and time passes only when no thread can continue


class Executed(NamedTuple):
    """A step that was made, as a search sees it afterwards."""

    option: Option
    operation: Operation
    options: tuple[Option, ...]  # those there were
    pending: dict[int, Operation]


class Strategy(Protocol):
    """Chooses the steps of one run."""

    def pick(self, decision: Decision) -> Option | None:
        """Return the next step; None if the rest of this run would repeat an earlier one."""


def split(options: Sequence[Option]) -> tuple[list[Option], list[Option]]:
    """Return the options of threads that can continue, and those for which time must pass, the earliest first."""
    return [each for each in options if not each.expires], [each for each in options if each.expires]


class Switch(NamedTuple):
    """After which step of which thread another one continues, or time passes."""

    thread: int
    own_step: int
    to: int
    expires: bool


class Chance(NamedTuple):
    """The seed of a run's random numbers; how many of them the plain run has drawn, and how many steps it had."""

    seed: int = 0
    draws: int = 0
    steps: int = 0


class Replay:
    """The plain order but for a list of switches, each named by the thread and its own step.

    A switch that does not fit any more, because an earlier one was left out, is passed over. So a list can be made
    shorter by leaving switches out and looking whether the finding stays. Without any switch no thread is interrupted,
    as if every step were short: what goes wrong then is a bug, but no finding of the schedule.
    """

    def __init__(self, switches: Sequence[Switch] = ()) -> None:
        self._to = {(each.thread, each.own_step): Option(each.to, each.expires) for each in switches}

    def pick(self, decision: Decision) -> Option:
        option = self._to.get((decision.current, decision.own_step))
        return option if option in decision.options else decision.plain  # type: ignore[return-value]


# --- Random walk: at each step, with a probability that is drawn once for a run, any thread that can continue ---------
# Few switches find most bugs, so most runs draw a small probability. Also called naive random scheduling: unlike
# `pos`, it favours no order of conflicting operations, and long threads are interrupted more often than short ones.

SWITCH = (0.02, 0.1, 0.3, 0.6)
#: Half of the runs let time pass only when no thread can continue; the others let it pass early now and then.
EARLY = (0.0, 0.0, 0.05, 0.3)


class RandomWalk:
    """Chooses the steps of one run at random."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self._switch, self._early = self._chance.choice(SWITCH), self._chance.choice(EARLY)

    def pick(self, decision: Decision) -> Option:
        on, late = split(decision.options)
        if late and (not on or self._chance.random() < self._early):
            return late[0] if not on else self._chance.choice(late)
        blocked = decision.plain.thread != decision.current
        return self._chance.choice(on) if blocked or self._chance.random() < self._switch else decision.plain
