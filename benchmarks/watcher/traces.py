"""The recorded traces, what is known of their programs, and what simple rules would say of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from catalogue import HERE, VERDICT, cause_of, split_of

from paceline.concurrency.watcher.files import Trace
from paceline.concurrency.watcher.history import STILL, History
from paceline.concurrency.watcher.judge import Footprint, footprint
from paceline.concurrency.watcher.report import HangReport
from paceline.concurrency.watcher.samples import Counters, Snapshot

#: What stands between the watcher and the program, or serves it.
LAUNCHERS = frozenset({"sh", "nice", "multiprocessing.resource_tracker", "multiprocessing.forkserver"})
STARTING = 4.0  # seconds in which programs start; what they do then is not what they are labelled with
TRACES = HERE.parents[1] / "tests" / "concurrency" / "watcher" / "traces"


class Program(NamedTuple):
    """One recorded program."""

    name: str  # "family.name"
    variant: int
    trace: Trace

    @property
    def family(self) -> str:
        """The family of the program."""
        return self.name.partition(".")[0]

    @property
    def verdict(self) -> str:
        """What the program does in the end."""
        return VERDICT[self.family]

    @property
    def label(self) -> str:
        """The program with its variant."""
        return f"{self.name}.{self.variant}"

    @property
    def split(self) -> str:
        """Which figures it counts in."""
        return split_of(self.family)

    @property
    def seconds(self) -> float:
        """For how long it was recorded."""
        readings = [each.at for each in self.trace.samples if isinstance(each, Counters)]
        return readings[-1] - readings[0] if readings else 0.0

    @property
    def hangs(self) -> bool:
        """Whether a report is wanted."""
        return self.verdict in ("deadlocked", "stopped")

    @property
    def imports(self) -> bool:
        """Whether it still imported modules when the recording ended, so that it has not come to what it does."""
        snapshot = next((each for each in reversed(self.trace.samples) if isinstance(each, Snapshot)), None)
        stacks = [stack for process in snapshot.processes for stack in process.stacks] if snapshot else []
        return any(frame.function in ("exec_module", "_find_and_load") for stack in stacks for frame in stack)

    def footprints(self) -> Iterator[Footprint]:
        """Iterate over the footprints of the windows after the start."""
        history, begin = History(), 0.0
        for each in self.trace.samples:
            if isinstance(each, Counters):
                history.add(each)
                begin = begin or each.at
                continue
            history.observe(each)
            if each.processes and each.at - begin >= STILL + STARTING:
                yield footprint(history, each)

    def cause_is_right(self, report: HangReport) -> bool:
        """Whether a report blames exactly the processes that hold each other."""
        snapshot = next(each for each in reversed(self.trace.samples) if isinstance(each, Snapshot))
        ranks = {process.rank for process in snapshot.processes if process.rank is not None}
        wanted = cause_of(self.name, max(len(ranks), 2), self.variant)
        members = [
            process for process in snapshot.processes if process.command not in LAUNCHERS and not process.outside
        ]
        numbers = {process.pid for process in members}
        root = next((process.pid for process in members if process.parent not in numbers), 0)
        right = {
            process.pid
            for process in members
            if wanted == "all"
            or (wanted == "children" and process.pid != root)
            or (wanted == "root" and process.pid == root)
            or (process.rank is not None and wanted in ("ranks", f"rank {process.rank}"))
            or (process.rank is not None and f"rank {process.rank}" in wanted.split(", "))
            or (process.rank is not None and wanted == "others" and process.rank not in (0, 1))
        }
        blamed = {each.pid for each in report.processes if each.role == "cause"}
        if wanted == "children":  # of several workers, some may have nothing to do
            return bool(blamed) and blamed <= right
        return blamed == right

    def idles(self, seconds: float) -> bool:
        """Whether 'below 1% of a processor for so many seconds' would say that it hangs."""
        return self._any_window(seconds, lambda old, new: _processor(new) - _processor(old) < 0.01 * (new.at - old.at))

    def silent(self, seconds: float) -> bool:
        """Whether 'no output for so many seconds' would say that it hangs."""
        return self._any_window(seconds, lambda old, new: _written(old) == _written(new))

    def _any_window(self, seconds: float, test: Callable[[Counters, Counters], bool]) -> bool:
        readings = [each for each in self.trace.samples if isinstance(each, Counters)]
        later = 0
        for old in readings:
            while later < len(readings) and readings[later].at - old.at < seconds:
                later += 1
            if later == len(readings):
                return False
            if test(old, readings[later]):
                return True
        return False


def _processor(counters: Counters) -> float:
    return sum(pace.ran for threads in counters.threads.values() for pace in threads.values()) / 1e9


def _written(counters: Counters) -> int:
    return sum(work.written for work in counters.work.values())


def load(folder: Path = TRACES) -> list[Program]:
    """Load all recorded programs of a folder."""
    found = []
    for place in sorted(folder.iterdir()):
        family, name, *variant = place.name.split(".")
        found.append(Program(f"{family}.{name}", int(variant[0]) if variant else 0, Trace.load(place)))
    return found
