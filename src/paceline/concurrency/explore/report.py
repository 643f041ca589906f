"""What an exploration says: its findings with their schedules, a dismissal within bounds, or that nothing was found."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from paceline.concurrency.explore.finding import Finding
from paceline.concurrency.explore.oracles import Suspect
from paceline.concurrency.explore.strategies import Switch
from paceline.errors import UsageError

Outcome: TypeAlias = Any  # of a child, which imports this module
Target = frozenset[tuple[str, int]]  # files and lines
PREFIX = "ex1-"  # of a token: a schedule as a word that can be pasted into a bug report
#: What launchers put into the environment of a rank.
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
#: Outcomes of a drill after which a run on many machines would have been lost.
FAILED = ("hung", "silently diverged")


class Found(NamedTuple):
    """A finding, and how it came about."""

    finding: Finding
    token: str
    switches: int
    strategy: str
    schedule: int  # the how many-eth that was executed
    seconds: float
    draws: int  # the seed of its random numbers, where the usual ones do not lead to it

    def text(self, command: str) -> str:
        if not self.switches and not self.draws:
            lines = ["  (it happens in the plain order too, without any interruption: the schedule is not the cause)"]
            if any(f"KeyError: '{name}'" in self.finding.message for name in LAUNCHED):
                lines.append("  a script that torchrun starts: give --ranks 2")
        else:
            numbers = f" and the random numbers of {self.draws}" if self.draws else ""
            needs = _count(self.switches, "switch", "es") + numbers
            how = f"it needs {needs}; schedule {self.schedule:,} ({self.strategy})"
            lines = [f"  ({how}, {self.seconds:.1f} s)", f"  replay: paceline explore --replay {self.token} {command}"]
        return "\n".join([self.finding.text(), *lines])

    def to_dict(self) -> dict[str, Any]:
        how = {"switches": self.switches, "replay": self.token, "strategy": self.strategy, "schedule": self.schedule}
        return {"finding": self.finding.to_dict(), "without_a_switch": not self.switches and not self.draws, **how}


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
        self.seconds = seconds

    def add(self, finding: Finding, token: str, switches: int, strategy: str, draws: int) -> Report:
        self.all.append(Found(finding, token, switches, strategy, self.schedules, self.seconds, draws))
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
            every = "every order of conflicting operations was executed, in"
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


def write_token(
    switches: Sequence[Switch], suspect: Suspect | None = None, passes: int = 0, chance: Sequence[int] = (0,)
) -> str:
    """Return the token of a schedule: its switches away from the plain order, and what else makes the run."""
    rows: list[Any] = [[each.thread, each.own_step, each.to, int(each.expires)] for each in switches]
    others = {"passes": passes, "chance": chance} if passes or chance[0] else {}
    text = json.dumps([*rows, *([others | (suspect._asdict() if suspect else {})] if others or suspect else [])])
    return PREFIX + base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def read_token(token: str) -> tuple[list[Switch], tuple[Suspect, ...], int, tuple[int, ...]]:
    """Return the schedule of a token, the suspicion that it confirms, the passes of a line, and the chance of the run.

    >>> read_token(write_token([Switch(1, 7, 2, False)]))
    ([Switch(thread=1, own_step=7, to=2, expires=False)], (), 0, ())
    """
    try:
        data = base64.urlsafe_b64decode(token.removeprefix(PREFIX) + "===")
        rows = json.loads(zlib.decompress(data))
        if not token.startswith(PREFIX):
            raise ValueError
        switches = [Switch(a, b, to, bool(expires)) for a, b, to, expires in (r for r in rows if isinstance(r, list))]
        others = next((row for row in rows if isinstance(row, dict)), {})
        suspects = (Suspect(others["file"], tuple(others["lines"]), True),) if "file" in others else ()
        return switches, suspects, others.get("passes", 0), tuple(others.get("chance", ()))
    except (ValueError, KeyError, TypeError, zlib.error):
        raise UsageError(
            f"--replay {token}: not a token of a schedule; paste the word of a finding, which begins with {PREFIX!r}"
        ) from None
