"""What is said of a program that hangs: since when, who waits for whom, cause, victims, remedy. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from paceline.narrative import Scene, format_story
from paceline.watcher.graph import Knot
from paceline.watcher.ranks import Divergence
from paceline.watcher.samples import CLOSED, Frame, Process

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


@dataclass(frozen=True)
class Waiting:
    """One process of a hang."""

    pid: int
    label: str
    role: str  # "cause" or "victim"
    waits_for: str
    waits_for_pids: tuple[int, ...]
    at: Frame | None  # the user's line, where stacks can be had


@dataclass(frozen=True)
class Report:
    """A hang."""

    verdict: str  # "deadlocked" or "stopped"
    probability: float
    seconds: float  # since when nothing has moved
    processes: tuple[Waiting, ...]
    remedy: str

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return asdict(self)

    def text(self) -> str:
        """Return the block that people read."""
        causes = [each for each in self.processes if each.role == "cause"]
        victims = [each for each in self.processes if each.role == "victim"]
        what = "stopped" if self.verdict == "stopped" else "deadlocked: nothing can wake it any more"
        scenes = [Scene(each.label, _sentence(each)) for each in [*causes, *victims]]
        conclusion = "cause: " + ", ".join(each.label for each in causes)
        if victims:
            conclusion += "; victims: " + ", ".join(each.label for each in victims)
        head = f"HUNG for {self.seconds:.0f} s, {what} (probability {self.probability:.2f})"
        return format_story(head, scenes, conclusion) + f"\n  => {self.remedy}"


def _sentence(each: Waiting) -> str:
    where = f" at {each.at.file}:{each.at.line} in {each.at.function}" if each.at else ""
    return f"waits for {each.waits_for}{where}" if each.waits_for != "stopped" else f"is stopped{where}"


def report_knot(knot: Knot, probability: float, seconds: float) -> Report:
    """Report processes that nothing can wake; those in the circle are the cause, or the stopped ones."""
    stopped = tuple(p for p in knot.processes if p.main.kind == "stopped")
    causes = stopped or knot.circle or knot.processes
    told = tuple(_told(process, process in causes) for process in knot.processes)
    kind = "stopped" if stopped else _kind(causes)
    return Report("stopped" if stopped else "deadlocked", probability, seconds, told, _REMEDIES[kind])


def report_divergence(found: Divergence, probability: float, seconds: float) -> Report:
    """Report ranks that have come to different collectives."""
    told = []
    for process in (*found.cause, *found.victims):
        place = found.places[process.pid]
        others = found.victims if process in found.cause else found.cause
        names = ", ".join(f"rank {each.rank}" for each in others)
        wanted = f"{names} in {place.collective}" if place.collective else process.main.on or "something else"
        role = "cause" if process in found.cause else "victim"
        told.append(Waiting(process.pid, process.label, role, wanted, tuple(each.pid for each in others), place.at))
    return Report("deadlocked", probability, seconds, tuple(told), _REMEDIES["rank"])


def _kind(causes: tuple[Process, ...]) -> str:
    kinds = [process.main.kind for process in causes if process.main.kind in CLOSED]
    return next((kind for kind in kinds if kind not in ("child", "lock")), kinds[0] if kinds else "lock")


def _told(process: Process, is_cause: bool) -> Waiting:
    waits = [thread.wait for thread in process.threads]
    main = process.main if process.main.kind != "unknown" else waits[0]
    role = "cause" if is_cause else "victim"
    on = "stopped" if main.kind == "stopped" else main.on
    if main.kind == "lock" and len(waits) > 1:
        on += f", as its {len(waits) - 1} other threads do"
    others = [pid for pid in main.by if pid != process.pid]
    if others and main.kind != "child":
        on += ", which needs " + ", ".join(f"pid {pid}" for pid in others[:4])
    return Waiting(process.pid, process.label, role, on, main.by, _users_line(process))


def _users_line(process: Process) -> Frame | None:
    """Return the innermost line of the main thread that lies outside Python's own library."""
    if not process.stacks or not process.stacks[0]:
        return None
    own = [frame for frame in process.stacks[0] if "/lib/python3" not in frame.file and not frame.file.startswith("<")]
    return own[0] if own else process.stacks[0][0]
