"""A study: scheduler, proposals and journal together. Whatever is decided is decided here, in one process.

    next    what is to be trained now
    report  a trial's value after a step, answered by whether it is to stop
    end     a leg is over

A study that opens a journal with rows is told them again, and checks that it decides as it did. Legs that were under
way when the tuning was killed are assigned first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline.algorithms.tuning import FAILED, Coordinates, Sampler, Scheduler, TrialSegment
from paceline.errors import TuningError
from paceline.planning.tuner.journal import Journal, Row
from paceline.planning.tuner.space import Configuration, Space

DONE, STOPPED, FAILURE, RUNNING, PAUSED = "done", "stopped", "failed", "running", "paused"


@dataclass
class TrialRecord:
    """What is known of a trial."""

    number: int
    configuration: Configuration
    status: str = RUNNING
    #: Its last value, and the values after each step, as the user's metric has them.
    value: float | None = None
    reports: dict[int, float] = field(default_factory=dict)
    step: int = 0
    reason: str = ""
    #: Seconds inside the trial's function.
    seconds: float = 0.0
    #: When and where its legs were trained: (worker, begin, end) in seconds since the study began.
    spans: list[tuple[int, float, float]] = field(default_factory=list)
    #: The configurations that it had before, with the step at which each ended (population-based training).
    earlier: list[tuple[int, Configuration]] = field(default_factory=list)


@dataclass(frozen=True)
class Assignment:
    """A leg with the configuration that it is trained with."""

    leg: TrialSegment
    configuration: Configuration


class Study:
    """The state of a tuning."""

    def __init__(
        self,
        proposals: Proposals,
        scheduler: Scheduler,
        journal: Journal,
        minimize: bool,
        total: int,
        header: Row | None = None,
    ) -> None:
        self.proposals, self.scheduler, self.journal = proposals, scheduler, journal
        self.minimize, self.total = minimize, total
        self.trials: dict[int, TrialRecord] = {}
        #: Legs under way, by trial; and those that an earlier life left unfinished.
        self.running: dict[int, Assignment] = {}
        self.interrupted: list[Assignment] = []
        #: Stops that were answered, by trial and step, so that a leg that runs again hears the same.
        self._answers: dict[tuple[int, int], bool] = {}
        #: How trials are run, once that is known. A tuning goes on as it began, since states differ between ways.
        self.way = ""
        rows = journal.rows()
        if rows:
            self._replay(rows)
        elif header is not None:
            journal.write({"row": "study", **header})

    # --- what is decided ---

    def next(self, worker: int = 0) -> Assignment | None:
        """Return what is to be trained now, or None: nothing is left, or a leg under way has to end first."""
        if self.interrupted:
            again = self.interrupted.pop(0)
            self.running[again.leg.trial] = again
            self.journal.write({"row": "again", "trial": again.leg.trial, "worker": worker})
            return again
        leg = self.scheduler.next()
        if leg is None:
            return None
        assignment = self._begin(leg, None)
        self.journal.write(
            {
                "row": "leg",
                "trial": leg.trial,
                "start": leg.start,
                "stop": leg.stop,
                "source": leg.source,
                "configuration": assignment.configuration,
                "worker": worker,
            }
        )
        return assignment

    def report(self, trial: int, step: int, value: float) -> bool:
        """Take a trial's value after a step; return whether the trial is to stop."""
        if (answer := self._answers.get((trial, step))) is not None:
            return answer  # of a leg that runs again
        record = self.trials[trial]
        record.reports[step], record.step, record.value = value, step, value
        stop = self.scheduler.report(trial, step, self._loss(value))
        self._answers[trial, step] = stop
        self.journal.write({"row": "report", "trial": trial, "step": step, "value": value, "stop": stop})
        return stop

    def end(
        self,
        trial: int,
        value: float | None,
        *,
        stopped: bool = False,
        reason: str = "",
        seconds: float = 0.0,
        suggested: Configuration | None = None,
        span: tuple[int, float, float] | None = None,
    ) -> None:
        """Take the end of a leg. Without a value it has failed, for the reason given."""
        if value is None or not math.isfinite(value):
            value, reason = None, reason or f"its value is {value}"
        row = {
            "row": "end",
            "trial": trial,
            "value": value,
            "stopped": stopped,
            "reason": reason,
            "seconds": seconds,
            "suggested": suggested or {},
            "span": span,
        }
        self.journal.write(row)
        self._take_end(row)

    def runs(self, way: str) -> None:
        """Note how trials are run."""
        if way != self.way:
            self.way = way
            self.journal.write({"row": "way", "way": way})

    # --- what is known ---

    @property
    def best(self) -> TrialRecord | None:
        """The best of the trials that were trained to the end; before there is one, of those that have a value."""
        have = [record for record in self.trials.values() if record.value is not None]
        return min(have, key=self._rank, default=None)

    def finished(self) -> int:
        """Return how many trials are over."""
        return sum(record.status in (DONE, STOPPED, FAILURE) for record in self.trials.values())

    def _loss(self, value: float) -> float:
        return value if self.minimize else -value

    # --- within ---

    def _begin(self, leg: TrialSegment, recorded: Configuration | None) -> Assignment:
        """Note that a leg begins; its configuration is proposed, or the one that a journal recorded."""
        configuration = self._configuration(leg, recorded)
        record = self.trials.get(leg.trial)
        if record is None:
            record = self.trials[leg.trial] = TrialRecord(leg.trial, configuration)
        elif configuration != record.configuration:
            record.earlier.append((leg.start, record.configuration))
            record.configuration = configuration
        record.status = RUNNING
        assignment = self.running[leg.trial] = Assignment(leg, configuration)
        return assignment

    def _configuration(self, leg: TrialSegment, recorded: Configuration | None) -> Configuration:
        if leg.coordinates is not None:
            assert leg.source is not None
            return self.proposals.at(leg.coordinates) or self.trials[leg.source].configuration
        if leg.trial in self.trials:
            return self.trials[leg.trial].configuration
        if recorded is not None:
            self.proposals.recall(leg.trial, recorded)
            return recorded
        proposed = self.proposals.configuration(leg.trial)
        assert proposed is not None, "a scheduler begins no more trials than there are configurations"
        return proposed

    def _take_end(self, row: Row) -> None:
        trial, value = row["trial"], row["value"]
        record, leg = self.trials[trial], self.running.pop(trial).leg
        record.seconds += row["seconds"]
        record.configuration.update(row["suggested"])
        if row["span"] is not None:
            record.spans.append(tuple(row["span"]))
        if value is None:
            record.status, record.reason, record.value = FAILURE, row["reason"], None
        else:
            record.value, record.step = value, record.step if row["stopped"] else leg.stop
            record.status = STOPPED if row["stopped"] else DONE if self._is_last(leg) else PAUSED
            record.reports.setdefault(record.step, value)
        self.scheduler.end(trial, record.step, FAILED if value is None else self._loss(value))
        if record.status != PAUSED:
            self.proposals.record_loss(trial, FAILED if value is None else self._loss(value), record.reports)

    def _is_last(self, leg: TrialSegment) -> bool:
        return not self.scheduler.resumes or leg.stop >= self.scheduler.max_t

    def _rank(self, record: TrialRecord) -> tuple[bool, float, int]:
        assert record.value is not None
        return record.status != DONE, self._loss(record.value), record.number

    # --- the journal of an earlier life ---

    def _replay(self, rows: list[Row]) -> None:
        journal, self.journal = self.journal, Journal(None)  # results that are replayed are not written again
        try:
            for row in rows:
                self._retell(row)
        finally:
            self.journal = journal
        self.interrupted = [self.running[trial] for trial in sorted(self.running)]
        self.running = {}

    def _retell(self, row: Row) -> None:
        if row["row"] == "leg":
            leg = self.scheduler.next()
            if leg is None or (leg.trial, leg.start, leg.stop) != (row["trial"], row["start"], row["stop"]):
                raise TuningError(
                    f"the journal trains trial {row['trial']} from step {row['start']} to {row['stop']}, where the "
                    f"search now decides {leg}; resume with the version of Paceline that wrote it"
                )
            self._begin(leg, row["configuration"])
        elif row["row"] == "report":
            if self.report(row["trial"], row["step"], row["value"]) != row["stop"]:
                raise TuningError(
                    f"the journal's answer to trial {row['trial']} at step {row['step']} is stop={row['stop']}, and "
                    "the search now decides otherwise; resume with the version of Paceline that wrote it"
                )
        elif row["row"] == "end":
            self._take_end(row)
        elif row["row"] == "way":
            self.way = row["way"]


def curve_of_best(study: Study) -> Iterator[tuple[float, float]]:
    """Yield (seconds, value) whenever a trial that ended was the best so far."""
    best: Any = None
    ended = [(t.spans[-1][2], t.value) for t in study.trials.values() if t.spans and t.value is not None]
    for seconds, value in sorted(ended):
        if best is None or (value < best if study.minimize else value > best):
            best = value
            yield seconds, value


# Configurations by number: what a sampler draws, as far as the space allows it.

PATIENCE = 10_000  # coordinates that are drawn in vain before the constraints are taken to be impossible


class Proposals(Protocol):
    """Proposes the configuration of each trial, and receives its result."""

    #: Whether a configuration depends on how earlier trials went, so that none is asked for before it can begin.
    learns: bool

    def configuration(self, trial: int) -> Configuration | None:
        """Return the configuration of a new trial, or None if there are no more. Trials come in order."""

    def at(self, coordinates: Coordinates) -> Configuration | None:
        """Return the configuration at a point of the unit cube; None if it is not allowed."""

    def preview(self, trial: int) -> Configuration | None:
        """Return the configuration that a trial will have, if it can be known before it begins."""

    def recall(self, trial: int, configuration: Configuration) -> None:
        """Take note of a configuration that a journal says was proposed."""

    def record_loss(self, trial: int, loss: float, reports: dict[int, float]) -> None:
        """Take the loss of a trial that is over."""


class Drawn:
    """Configurations of a sampler, without those that the space does not allow, and of a grid without repetitions."""

    learns = False

    def __init__(self, sampler: Sampler, space: Space, distinct: bool) -> None:
        self.sampler, self.space, self.distinct = sampler, space, distinct
        #: The coordinates of each trial, and how many numbers of the sampler they took.
        self.found: list[Coordinates] = []
        self._drawn = 0
        self._seen = set[str]()

    def coordinates(self, number: int) -> Coordinates | None:
        """Return the point of a trial: a function of its number alone."""
        while len(self.found) <= number:
            begun = self._drawn
            while (point := self.sampler.coordinates(self._drawn)) is not None:
                self._drawn += 1
                if self._takes(point):
                    self.found.append(point)
                    break
                if self._drawn - begun > PATIENCE and not self.distinct:
                    raise TuningError(f"the constraints allowed none of {PATIENCE:,} configurations; loosen them")
            else:
                return None
        return self.found[number]

    def _takes(self, point: Coordinates) -> bool:
        configuration = self.space.configuration(point)
        if configuration is None or not self.distinct:
            return configuration is not None
        key = json.dumps(configuration)
        if key in self._seen:
            return False  # differs only in parameters that do not exist here
        self._seen.add(key)
        return True

    def configuration(self, trial: int) -> Configuration | None:
        point = self.coordinates(trial)
        return None if point is None else self.space.configuration(point)

    def at(self, coordinates: Coordinates) -> Configuration | None:
        return self.space.configuration(coordinates)

    def preview(self, trial: int) -> Configuration | None:
        return self.configuration(trial)

    def recall(self, trial: int, configuration: Configuration) -> None:
        if (now := self.configuration(trial)) != configuration:
            raise TuningError(
                f"the journal's trial {trial} has the configuration {configuration}, and the space now gives {now}; "
                "resume with the space and the constraints of the first time"
            )

    def record_loss(self, trial: int, loss: float, reports: dict[int, float]) -> None:
        """A sampler of this kind does not learn."""

    def __len__(self) -> int:
        """Return how many configurations there are, for a sampler that has an end."""
        while self.coordinates(len(self.found)) is not None:
            pass
        return len(self.found)
