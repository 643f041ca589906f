"""What is said of a program that hangs: since when, who waits for whom, cause, victims, remedy. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple

from paceline.narrative import Scene, format_story
from paceline.watcher.graph import Knot
from paceline.watcher.ranks import Divergence
from paceline.watcher.samples import A_RESULT, CLOSED, ENDED, Frame, Process, Stack, Wait

_REMEDIES = {
    "rank": "let every rank call the same collectives in the same order: look for a condition on the rank, on data or "
    "on an exception around the lines above (`paceline check` reports such conditions)",
    "together": "let every rank call it with the same group, sizes, types and root, and as often: all ranks are at one "
    "line but do not meet there, so look for what differs between them before (`paceline check` reports conditions)",
    "gil": "do not wait in C code for a lock while holding Python's interpreter lock (release it around the wait)",
    "monitor": "enter monitors (`synchronized`) in one order everywhere, and wait for no other thread inside one",
    "owned": "take locks in one order everywhere, and none again in the thread that holds it, unless it is an RLock",
    "lock": "let what is to release, set, notify or put do so on every path, also when it fails; take no lock twice; "
    "a fork while a thread holds a lock leaves it locked in the child (use the start method spawn)",
    "shared lock": "let the process that took the lock, semaphore or queue give it back, also when it fails",
    "pipe": "read from a child's pipes while it runs (communicate()), and close the ends that a process does not use: "
    "a reader only sees the end when no writer is left",
    "named pipe": "let one process open a named pipe to write and another one to read, several of them in one order, "
    "and do so also when it fails: opening waits for the other end",
    "socket": "let one side read while the other writes: two that both wait to read, or both to write, never move",
    "child": "read what a child writes before waiting for its end, and end what it waits for",
    "task": "let what is to set, notify, put, release or end it do so on every path, also when it fails or is "
    "cancelled; no task may take a lock of asyncio that it holds, and all take several of them in one order",
    "asks": "let what gives it, or is to end it, also do so when it fails, and give waits a deadline",
    "pool": "the workers of the pool end as soon as they start, and are started again: read what they print, look at "
    "the pool's initializer and at what a worker imports, and start processes under `if __name__ == '__main__':` only",
    "file lock": "take file locks in one order everywhere",
    "stopped": "continue it with `kill -CONT PID`, or find what stopped it: Ctrl-Z, or reading the terminal in the "
    "background",
}
_VERDICTS = {
    "deadlocked": "deadlocked: nothing can wake it any more",
    "livelocked": "livelocked: it asks again and again for what nothing can give any more",
    "stopped": "stopped",
}
_END = "the end of a thread"
#: Further threads of one process that are shown.
SHOWN_THREADS = 8


class Span(NamedTuple):
    """Since when nothing has moved."""

    since: float  # seconds since 1970
    seconds: float


class WaitingThread(NamedTuple):
    """One thread of a hang besides what is said of its process."""

    tid: int
    waits_for: str
    held_by: tuple[int, ...]  # threads
    at: Frame | None
    role: str  # "cause" or "victim"
    name: str  # "thread 4711", or that of a task

    @property
    def scene(self) -> Scene:
        """The line about the thread."""
        return Scene("", f"{self.name} waits for {self.waits_for}{_at(self.at)}")


class Confirmed(NamedTuple):
    """A finding of the checker about a line at which the program hangs."""

    path: str
    line: int
    rule: str
    message: str
    fingerprint: str


@dataclass(frozen=True)
class Waiting:
    """One process of a hang."""

    pid: int
    label: str
    role: str  # "cause" or "victim"
    waits_for: str  # of its main thread, or of the first thread that hangs
    waits_for_pids: tuple[int, ...]
    collective: str = ""  # that a rank is in
    at: Frame | None = None  # the user's line, where the stack can be had
    threads: tuple[WaitingThread, ...] = ()  # further ones, those that hold each other first
    task: str = ""  # the task that waits, where the thread that runs it does not

    @property
    def causing(self) -> str:
        """The threads that hold each other, where they are only some of the process."""
        names = [each.name for each in self.threads if each.role == "cause"]
        if self.task:
            return f", {', '.join([self.task, *names])}"
        return f", {', '.join(names)}" if names and len(names) < len(self.threads) + 1 else ""

    def scenes(self) -> Iterator[Scene]:
        """Iterate over the lines about the process and about its further threads."""
        if self.collective:
            yield Scene(self.label, f"is in {self.collective}{_at(self.at)}, waits for {self.waits_for}")
        else:
            yield Scene(
                self.label + (self.task and f", {self.task}"),
                f"{'is' if self.waits_for == 'stopped' else 'waits for'} {self.waits_for}{_at(self.at)}",
            )
        yield from (thread.scene for thread in self.threads[:SHOWN_THREADS])
        if len(self.threads) > SHOWN_THREADS:
            yield Scene("", f"{len(self.threads) - SHOWN_THREADS} further threads wait too")


@dataclass(frozen=True)
class Report:
    """A hang."""

    verdict: str  # "deadlocked" or "stopped"
    probability: float
    span: Span
    processes: tuple[Waiting, ...]
    remedy: str
    told_on: str = ""  # the machine whose watcher shows the block, if it is another one
    findings: tuple[Confirmed, ...] = ()  # of `paceline check`, where the source is at hand

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        told = [_plain(each) for each in self.processes]
        found = {"verdict": self.verdict, "probability": self.probability, **self.span._asdict()}
        return {
            **found,
            "processes": told,
            "remedy": self.remedy,
            "told_on": self.told_on,
            "findings": [each._asdict() for each in self.findings],
        }

    def text(self) -> str:
        """Return the block that people read."""
        causes = [each for each in self.processes if each.role == "cause"]
        victims = [each for each in self.processes if each.role == "victim"]
        what = _VERDICTS[self.verdict]
        clock = datetime.fromtimestamp(self.span.since).strftime("%H:%M:%S")
        head = f"HUNG since {clock} ({self.span.seconds:.0f} s), {what} (probability {self.probability:.2f})"
        if self.told_on:
            return f"{head}: the watcher on {self.told_on}, where the job's first rank is, shows who waits for whom"
        conclusion = "cause: " + ", ".join(each.label + each.causing for each in causes)
        if victims:
            conclusion += "; victims: " + ", ".join(each.label for each in victims)
        scenes = [scene for each in [*causes, *victims] for scene in each.scenes()]
        said = [
            f"\n  => `paceline check` reports {each.rule} at {each.path}:{each.line}: {each.message}"
            for each in self.findings
        ]
        return format_story(head, scenes, conclusion) + f"\n  => {self.remedy}" + "".join(said)


def _plain(told: Waiting) -> dict[str, Any]:
    threads = [{**each._asdict(), "at": each.at and each.at._asdict()} for each in told.threads]
    return {**asdict(told), "at": told.at and told.at._asdict(), "threads": threads}


def _at(line: Frame | None) -> str:
    return f" at {line.file}:{line.line} in {line.function}" if line else ""


def report_knot(knot: Knot, probability: float, span: Span, verdict: str = "deadlocked", kind: str = "") -> Report:
    """Report threads that nothing can wake; the processes in the circle are the cause, or the stopped ones.

    The remedy is that of a kind of waits; without one, of the waits of the cause.
    """
    stopped = tuple(p for p in knot.processes if p.main.kind == "stopped")
    causes = stopped or knot.circle or knot.processes
    told = tuple(_told(process, process in causes, knot) for process in knot.processes)
    kind = kind or ("stopped" if stopped else _kind(causes, knot))
    return Report("stopped" if stopped else verdict, probability, span, told, _REMEDIES[kind])


def report_divergence(found: Divergence, probability: float, span: Span) -> Report:
    """Report ranks that wait for each other for ever."""
    ranks, told = (*found.cause, *found.victims), []
    for process in ranks:
        place = found.places[process.pid]
        others = tuple(
            each for each in ranks if each != process and (found.together or found.places[each.pid] != place)
        )
        wanted = ", ".join(f"rank {each.rank}" for each in others) if place.collective else process.main.on
        role = "cause" if process in found.cause else "victim"
        pids = tuple(each.pid for each in others)
        told.append(Waiting(process.pid, process.label, role, wanted, pids, place.collective, place.at))
    first = min(ranks, key=lambda each: each.rank or 0)
    remedy = _REMEDIES["together" if found.together else "rank"]
    return Report("deadlocked", probability, span, tuple(told), remedy, first.host)


def _kind(causes: tuple[Process, ...], knot: Knot) -> str:
    kinds = [
        t.wait.kind for p in causes for t in p.threads if t.tid in (knot.core or knot.threads) and t.wait.kind in CLOSED
    ]
    if "task" in kinds:
        return "task"
    if {"pipe", "child"} <= set(kinds):
        return "child"
    others = [kind for kind in kinds if kind not in ("child", "lock")]
    asks = any(t.wait.polls == "asks" for p in causes for t in p.threads if t.tid in knot.threads)
    owned = any(t.wait.owners and t.wait.on != _END for p in causes for t in p.threads if t.tid in knot.core)
    return next(iter(others + ["asks"] * asks + ["owned"] * owned + kinds), "lock")


def _told(process: Process, is_cause: bool, knot: Knot) -> Waiting:
    """Tell of the threads of a process that hang: the main thread first, then those that hold each other."""
    stuck = sorted(
        (each for each in process.threads if each.tid in knot.threads),
        key=lambda each: (each.tid != process.pid, each.tid not in knot.core),
    )
    first, *others = stuck
    wait = first.wait
    on = "stopped" if wait.kind == "stopped" else _on(process, wait)
    needed = [pid for pid in wait.by if pid != process.pid]
    if needed and wait.kind != "child" and not wait.owners:
        on += ", which needs " + ", ".join(f"pid {pid}" for pid in needed[:4])
    told = tuple(
        WaitingThread(
            t.tid,
            _on(process, t.wait),
            t.wait.owners,
            line,
            _role(t.tid in knot.core or (not knot.core and is_cause)),
            _thread_name(process, t.tid),
        )
        for t in others
        if (line := users_line(process.stack_of(t.tid))) or t.wait.owners
    )
    at = users_line(process.stack_of(first.tid))
    return Waiting(process.pid, process.label, _role(is_cause), on, wait.by, at=at, threads=told, task=first.task)


def _role(is_cause: bool) -> str:
    return "cause" if is_cause else "victim"


def _on(process: Process, wait: Wait) -> str:
    """Return what a thread waits for, and who holds it."""
    if not wait.owners:
        return wait.on
    names = [_thread_name(process, owner) for owner in wait.owners]
    if wait.on == A_RESULT:
        return f"{wait.on}, which {' and '.join(names)} delivers"
    if wait.on in (_END, "the end of a task"):
        return "the end of " + " and ".join(names)
    return f"{wait.on} that {' and '.join(names)} holds"


def _thread_name(process: Process, tid: int) -> str:
    if tid == ENDED:
        return "a thread that has ended"
    task = next((each.task for each in process.threads if each.tid == tid), "")
    return task or ("the main thread" if tid == process.pid else f"thread {tid}")


def users_line(stack: Stack) -> Frame | None:
    """Return the innermost line that lies outside Python's own library; the innermost of all if there is none."""
    own = [frame for frame in stack if "/lib/python3" not in frame.file and not frame.file.startswith("<")]
    return next(iter(own or stack), None)
