"""The recorded traces, what is known of their programs, and what simple rules would say of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from programs import CAUSE, LEARNED, VERDICT  # noqa: E402

from paceline.watcher.footprint import Footprint, footprint  # noqa: E402
from paceline.watcher.history import STILL, History  # noqa: E402
from paceline.watcher.report import Report  # noqa: E402
from paceline.watcher.samples import Glance, Look  # noqa: E402
from paceline.watcher.trace import Trace  # noqa: E402

STARTING = 4.0  # seconds in which programs start; what they do then is not what they are labelled with
TRACES = HERE.parents[1] / "tests" / "watcher" / "traces"


class Program(NamedTuple):
    """One recorded program."""

    name: str  # "family.name"
    family: str
    verdict: str
    trace: Trace

    @property
    def held_out(self) -> bool:
        """Whether the classifier has not learned from this family."""
        return self.family not in LEARNED

    @property
    def hangs(self) -> bool:
        """Whether a report is wanted."""
        return self.verdict in ("deadlocked", "stopped")

    def footprints(self) -> Iterator[Footprint]:
        """Iterate over the footprints of the windows between the start and the watcher's own signal."""
        history, begin = History(), 0.0
        for each in self.trace.samples:
            if isinstance(each, Glance):
                history.add(each)
                begin = begin or each.at
            elif each.processes and each.at - begin >= STILL + STARTING:
                yield footprint(history, each)
            if isinstance(each, Look) and any(process.stacks for process in each.processes):
                return  # from here on the program has been woken by the watcher's own signal

    def cause_is_right(self, report: Report) -> bool:
        """Whether a report blames exactly the processes that hold each other."""
        look = next(each for each in reversed(self.trace.samples) if isinstance(each, Look))
        wanted = CAUSE.get(self.name, "all")
        root = min(process.pid for process in look.processes)
        right = {
            process.pid
            for process in look.processes
            if wanted == "all"
            or (wanted == "children" and process.pid != root)
            or (wanted == "ranks" and process.rank is not None)
            or wanted == f"rank {process.rank}"
        }
        return {each.pid for each in report.processes if each.role == "cause"} == right

    def idles(self, seconds: float) -> bool:
        """Whether 'below 1% of a processor for so many seconds' would say that it hangs."""
        return self._any_window(seconds, lambda old, new: _processor(new) - _processor(old) < 0.01 * (new.at - old.at))

    def silent(self, seconds: float) -> bool:
        """Whether 'no output for so many seconds' would say that it hangs."""
        return self._any_window(seconds, lambda old, new: _written(old) == _written(new))

    def _any_window(self, seconds: float, test: object) -> bool:
        glances = [each for each in self.trace.samples if isinstance(each, Glance)]
        pairs = [(old, new) for old in glances for new in glances if new.at - old.at >= seconds]
        return any(test(old, new) for old, new in pairs)  # type: ignore[operator]


def _processor(glance: Glance) -> float:
    return sum(pace.ran for threads in glance.threads.values() for pace in threads.values()) / 1e9


def _written(glance: Glance) -> int:
    return sum(work.written for work in glance.work.values())


def load() -> list[Program]:
    """Load all recorded programs."""
    found = []
    for folder in sorted(TRACES.iterdir()):
        family = folder.name.partition(".")[0]
        found.append(Program(folder.name, family, VERDICT[family], Trace.load(folder)))
    return found
