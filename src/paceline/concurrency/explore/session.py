"""Explores targets in a process of its own: what the command line, the plugin of pytest and tests call."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from paceline.concurrency.explore.oracles import Suspect
from paceline.concurrency.explore.report import Report
from paceline.errors import UsageError

STRATEGIES = ("auto", "random", "pos", "dpor", "directed")


@dataclass(frozen=True, slots=True)
class Target:
    """A script with its own main, a function without arguments, or a test of pytest."""

    file: str = ""  # of a script, or of the function
    module: str = ""  # of the function, where no file is named
    function: str = ""
    test: str = ""  # as pytest names it in its file, such as TestStock::test_sale[3]
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        part = f":{self.function}" if self.function else f"::{self.test}" if self.test else ""
        return f"{self.file or self.module}{part}"


@dataclass(frozen=True, slots=True)
class Settings:
    """How long, how, and what else than crashes and deadlocks counts as wrong."""

    seconds: float = 30.0
    schedules: int = 2_000
    strategy: str = "auto"
    seed: int = 0
    races: bool = False
    same: bool = False
    ranks: int = 0
    drill: str = ""  # one fault on one rank
    first: bool = False  # end the search with the first finding
    suspects: tuple[Suspect, ...] = ()  # of the checker, each looked for until it is confirmed
    suspected: frozenset[tuple[str, int]] = frozenset()  # lines, at which the search begins
    late: float = 0.03  # for which a thread that can run may wait for its turn, in virtual seconds
    steps: int = 20_000  # after which a run is given up
    passes: int = 0  # of a thread over a line, after which few are steps; 0 where all are
    run_seconds: float = 30.0  # real ones, for a single run
    replay: str = ""  # a token: run this schedule instead of searching
    drills: tuple[str, ...] = ()  # faults to be tried on ranks, one after the other
    scope: tuple[Path, ...] = ()  # further folders whose files are the program's


class Answer(NamedTuple):
    """The report of an exploration, as text and as an object."""

    text: str
    code: int
    report: dict[str, Any]
    lines: frozenset[tuple[str, int]] = frozenset()  # that were executed, where there are suspicions


class Session:
    """The exploring process, for one target after the other."""

    def __init__(self) -> None:
        # Every run writes its output into a file of its own, so that it does not mix with the answers.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "paceline.concurrency.explore.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": "0"},  # so that sets have one order in every run
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def explore(self, target: Target, settings: Settings = Settings()) -> Answer:  # frozen
        """Explore a target, whose own folder and the current one are the program's in any case."""
        if target.file and not Path(target.file).is_file():
            raise UsageError(f"{target.file}: there is no such file")
        if settings.strategy not in STRATEGIES:
            raise UsageError(f"--strategy {settings.strategy}: not known; choose one of {', '.join(STRATEGIES)}")
        if target.file and not settings.suspects and not settings.replay:
            from paceline.concurrency.explore.suspicion import suspected_lines  # which imports the checker

            settings = replace(settings, suspected=suspected_lines(Path(target.file)))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((target, settings), self._process.stdin)
        self._process.stdin.flush()
        try:
            report: Report | str = pickle.load(self._process.stdout)
        except EOFError:
            raise UsageError(f"{target}: the exploring process has ended; its last words are above") from None
        if isinstance(report, str):
            raise UsageError(report)
        return Answer(report.text(), report.exit_code, report.to_dict(), frozenset(report.lines))
