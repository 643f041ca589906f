"""The search: one run after the other, until nothing is left to try, or the limits are reached."""

from __future__ import annotations

import itertools
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

from paceline.concurrency.explore.child import Job, Outcome, run_once
from paceline.concurrency.explore.finding import Finding
from paceline.concurrency.explore.report import Report, Schedule
from paceline.concurrency.explore.rewriting import importing
from paceline.concurrency.explore.session import Settings, Target
from paceline.concurrency.explore.strategies import Chance, RandomWalk, Replay, Strategy, Switch
from paceline.concurrency.explore.strategies.directed import DirectedRun, Targets
from paceline.concurrency.explore.strategies.dpor import Dpor
from paceline.concurrency.explore.strategies.pos import PosRun

SHRINK_SECONDS = 10.0
USUAL = Chance()  # the numbers that the plain run draws
PASSES = 20  # of a line that are explored where all would be too many
#: Schedules of the other strategies that a program still gets when `dpor` has ended, if it has what the proof leaves
#: out: early time-outs, other random numbers, collections that call a destructor.
AFTER_PROOF = 300
#: Modules that are imported once for all runs: to import them starts no thread and reads nothing of the program.
COMMON = {*sys.stdlib_module_names, "numpy", "pytest", "_pytest", "torch"} - {"antigravity", "this", "idlelib"}


class Explorer:
    """Runs one target again and again."""

    def __init__(self, target: Target, settings: Settings) -> None:
        self._target, self._settings = target, settings
        self._shared: frozenset[str] | None = None  # not known before the first run
        self._start = self._prepared = time.monotonic()
        command = ["--ranks", str(settings.ranks)] if settings.ranks else []
        command += ["--late", f"{settings.late:g}"] if settings.late != Settings().late else []
        command += [str(target), *(["--", *target.arguments] if target.arguments else [])]
        self._report = Report(str(target), shlex.join(command))
        self._plain = Outcome()
        self._targets = Targets(settings.suspected)

    def explore(self) -> Report:
        """Search for schedules in which something goes wrong."""
        report = self.explore_plain()
        if not report.all and not report.reason:
            self._search()
        return report

    def explore_plain(self) -> Report:
        """Run the plain order, in which what goes wrong is no finding of the schedule."""
        self._plain = self._run(Replay(), traced=True)
        self._prepare()
        report = self._report
        if self._plain.lost:
            return report.without_verdict(self._plain.lost)
        for finding in () if self._plain.suspect else self._findings(self._plain)[:1]:
            if finding.kind == "too long" and not self._settings.passes:
                self._settings, report.passes = replace(self._settings, passes=PASSES), PASSES
                return self.explore_plain()
            if finding.kind == "too long":
                return report.without_verdict(f"{finding.message}: give it a smaller input, or more with --steps")
            if finding.kind == "exception" and finding.where is None:  # no line of the program was executed
                return report.without_verdict(finding.message)
            self._add(finding, self._plain)
        return report

    def replay(self, schedule: Schedule) -> Report:
        self._plain = self._run(Replay(), counted=False)
        outcome = self._run(Replay(schedule.switches), chance=schedule.chance)
        if outcome.lost:
            return self._report.without_verdict(outcome.lost)
        for finding in self._findings(outcome)[:1]:
            return self._add(finding, outcome)
        return self._report.without_verdict("the schedule leads to no finding: the program has changed, or is repaired")

    def drill(self) -> Report:
        """Run the program without a fault, and then once with each."""
        report = self.explore_plain()
        for fault in () if report.all or report.reason else self._settings.drills:
            self._settings = replace(self._settings, drill=fault)
            outcome = self._run(Replay())
            report.drills.append(outcome.drill or {"drill": fault, "outcome": "no verdict", "message": outcome.lost})
        return report

    def _search(self) -> None:
        """Let the strategies take turns, until all orders are proved, or the limits are reached."""
        settings, report, dpor = self._settings, self._report, Dpor()
        every, turns, limit = self._strategies(), Counter[str](), settings.schedules
        names = list(every)
        while names and report.schedules < limit and not self._is_over(settings):
            name = names.pop(0)
            turns[name] += 1
            seed = settings.seed * 1_000_003 + turns[name]  # so that two seeds have no run in common
            strategy = dpor.next() if name == "dpor" else self._drawn(name, seed)
            if strategy is None:
                report.dismissed_after = 0 if report.lost or report.outside else dpor.runs
                sources = (Path(file).read_text(encoding="utf-8", errors="replace") for file in self._plain.files)
                has_destructor = any("__del__" in source for source in sources)
                report.is_partial = dpor.has_timeouts or self._plain.draws > 0 or has_destructor
                limit = min(limit, report.schedules + AFTER_PROOF) if report.is_partial else 0
                continue
            before = self._shared
            # Every other one draws other numbers; the orders of `dpor` are all of one program.
            other = name != "dpor" and turns[name] % 2 == 0
            chance = Chance(seed, self._plain.draws, self._plain.steps) if other else USUAL
            outcome = self._run(strategy, traced=name == "dpor", chance=chance)
            self._judge(outcome, name)
            # The runs of `dpor` did not stop at data that threads are known to share only now.
            if self._shared != before:
                dpor, limit, report.dismissed_after = Dpor(), settings.schedules, 0
                names += [each for each in (name, "dpor") if each in every and each not in names]
            elif name != "dpor" or outcome.lost:
                names.append(name)
            elif outcome.trace is not None:  # else it is too long for a proof
                dpor.learn(*outcome.trace)
                names.append(name)

    def _is_over(self, settings: Settings) -> bool:
        is_late = time.monotonic() - self._prepared > settings.seconds
        are_confirmed = bool(settings.suspects) and not self._settings.suspects
        return is_late or are_confirmed or (settings.first and bool(self._report.all))

    def _strategies(self) -> list[str]:
        """Return the names of the strategies: of ranks, which only wait for each other, there is little to choose."""
        settings = self._settings
        every = ["dpor"] if settings.ranks and settings.strategy == "auto" else ["dpor", "directed", "pos", "random"]
        return [
            each for each in every if settings.strategy in ("auto", each) and not (settings.passes and each == "dpor")
        ]

    def _drawn(self, name: str, seed: int) -> Strategy:
        """Begin the run of a seed: directed at what must be confirmed, else at lines at which threads conflict."""
        if name != "directed":
            return PosRun(seed) if name == "pos" else RandomWalk(seed)
        targets = {each.target for each in self._settings.suspects} or self._report.targets
        return DirectedRun(seed, self._targets.choose(targets, seed))

    def _judge(self, outcome: Outcome, name: str) -> None:
        """Add what has gone wrong in a run to the report, if it is new and does so again."""
        if outcome.lost:
            self._report.lost[outcome.lost] = self._report.lost.get(outcome.lost, 0) + 1
        for finding in self._findings(outcome):
            if any(finding.is_like(each.finding) for each in self._report.all) and not outcome.suspect:
                continue
            switches, chance = list(outcome.switches), outcome.chance
            if chance.seed and (first := self._again(switches, finding, USUAL)):
                chance = USUAL
            elif (first := self._again(switches, finding, chance)) is None:
                self._report.unstable += 1
                continue
            seconds = min(SHRINK_SECONDS, self._settings.seconds)
            short = shrink(switches, partial(self._again, finding=finding, chance=chance), seconds)
            if finding.kind == "results differ" and not short:  # they differ from run to run
                self._report.unstable, self._plain = self._report.unstable + 1, self._plain._replace(output=None)
                continue
            last = self._again(short, finding, chance) or first
            self._add(last, outcome._replace(switches=tuple(short), chance=chance), name)
            others = tuple(each for each in self._settings.suspects if each != outcome.suspect)
            self._settings = replace(self._settings, suspects=others)

    def _add(self, finding: Finding, outcome: Outcome, name: str = "plain") -> Report:
        schedule = Schedule(outcome.switches, outcome.chance, self._settings.passes, outcome.suspect)
        return self._report.add(finding, schedule, name)

    def _again(self, switches: Sequence[Switch], finding: Finding, chance: Chance) -> Finding | None:
        """Return what a schedule leads to, if that is like a finding."""
        again = self._findings(self._run(Replay(switches), counted=False, chance=chance))
        return next((each for each in again if each.is_like(finding)), None)

    def _findings(self, outcome: Outcome) -> list[Finding]:
        """Return what is wrong with an outcome, with the oracles that were chosen."""
        findings = [outcome.finding] if outcome.finding is not None else []
        if self._settings.races:
            findings += outcome.races
        plain, output = self._plain.output, outcome.output
        is_comparable = outcome.chance.seed == 0 or self._plain.draws == 0
        if plain is not None and output is not None and output != plain and not findings and is_comparable:
            self._report.differs = True
            if self._settings.same:
                findings.append(Finding("results differ", _difference(_lines(plain), _lines(output))))
            elif outcome.races and (one := _results(plain)) != (other := _results(output)):
                race = outcome.races[0]
                message = f"{_difference(one, other)}: {race.message}"
                findings.append(replace(race, kind="results differ", message=message))
        return findings

    def _run(self, strategy: Strategy, traced: bool = False, counted: bool = True, chance: Chance = USUAL) -> Outcome:
        outcome = run_once(Job(self._target, self._settings, strategy, self._shared, traced, chance))
        if counted:
            self._report.count(outcome, time.monotonic() - self._start)
        if self._shared is not None:
            self._shared |= outcome.shared
        return outcome

    def _prepare(self) -> None:
        """Do once what every run would do again: rewrite files, import modules of the standard library."""
        self._shared = self._plain.shared
        for file in self._plain.files:
            importing.code_of(file)
        for name in self._plain.modules:
            if name.partition(".")[0] in COMMON and (name.startswith("_pytest") or not name.startswith("_")):
                try:
                    import_module(name)
                except Exception:  # of a module that another one made up
                    continue
        self._prepared = time.monotonic()  # a slow import takes no time from the search


def shrink(switches: Sequence[Switch], fails: Callable[[Sequence[Switch]], object], seconds: float) -> list[Switch]:
    """Leave switches out as long as the finding stays: no single one can be left out, unless time ran out.

    Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE TSE 28(2), 2002 (ddmin), over
    switches.
    """
    short, end = list(switches), time.monotonic() + seconds
    size = max(1, len(short) // 2)
    while short and time.monotonic() < end:
        at, before = 0, len(short)
        while at < len(short) and time.monotonic() < end:
            rest = short[:at] + short[at + size :]
            if fails(rest):
                short = rest
            else:
                at += size
        if size == 1 and len(short) == before:
            break
        size = max(1, size // 2)
    return short


def _lines(output: bytes) -> list[str]:
    return output.decode(errors="replace").splitlines()


def _results(output: bytes) -> list[str]:
    """Return what is printed but for times, and for the order of lines and of what stands in brackets."""
    lines = (re.sub(r"\d+\.\d+", "#", line) for line in _lines(output))
    return sorted(" ".join(sorted(re.split(r"[][(){},]\s*", line))).strip() for line in lines)


def _difference(plain: Sequence[str], other: Sequence[str]) -> str:
    """Describe outputs that differ, by their first different line."""
    lines = itertools.zip_longest(plain, other, fillvalue="(nothing)")
    first, second = next(((one, two) for one, two in lines if one != two), ("", ""))
    return f"the program prints {second!r}; without a switch it prints {first!r}"
