"""What is said of a program that hangs: since when, who waits for whom, cause, victims, remedy. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple

from paceline.narrative import Scene, format_story
from paceline.watcher.graph import Knot
from paceline.watcher.ranks import Divergence
from paceline.watcher.samples import CLOSED, Frame, Process, Stack

_REMEDIES = {
    "rank": "let every rank call the same collectives in the same order: look for a condition on the rank, on data or "
    "on an exception around the lines above (`paceline check` reports such conditions)",
    "lock": "take locks in one order everywhere, and release them on every path; a fork while a thread holds a lock "
    "leaves it locked in the child (use the start method spawn)",
    "shared lock": "let the process that took the lock, semaphore or queue give it back, also when it fails",
    "pipe": "read from a child's pipes while it runs (communicate()), and close the ends that a process does not use: "
    "a reader only sees the end when no writer is left",
    "socket": "let one side read while the other writes: two that both wait to read, or both to write, never move",
    "child": "read what a child writes before waiting for its end, and end what it waits for",
    "file lock": "take file locks in one order everywhere",
    "stopped": "continue it with `kill -CONT PID`, or find what stopped it: Ctrl-Z, or reading the terminal in the "
    "background",
}
#: Further threads of one process whose lines are shown.
SHOWN_THREADS = 6


class Span(NamedTuple):
    """Since when nothing has moved."""

    since: float  # seconds since 1970
    seconds: float


@dataclass(frozen=True)
class Waiting:
    """One process of a hang."""

    pid: int
    label: str
    role: str  # "cause" or "victim"
    waits_for: str
    waits_for_pids: tuple[int, ...]
    collective: str = ""  # that a rank is in
    lines: tuple[Frame, ...] = ()  # the user's line of each thread, the main thread's first, where stacks can be had

    def scenes(self) -> Iterator[Scene]:
        """Iterate over what is told of the process and of its further threads."""
        main, others = self.lines[:1], self.lines[1:]
        where = f" at {_place(main[0])}" if main else ""
        if self.collective:
            yield Scene(self.label, f"is in {self.collective}{where}, waits for {self.waits_for}")
        else:
            yield Scene(self.label, f"{'is' if self.waits_for == 'stopped' else 'waits for'} {self.waits_for}{where}")
        for line in others[:SHOWN_THREADS]:
            yield Scene("", f"and another thread waits at {_place(line)}")


@dataclass(frozen=True)
class Report:
    """A hang."""

    verdict: str  # "deadlocked" or "stopped"
    probability: float
    span: Span
    processes: tuple[Waiting, ...]
    remedy: str

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        told = [{**asdict(each), "lines": [line._asdict() for line in each.lines]} for each in self.processes]
        found = {"verdict": self.verdict, "probability": self.probability, **self.span._asdict()}
        return {**found, "processes": told, "remedy": self.remedy}

    def text(self) -> str:
        """Return the block that people read."""
        causes = [each for each in self.processes if each.role == "cause"]
        victims = [each for each in self.processes if each.role == "victim"]
        what = "stopped" if self.verdict == "stopped" else "deadlocked: nothing can wake it any more"
        clock = datetime.fromtimestamp(self.span.since).strftime("%H:%M:%S")
        head = f"HUNG since {clock} ({self.span.seconds:.0f} s), {what} (probability {self.probability:.2f})"
        conclusion = "cause: " + ", ".join(each.label for each in causes)
        if victims:
            conclusion += "; victims: " + ", ".join(each.label for each in victims)
        scenes = [scene for each in [*causes, *victims] for scene in each.scenes()]
        return format_story(head, scenes, conclusion) + f"\n  => {self.remedy}"


def _place(line: Frame) -> str:
    return f"{line.file}:{line.line} in {line.function}"


def report_knot(knot: Knot, probability: float, span: Span) -> Report:
    """Report processes that nothing can wake; those in the circle are the cause, or the stopped ones."""
    stopped = tuple(p for p in knot.processes if p.main.kind == "stopped")
    causes = stopped or knot.circle or knot.processes
    told = tuple(_told(process, process in causes) for process in knot.processes)
    kind = "stopped" if stopped else _kind(causes)
    return Report("stopped" if stopped else "deadlocked", probability, span, told, _REMEDIES[kind])


def report_divergence(found: Divergence, probability: float, span: Span) -> Report:
    """Report ranks that have come to different collectives."""
    ranks, told = (*found.cause, *found.victims), []
    for process in ranks:
        place = found.places[process.pid]
        others = tuple(each for each in ranks if found.places[each.pid] != place)
        wanted = ", ".join(f"rank {each.rank}" for each in others) if place.collective else process.main.on
        role = "cause" if process in found.cause else "victim"
        pids = tuple(each.pid for each in others)
        told.append(Waiting(process.pid, process.label, role, wanted, pids, place.collective, (place.at,)))
    return Report("deadlocked", probability, span, tuple(told), _REMEDIES["rank"])


def _kind(causes: tuple[Process, ...]) -> str:
    kinds = [process.main.kind for process in causes if process.main.kind in CLOSED]
    return next((kind for kind in kinds if kind not in ("child", "lock")), kinds[0] if kinds else "lock")


def _told(process: Process, is_cause: bool) -> Waiting:
    main = process.main if process.main.kind != "unknown" else process.threads[0].wait
    on = "stopped" if main.kind == "stopped" else main.on
    if main.kind == "lock" and len(process.threads) > 1:
        on += f" (as its {len(process.threads) - 1} other threads do)"
    others = [pid for pid in main.by if pid != process.pid]
    if others and main.kind != "child":
        on += ", which needs " + ", ".join(f"pid {pid}" for pid in others[:4])
    lines = tuple(line for stack in process.stacks if (line := _users_line(stack)) is not None)
    return Waiting(process.pid, process.label, "cause" if is_cause else "victim", on, main.by, lines=lines)


def _users_line(stack: Stack) -> Frame | None:
    """Return the innermost line that lies outside Python's own library; the innermost of all if there is none."""
    own = [frame for frame in stack if "/lib/python3" not in frame.file and not frame.file.startswith("<")]
    return next(iter(own or stack), None)
