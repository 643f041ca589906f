"""Tunings whose processes are killed at random moments, and what has to hold of them afterwards.

`python -m paceline.interfaces.testing.killed_tunings FOLDER SEARCH` begins the tuning in a folder, or continues it.
`disturb` runs it again and again, kills the tuner or one of its workers meanwhile, and returns when it is over.
`faults` reads the journal: each configuration was evaluated exactly once, and what was decided is what an undisturbed
tuning decides.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from paceline.interfaces.api.tuning.tune import tune
from paceline.planning.tuner.journal import Journal, Row, read
from paceline.planning.tuner.searches import Search
from paceline.planning.tuner.space import Configuration, Float, Int, Space
from paceline.planning.tuner.study import Study
from paceline.planning.tuner.trial import Trial

SPACE = {"x": Float(0, 1, count=6), "n": Int(1, 4)}
POINTS = 24  # of the grid
MAX_T = 9
STEP = 0.004  # seconds that a step takes
SPREAD = 60  # rows of the journal between two kills, at most
JITTER = 0.02  # seconds from a row of the journal to a kill, at most
SPARED = 2  # deaths of a trial's worker, after which a third would be taken for the trial's own fault
#: Searches whose decisions do not depend on the order in which results arrive.
ORDERLESS = ("grid", "random", "sobol", "successive_halving", "hyperband", "pbt")


def value(configuration: Configuration, step: int) -> float:
    """Return the loss of a configuration after a step."""
    return float((configuration["x"] - 0.3) ** 2 + configuration["n"] / step)


class Logged:
    """An objective that notes in a file which process begins which trial, and checks the state that it goes on from."""

    def __init__(self, log: Path | None) -> None:
        self.log = log

    def __call__(self, trial: Trial) -> float:
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(f"{os.getpid()} {trial.number}\n")
        if trial.start and trial.load() != trial.start:
            raise ValueError(f"the state after step {trial.start} is {trial.load()}")
        for step in range(trial.start + 1, trial.stop + 1):
            if self.log is not None:
                time.sleep(STEP)
            trial.report(value(trial.configuration, step), step)
            if trial.should_prune():
                return trial.value
        trial.save(trial.stop)
        return trial.value


@dataclass
class Told:
    """What was done to a tuning."""

    tuner: int = 0  # kills of the tuner
    workers: int = 0
    begun: int = 0  # times that a trial's function began, those that were killed included


@dataclass
class ProcessLife:
    """One process of the tuning, from its start to its end or its death."""

    folder: Path
    process: subprocess.Popen[bytes]
    deaths: Counter[int] = field(default_factory=Counter)

    def wait(self, rows: int) -> bool:
        """Wait until the journal has so many rows; return False if the process is over before."""
        while self.process.poll() is None:
            if count_rows(self.folder) >= rows:
                return True
            time.sleep(0.001)
        return False

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill a worker that has begun a trial; return whether there was one."""
        with contextlib.suppress(psutil.NoSuchProcess):
            alive = {each.pid for each in psutil.Process(self.process.pid).children(recursive=True)}
            trials = {pid: trial for pid, trial in begun(self.folder) if pid in alive}
            pids = sorted(pid for pid, trial in trials.items() if self.deaths[trial] < SPARED)
            if pids:
                chosen = chance.choice(pids)
                psutil.Process(chosen).kill()
                self.deaths[trials[chosen]] += 1
                return True
        return False


def disturb(folder: Path, search: str, chance: random.Random, kills: int) -> Told:
    """Run the tuning in a new folder until it is over, and kill up to so many of its processes meanwhile."""
    tally = Told()
    while True:
        command = [sys.executable, "-m", "paceline.interfaces.testing.killed_tunings", str(folder), search]
        life = ProcessLife(folder, subprocess.Popen(command, stderr=subprocess.PIPE))
        try:
            while tally.tuner + tally.workers < kills and life.wait(count_rows(folder) + chance.randrange(1, SPREAD)):
                time.sleep(chance.uniform(0, JITTER))
                if chance.random() < 0.5:
                    tally.workers += life.kill_worker(chance)
                    continue
                life.process.kill()
                tally.tuner += 1
                break
            _, stderr = life.process.communicate()
        finally:
            life.process.kill()
            life.process.wait()
        if life.process.returncode == 0:
            tally.begun = len(begun(folder))
            return tally
        if life.process.returncode > 0:
            raise RuntimeError(f"the tuning in {folder} failed: {stderr.decode()}")


def count_rows(folder: Path) -> int:
    """Return the whole lines of the journal so far."""
    file = _journal(folder)
    return file.read_bytes().count(b"\n") if file is not None else 0


def begun(folder: Path) -> list[tuple[int, int]]:
    """Return (process, trial) for each time that a trial's function began."""
    log = folder / "begun"
    lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    return [(int(pid), int(trial)) for pid, trial in (line.split() for line in lines)]


def faults(folder: Path, search: str) -> list[str]:
    """Return what does not hold of a tuning that is over."""
    file = _journal(folder)
    assert file is not None
    rows = read(file)
    legs = Counter((row["trial"], row["start"]) for row in rows if row["row"] == "leg")
    ends = Counter(row["trial"] for row in rows if row["row"] == "end")
    violations = [f"leg {leg} began {count} times" for leg, count in legs.items() if count > 1]
    begun_legs = Counter(trial for trial, _ in legs.elements())
    violations += [
        f"trial {t} has {begun_legs[t]} legs and {ends[t]} ends" for t in begun_legs if begun_legs[t] != ends[t]
    ]
    study = _opened(search, Journal(file))  # told everything again, it refuses a decision that it would not take
    study.journal.close()
    violations += [f"trial {t.number} failed: {t.reason}" for t in study.trials.values() if t.status == "failed"]
    for trial in study.trials.values():
        if trial.value is not None and not trial.earlier and trial.value != value(trial.configuration, trial.step):
            violations.append(f"trial {trial.number} has the value {trial.value} of other settings")
    if study.next() is not None:
        violations.append("the search is not over")
    calm = _calm(search)
    if search in ORDERLESS and _decided(rows) != _decided(calm):
        violations.append("its legs are not those of an undisturbed tuning")
    if search == "grid" and len({json.dumps(row["configuration"]) for row in rows if row["row"] == "leg"}) != POINTS:
        violations.append("a point of the grid is missing")
    return violations


def _calm(search: str) -> list[Row]:
    """Return the rows of an undisturbed tuning."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "journal.jsonl"
        with contextlib.closing(Journal(file)) as journal:
            study = _opened(search, journal)
            while (assignment := study.next()) is not None:
                leg = assignment.leg
                for step in range(leg.start + 1, leg.stop + 1):
                    stopped = study.report(leg.trial, step, value(assignment.configuration, step))
                    if stopped:
                        break
                study.end(leg.trial, study.trials[leg.trial].value, stopped=stopped)
        return read(file)


def _opened(search: str, journal: Journal) -> Study:
    proposals, scheduler, total = Search.parse(search).open(Space(SPACE), _budget(search), MAX_T, 0, True, False)
    return Study(proposals, scheduler, journal, True, total)


def _budget(search: str) -> int | None:
    parsed_search = Search.parse(search)
    return None if parsed_search.counts or parsed_search.sampler == "grid" else POINTS


def _decided(rows: list[Row]) -> set[str]:
    """Return the legs with their configurations, and the stops."""
    names: dict[str, Any] = {
        "leg": ("trial", "start", "stop", "source", "configuration"),
        "report": ("trial", "step", "value", "stop"),
    }
    return {json.dumps([row[n] for n in names[row["row"]]]) for row in rows if row["row"] in names}


def _journal(folder: Path) -> Path | None:
    return next(folder.glob("*/journal.jsonl"), None)


def _main(folder: Path, search: str) -> None:
    options: dict[str, Any] = {"objective": Logged(folder / "begun"), "space": SPACE, "search": search}
    file = _journal(folder)
    resume = file.parent if file is not None else None
    tune(
        **options, n_trials=_budget(search), max_t=MAX_T, executor="processes", workers=2, folder=folder, resume=resume
    )


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2])
