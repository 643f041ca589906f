"""What an exploration says: its findings with their schedules, a dismissal within bounds, or that nothing was found."""

from __future__ import annotations

import base64
import json
import math
import zlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from paceline.concurrency.explore.finding import Finding
from paceline.concurrency.explore.oracles import Suspect
from paceline.concurrency.explore.strategies import Chance, Switch
from paceline.errors import UsageError

Outcome: TypeAlias = Any  # of a child, which imports this module
Target = frozenset[tuple[str, int]]  # files and lines
PREFIX = "ex1-"  # of a token: a schedule as a word that can be pasted into a bug report
#: What launchers put into the environment of a rank.
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
HICCUP = 1.0  # seconds that a busy machine may keep a thread waiting
#: Outcomes of a drill after which a run on many machines would have been lost.
FAILED = ("hung", "silently diverged")


class Schedule(NamedTuple):
    """What makes a run: its switches away from the plain order, its chance, and how it was looked at."""

    switches: tuple[Switch, ...]
    chance: Chance
    passes: int  # of a thread over a line that are steps; 0 where all are
    suspect: Suspect | None  # that it confirms

    @property
    def is_plain(self) -> bool:
        return not self.switches and not self.chance.seed

    @property
    def token(self) -> str:
        text = json.dumps(self, separators=(",", ":"))
        return PREFIX + base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def read_token(token: str) -> Schedule:
    """Return the schedule of a token.

    >>> read_token(Schedule((Switch(1, 7, 2, False),), Chance(), 0, None).token).switches
    (Switch(thread=1, own_step=7, to=2, expires=False),)
    """
    try:
        prefix, word = token[: len(PREFIX)], token[len(PREFIX) :]
        text = zlib.decompress(base64.urlsafe_b64decode(word + "===")) if prefix == PREFIX else b""
        switches, chance, passes, suspect = json.loads(text)
        of_suspect = Suspect(suspect[0], tuple(suspect[1]), suspect[2]) if suspect else None
        return Schedule(tuple(Switch(*each) for each in switches), Chance(*chance), passes, of_suspect)
    except (ValueError, TypeError, zlib.error):
        raise UsageError(
            f"--replay {token}: not a token of a schedule; paste the word of a finding, which begins with {PREFIX!r}"
        ) from None


class Found(NamedTuple):
    """A finding, and how it came about."""

    finding: Finding
    schedule: Schedule
    strategy: str
    number: int  # the how many-eth schedule that was executed
    seconds: float

    def text(self, command: str) -> str:
        if self.schedule.is_plain:
            lines = ["  (it happens in the plain order too, without any interruption: the schedule is not the cause)"]
            if any(f"KeyError: '{name}'" in self.finding.message for name in LAUNCHED):
                lines.append("  a script that torchrun starts: give --ranks 2")
        else:
            seed = self.schedule.chance.seed
            needs = _count(len(self.schedule.switches), "switch", "es")
            needs += f" and the random numbers of {seed}" if seed else ""
            how = f"it needs {needs}; schedule {self.number:,} ({self.strategy}), {self.seconds:.1f} s"
            lines = [f"  ({how})", f"  replay: paceline explore --replay {self.schedule.token} {command}"]
        return "\n".join([self.finding.text(), *lines])

    def to_dict(self) -> dict[str, Any]:
        how = {"switches": len(self.schedule.switches), "replay": self.schedule.token, "strategy": self.strategy}
        how |= {"schedule": self.number, "without_a_switch": self.schedule.is_plain}
        return {"finding": self.finding.to_dict(), **how}


@dataclass(slots=True)
class Report:
    """The result of an exploration."""

    target: str
    command: str  # the target with what it needs of options and arguments
    all: list[Found] = field(default_factory=list)  # distinct, in the order in which they were found
    schedules: int = 0
    steps: int = 0
    seconds: float = 0.0
    dismissed_after: int = 0  # schedules of the search that ended; 0 if it has not
    is_partial: bool = False  # the search that ended leaves early time-outs, random numbers or collections out
    reason: str = ""  # why there is no verdict
    outside: dict[str, None] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    passes: int = 0  # of a line by a thread that were explored, of long loops
    races: int = 0  # data races that did no harm
    differs: bool = False  # what the program prints
    is_alone: bool = True  # one thread ran, and no task waited
    excluded: float = math.inf  # seconds by which a deadline was too far away to pass early
    unstable: int = 0  # findings that a replay did not give again
    drills: list[dict[str, Any]] = field(default_factory=list)
    targets: set[Target] = field(default_factory=set)  # lines at which threads conflict
    lines: set[tuple[str, int]] = field(default_factory=set)  # that were executed, where there are suspicions

    def count(self, outcome: Outcome, seconds: float) -> None:
        self.schedules += 1
        self.steps += outcome.steps
        self.outside.update(dict.fromkeys(outcome.outside))
        self.targets |= outcome.targets
        self.lines |= outcome.lines
        self.races = max(self.races, len(outcome.races))
        self.is_alone &= outcome.is_alone
        self.excluded = min(self.excluded, outcome.excluded)
        self.seconds = seconds

    def add(self, finding: Finding, schedule: Schedule, strategy: str) -> Report:
        self.all.append(Found(finding, schedule, strategy, self.schedules, self.seconds))
        return self

    def without_verdict(self, reason: str) -> Report:
        self.reason = reason
        return self

    @property
    def verdict(self) -> str:
        """One of found, dismissed within bounds, not found, no verdict."""
        if self.all or any(each["outcome"] in FAILED for each in self.drills):
            return "found"
        if self.reason:
            return "no verdict"
        return "dismissed within bounds" if self.dismissed_after else "not found"

    @property
    def exit_code(self) -> int:
        return {"found": 1, "no verdict": 2}.get(self.verdict, 0)

    def text(self) -> str:
        """Return the report for people: a block for each finding, and a summary."""
        lines = [f"{each.text(self.command)}\n" for each in self.all] + [self._summary()]
        lines += [f"  drill: {each['drill']}: {each['outcome']}{_why(each)}" for each in self.drills]
        lines += [f"  outside the control, so that it was not explored: {each}" for each in self.outside]
        lines += [f"  {count} times: {reason}" for reason, count in self.lost.items()]
        if self.passes:
            lines.append(f"  of long loops, the first {self.passes} passes of each thread were explored, and few more")
        if self.is_alone and not self.all and not self.reason:
            lines.append("  no two threads, tasks or processes ran at a time: there was no order to choose")
        if self.excluded < HICCUP and not self.all:
            late = math.ceil(100 * self.excluded) / 100
            lines.append(f"  no thread was kept waiting for so long that a time-out passed early: try --late {late:g}")
        if self.races and not self.all:
            lines.append(f"  {_count(self.races, 'data race')} did no harm: to see them, add --races")
        if self.differs and not self.all:
            lines.append("  it printed other results in other schedules: to see which, add --same")
        if self.unstable:
            why = "the program depends on more than its schedule"
            lines.append(f"  {_count(self.unstable, 'finding')} did not come again in a replay: {why}")
        return "\n".join(lines)

    def _summary(self) -> str:
        ran = f"{_count(self.schedules, 'schedule')} in {self.seconds:.1f} s"
        found = _count(len(self.all), "finding") if self.all else "nothing found"
        if self.reason:
            return f"{self.target}: no verdict: {self.reason}"
        if self.dismissed_after:
            bounds = "; early time-outs, random numbers and collections came by chance" if self.is_partial else ""
            every = "every order of conflicting operations was executed, after"
            return f"{self.target}: {found}: {every} {self.dismissed_after:,} of {ran}{bounds}"
        return f"{self.target}: {found} in {ran}"

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON; the first finding also has the names that a single one had."""
        rows = [each.to_dict() for each in self.all]
        none = {"finding": None, "without_a_switch": False, "switches": 0, "replay": None, "strategy": "plain"}
        names = "target command verdict schedules steps is_partial lost drills races differs passes"
        others = {"seconds": round(self.seconds, 3), "outside": list(self.outside), "reason": self.reason or None}
        others |= {"dismissed_after": self.dismissed_after or None, "findings": rows}
        return {**{name: getattr(self, name) for name in names.split()}, **(rows[0] if rows else none), **others}


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{plural if number != 1 else ''}"


def _why(drill: dict[str, Any]) -> str:
    return f" ({drill['message']})" if drill.get("message") else ""
