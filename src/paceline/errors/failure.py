"""The report of a failed run, in one block: which worker failed first, the victims, how to replay the failure.

worker 1 failed first: ValueError: nine is not a class
  when     in update 37, with samples 740, 12, 88, ...
  victims  workers 0, 2: stopped, they are not the cause
  replay   paceline replay runs/20261121-172233-job-ring --until failure
  resume   paceline train --resume runs/20261121-172233-job-ring
Traceback (most recent call last):
  ...
"""

from __future__ import annotations

import re
import shlex
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

OURS = re.escape(str(Path(__file__).parents[1]))
PASSED = (rf"{OURS}/|[^\"]*/(?:site|dist)-packages/torch/", rf"{OURS}/")  # on the way to the user's lines, and below
FRAMES = [re.compile(rf'^  File "(?:{passed})[^\n]*\n(?:    [^\n]*\n)*', re.MULTILINE) for passed in PASSED]
LIBRARY = re.compile(rf"^{OURS}/|/(site|dist)-packages/|^<")
FEW = 8  # samples that are named


class Position(NamedTuple):
    """A worker's position in the training."""

    update: int = -1  # -1: before its first
    version: int = -1  # of the parameters it computed with
    samples: tuple[int, ...] = ()

    def describe(self) -> str:
        if self.update < 0:
            return "before its first update"
        samples = f", with samples {few(self.samples)}" if self.samples else ""
        return f"in update {self.update}{samples}"


@dataclass
class Failure:
    """The failure of a run, with the worker that failed first."""

    worker: int
    what: str  # what it did, or what happened to it
    position: Position
    victims: list[int] = field(default_factory=list)
    advice: str = ""
    traceback: str = ""
    run: Path | None = None  # where it can be replayed from
    resume: Path | None = None  # the run that can go on, where the job itself is not to blame

    def describe(self) -> str:
        lines = {"when": self.position.describe()}
        if self.victims:
            several = "s" * (len(self.victims) > 1)
            lines["victims"] = f"worker{several} {', '.join(map(str, self.victims))}: stopped, not the cause"
        if self.advice:
            lines["advice"] = self.advice
        if self.run is not None and self.position.update >= 0:
            lines["replay"] = f"paceline replay {shlex.quote(str(self.run))} --until failure"
        if self.resume is not None:
            lines["resume"] = f"paceline train --resume {shlex.quote(str(self.resume))}"
        block = [f"worker {self.worker} {self.what}", *(f"  {word:<7}  {line}" for word, line in lines.items())]
        return "\n".join([*block, *([self.traceback.rstrip()] if self.traceback else [])])

    def as_dict(self) -> dict[str, Any]:
        return {
            "worker": self.worker,
            "what": self.what,
            **self.position._asdict(),
            "victims": self.victims,
            "advice": self.advice,
            "traceback": self.traceback,
        }


def few(numbers: Sequence[int]) -> str:
    """Return the first few numbers for a message."""
    return ", ".join(map(str, numbers[:FEW])) + (", ..." if len(numbers) > FEW else "")


def users_traceback(error: BaseException) -> str:
    """Return the user's lines of a traceback, or those of libraries where it has none; "" where all are ours.

    It may also be that of a loader's process, within the error's message.
    """
    text = "".join(traceback.format_exception(error))
    shorter = [frame.sub("", text) for frame in FRAMES]
    return next((each for each in shorter if '  File "' in each), "")


def users_place(error: BaseException) -> str:
    """Return the file and line of the user's code that an error came from, in brackets; "" where it came from none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not LIBRARY.search(frame.filename)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
