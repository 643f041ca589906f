"""What an exploration says: a finding with its schedule, a dismissal within bounds, or that nothing was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from paceline.concurrency.explore.finding import Finding


@dataclass(slots=True)
class Report:
    """The result of an exploration."""

    target: str
    finding: Finding | None = None
    token: str = ""
    switches: int = 0
    strategy: str = "plain"
    schedules: int = 0
    steps: int = 0
    seconds: float = 0.0
    dismissed_after: int = 0  # schedules of the search that ended; 0 if it has not
    has_timeouts: bool = False  # so that the search that ended leaves early time-outs out
    reason: str = ""  # why there is no verdict
    outside: dict[str, None] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    unstable: int = 0  # findings that a replay did not give again
    drills: list[dict[str, Any]] = field(default_factory=list)

    def count(self, steps: int, outside: tuple[str, ...], seconds: float) -> None:
        """Take note of a run."""
        self.schedules += 1
        self.steps += steps
        self.outside.update(dict.fromkeys(outside))
        self.seconds = seconds

    def with_finding(self, finding: Finding, token: str, switches: int, strategy: str = "plain") -> Report:
        self.finding, self.token, self.switches, self.strategy = finding, token, switches, strategy
        return self

    def without_verdict(self, reason: str) -> Report:
        self.reason = reason
        return self

    @property
    def verdict(self) -> str:
        """One of found, dismissed within bounds, not found, no verdict."""
        if self.finding is not None or any(each["outcome"] in FAILED for each in self.drills):
            return "found"
        if self.reason:
            return "no verdict"
        return "dismissed within bounds" if self.dismissed_after else "not found"

    @property
    def exit_code(self) -> int:
        return {"found": 1, "no verdict": 2}.get(self.verdict, 0)

    def text(self) -> str:
        """Return the report for people."""
        lines = [self._head()]
        if self.finding is not None:
            lines = [self.finding.text(), *self._schedule()]
        lines += [f"  drill: {each['drill']}: {each['outcome']}{_why(each)}" for each in self.drills]
        lines += [f"  outside the control, so that it was not explored: {each}" for each in self.outside]
        lines += [f"  {count} times: {reason}" for reason, count in self.lost.items()]
        if self.unstable:
            why = "the program depends on more than its schedule"
            lines.append(f"  {self.unstable} findings did not come again in a replay: {why}")
        return "\n".join(lines)

    def _head(self) -> str:
        ran = f"{self.schedules:,} schedules in {self.seconds:.1f} s"
        if self.verdict == "no verdict":
            return f"{self.target}: no verdict: {self.reason}"
        if self.verdict == "dismissed within bounds":
            bounds = "; time-outs came only where no thread could continue, or by chance" if self.has_timeouts else ""
            return (
                f"{self.target}: nothing found: every order of conflicting operations was executed, in "
                f"{self.dismissed_after:,} of {ran}{bounds}"
            )
        return f"{self.target}: nothing found in {ran}"

    def _schedule(self) -> list[str]:
        if not self.switches:
            why = "it happens in the plain order too, without any interruption: the schedule is not the cause"
            ranks = any(f"KeyError: '{name}'" in self.finding.message for name in LAUNCHED) if self.finding else False
            return [f"  ({why})", *(["  a script that torchrun starts: give --ranks 2"] if ranks else [])]
        switches = "1 switch" if self.switches == 1 else f"{self.switches} switches"
        how = f"it needs {switches}; schedule {self.schedules:,} ({self.strategy}), {self.seconds:.1f} s"
        return [f"  ({how})", f"  replay: paceline explore --replay {self.token} {self.target}"]

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "target": self.target,
            "verdict": self.verdict,
            "finding": self.finding.to_dict() if self.finding else None,
            "without_a_switch": self.finding is not None and self.switches == 0,
            "switches": self.switches,
            "replay": self.token or None,
            "strategy": self.strategy,
            "schedules": self.schedules,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "dismissed_after": self.dismissed_after or None,
            "has_timeouts": self.has_timeouts,
            "reason": self.reason or None,
            "outside": list(self.outside),
            "lost": self.lost,
            "drills": self.drills,
        }


#: What launchers put into the environment of a rank.
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
#: Outcomes of a drill after which a run on many machines would have been lost.
FAILED = ("hung", "silently diverged")


def _why(drill: dict[str, Any]) -> str:
    return f" ({drill['message']})" if drill.get("message") else ""
