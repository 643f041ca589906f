"""The search: one run after the other, until something goes wrong, nothing is left, or the limits are reached."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module

from paceline.concurrency.explore import trace
from paceline.concurrency.explore.child import Outcome, run_once
from paceline.concurrency.explore.finding import Finding
from paceline.concurrency.explore.report import Report
from paceline.concurrency.explore.rewriting import importing
from paceline.concurrency.explore.settings import Settings, Target
from paceline.concurrency.explore.shrink import shrink
from paceline.concurrency.explore.strategies import Search, Strategy
from paceline.concurrency.explore.strategies.dpor import Dpor
from paceline.concurrency.explore.strategies.pct import Pct
from paceline.concurrency.explore.strategies.plain import Plain
from paceline.concurrency.explore.strategies.pos import Pos
from paceline.concurrency.explore.strategies.random_walk import RandomWalks
from paceline.concurrency.explore.strategies.replay import Replay, Switch
from paceline.concurrency.explore.token import write_token

SHRINK_SECONDS = 10.0
#: Schedules of the other strategies that a program with time-outs still gets when `dpor` has ended: its proof leaves
#: early time-outs out.
AFTER_PROOF = 300
#: Modules that are imported once for all runs: to import them starts no thread and reads nothing of the program.
COMMON = {*sys.stdlib_module_names, "numpy", "torch"} - {"antigravity", "this", "idlelib"}


class Explorer:
    """Runs one target again and again."""

    def __init__(self, target: Target, settings: Settings) -> None:
        self._target, self._settings = target, settings
        self._shared: frozenset[str] | None = None  # not known before the first run
        self._start = time.monotonic()
        self._report = Report(str(target))
        self._plain = Outcome()

    def explore(self) -> Report:
        """Search for a schedule in which something goes wrong."""
        report = self.explore_plain()
        if report.finding is None and not report.reason:
            self._search()
        return report

    def explore_plain(self) -> Report:
        """Run the plain order, in which what goes wrong is no finding of the schedule."""
        self._plain = self._run(Plain())
        self._prepare()
        report = self._report
        if self._plain.lost:
            return report.without_verdict(self._plain.lost)
        finding = self._finding(self._plain)
        if finding is not None:
            if finding.kind == "too long":
                return report.without_verdict(f"{finding.message}: give it a smaller input, or more with --steps")
            if finding.kind == "exception" and finding.where is None:  # no line of the program was executed
                return report.without_verdict(finding.message)
            return report.with_finding(finding, write_token(()), switches=0)
        return report

    def replay(self, switches: Sequence[Switch]) -> Report:
        """Run one schedule."""
        if self._settings.same:
            self._plain = self._run(Plain())
        outcome = self._run(Replay(switches))
        if outcome.lost:
            return self._report.without_verdict(outcome.lost)
        finding = self._finding(outcome)
        if finding is not None:
            return self._report.with_finding(finding, write_token(switches), len(switches))
        return self._report.without_verdict("the schedule leads to no finding: the program has changed, or is repaired")

    def drill(self, faults: Sequence[str]) -> Report:
        """Run the program without a fault, and then once with each."""
        report = self.explore_plain()
        if report.finding is None and not report.reason:
            for fault in faults:
                outcome = run_once(self._target, replace(self._settings, drill=fault), Plain(), self._shared)
                report.drills.append(
                    outcome.drill or {"drill": fault, "outcome": "no verdict", "message": outcome.lost}
                )
                report.count(outcome.steps, outcome.outside, time.monotonic() - self._start)
        return report

    def _search(self) -> None:
        settings, report = self._settings, self._report
        searches = _searches(settings)
        dpor = next((each for each in searches if isinstance(each, Dpor)), None)
        limit = settings.schedules
        for search in itertools.cycle(searches):
            if self._time_is_up() or report.schedules >= limit:
                return
            if search is dpor and dpor is not None and dpor.ended:
                continue
            strategy = search.next()
            if strategy is None and dpor is not None:
                report.dismissed_after, report.has_timeouts = dpor.runs, dpor.has_timeouts
                if not dpor.has_timeouts or len(searches) == 1:
                    return
                limit = min(limit, report.schedules + AFTER_PROOF)
                continue
            assert strategy is not None
            before = self._shared
            outcome = self._run(strategy, traced=search.name in ("dpor", "pct"))
            if self._judge(outcome, search):
                return
            if self._shared != before and dpor is not None:
                dpor.begin_again()  # its runs did not stop at the data that threads are now known to share
            elif not outcome.lost:
                search.learn(*trace.decode(outcome.trace))

    def _judge(self, outcome: Outcome, search: Search) -> bool:
        """Whether a run ends the search: it has gone wrong, and does so again."""
        if outcome.lost:
            self._report.lost[outcome.lost] = self._report.lost.get(outcome.lost, 0) + 1
            return False
        finding = self._finding(outcome)
        if finding is None:
            return False
        switches = list(outcome.switches)
        if not self._fails(switches, finding):
            self._report.unstable += 1
            return False
        short = shrink(switches, lambda rest: self._fails(rest, finding), min(SHRINK_SECONDS, self._settings.seconds))
        last = self._finding(self._run(Replay(short))) or finding
        if last.kind == "too long":
            last = replace(last, kind="never ends")
        self._report.with_finding(last, write_token(short), len(short), search.name)
        return True

    def _fails(self, switches: Sequence[Switch], finding: Finding) -> bool:
        again = self._finding(self._run(Replay(switches), counted=False))
        return again is not None and again.identity == finding.identity

    def _finding(self, outcome: Outcome) -> Finding | None:
        """Return what is wrong with an outcome, with the oracles that were chosen."""
        if outcome.finding is not None:
            return outcome.finding
        if self._settings.races and outcome.race is not None:
            return outcome.race
        if self._settings.same and outcome.output != self._plain.output:
            return _difference(self._plain.output, outcome.output)
        return None

    def _run(self, strategy: Strategy, traced: bool = False, counted: bool = True) -> Outcome:
        outcome = run_once(self._target, self._settings, strategy, self._shared, traced)
        if counted:
            self._report.count(outcome.steps, outcome.outside, time.monotonic() - self._start)
        if self._shared is not None:
            self._shared |= outcome.shared
        return outcome

    def _prepare(self) -> None:
        """Do once what every run would do again: rewrite files, import modules of the standard library."""
        self._shared = self._plain.shared
        for file in self._plain.files:
            importing.code_of(file)
        for name in self._plain.modules:
            if name.partition(".")[0] in COMMON and not name.startswith("_"):
                try:
                    import_module(name)
                except Exception:  # of a module that another one made up
                    continue

    def _time_is_up(self) -> bool:
        return time.monotonic() - self._start > self._settings.seconds


def _searches(settings: Settings) -> list[Search]:
    seed = settings.seed * 1_000_003  # so that two seeds have no run in common
    every: dict[str, Search] = {"dpor": Dpor(), "pos": Pos(seed), "pct": Pct(seed), "random": RandomWalks(seed)}
    if settings.ranks and settings.strategy == "auto":
        return [every["dpor"]]  # ranks only wait for each other, so there is little to choose
    return list(every.values()) if settings.strategy == "auto" else [every[settings.strategy]]


def _difference(plain: bytes, other: bytes) -> Finding:
    """Describe outputs that differ, by their first different line."""
    lines = itertools.zip_longest(
        plain.decode(errors="replace").splitlines(), other.decode(errors="replace").splitlines(), fillvalue="(nothing)"
    )
    first, second = next(((one, two) for one, two in lines if one != two), ("", ""))
    return Finding("results differ", f"the program prints {second!r}; without a switch it prints {first!r}")
