"""What is said of a program that hangs: since when, who waits for whom, cause, victims, remedy. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple

from paceline.concurrency.watcher.causes import Names, cause_of, cause_of_ranks, is_loop, needed, thing
from paceline.concurrency.watcher.graph import DeadlockSet
from paceline.concurrency.watcher.ranks import Divergence
from paceline.concurrency.watcher.samples import Frame, Process, Thread, users_line
from paceline.narrative import Scene, format_story

_VERDICTS = {
    "deadlocked": "deadlocked: nothing can wake it any more",
    "livelocked": "livelocked: it asks again and again for what nothing can give any more",
    "stopped": "stopped",
}
#: Further threads of one process that are shown.
SHOWN_THREADS = 8
#: Characters of a source line that are shown.
LONGEST_LINE = 100


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
    name: str  # "thread collector", or that of a task
    text: str = ""  # the source line

    @property
    def scene(self) -> Scene:
        """The line about the thread."""
        return Scene("", f"{self.name} waits for {self.waits_for}{_at(self.at, self.text)}")


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
    thread: str = ""  # the thread or task that waits, where that is not the main thread
    text: str = ""  # the source line

    def scenes(self) -> Iterator[Scene]:
        """Iterate over the lines about the process and about its further threads."""
        who = self.label + (self.thread and f", {self.thread}")
        at = _at(self.at, self.text)
        if self.collective:
            yield Scene(who, f"is in {self.collective}{at}, waits for {self.waits_for}")
        else:
            yield Scene(who, f"{'is' if self.waits_for == 'stopped' else 'waits for'} {self.waits_for}{at}")
        yield from (thread.scene for thread in self.threads[:SHOWN_THREADS])
        if len(self.threads) > SHOWN_THREADS:
            yield Scene("", f"{len(self.threads) - SHOWN_THREADS} further threads wait too")


@dataclass(frozen=True)
class HangReport:
    """A hang."""

    verdict: str  # "deadlocked" or "stopped"
    probability: float
    span: Span
    processes: tuple[Waiting, ...]
    remedy: str  # for this cause
    cause: str = ""  # in one line
    ranks: int = 0  # of the job that hangs; 0 if it is none
    told_on: str = ""  # the machine whose watcher shows the block, if it is another one
    findings: tuple[Confirmed, ...] = ()  # of `paceline check`, where the source is at hand

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        processes = [_plain(each) for each in self.processes]
        header = {"verdict": self.verdict, "probability": self.probability, **self.span._asdict()}
        return {
            **header,
            "processes": processes,
            "cause": self.cause,
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
        scenes = [scene for each in [*causes, *victims] for scene in each.scenes()]
        held_up = f"\n  => victims: {', '.join(each.label for each in victims)}" if victims else ""
        notes = [
            f"\n  => `paceline check` reports {each.rule} at {each.path}:{each.line}: {each.message}"
            for each in self.findings
        ]
        conclusion = f"cause: {self.cause}{held_up}\n  => {self.remedy}"
        return format_story(head, scenes, conclusion) + "".join(notes)


def _plain(waiting: Waiting) -> dict[str, Any]:
    threads = [{**each._asdict(), "at": each.at and each.at._asdict()} for each in waiting.threads]
    return {**asdict(waiting), "at": waiting.at and waiting.at._asdict(), "threads": threads}


def _at(line: Frame | None, text: str) -> str:
    if line is None:
        return ""
    shown = text if len(text) <= LONGEST_LINE else text[:LONGEST_LINE] + " ..."
    return f" at {line.file}:{line.line} in {line.function}" + (f": {shown}" if text else "")


def report_knot(
    knot: DeadlockSet, probability: float, span: Span, verdict: str = "deadlocked", kind: str = ""
) -> HangReport:
    """Report threads that nothing can wake; the processes in the circle are the cause, or the stopped ones."""
    stopped = tuple(p for p in knot.processes if p.main.kind == "stopped")
    causes = stopped or knot.circle or knot.processes
    names = Names(knot.processes)
    processes = tuple(_waiting(process, process in causes, knot, names) for process in _in_order(causes, knot))
    cause = cause_of(knot, causes, kind)
    return HangReport("stopped" if stopped else verdict, probability, span, processes, cause.remedy, cause.words)


def _in_order(causes: tuple[Process, ...], knot: DeadlockSet) -> list[Process]:
    """Return the processes of a knot, those of the circle each before the one that it waits for."""
    owners = {thread.tid: process for process in knot.processes for thread in process.threads}
    ahead = [owners[tid] for tid in knot.core if tid in owners]
    ordered = list(dict.fromkeys(ahead))
    for process in causes:
        following: Process | None = process
        while following is not None and following not in ordered:
            ordered.append(following)
            pids = following.main.by
            following = next((each for each in causes if each.pid in pids and each not in ordered), None)
    return [*ordered, *(each for each in knot.processes if each not in ordered)]


def report_divergence(divergence: Divergence, probability: float, span: Span) -> HangReport:
    """Report ranks that wait for each other for ever."""
    ranks, processes = (*divergence.cause, *divergence.victims), []
    names = Names(ranks)
    for process in ranks:
        place, subject = divergence.places[process.pid], process.subject_of(process.pid)
        others = tuple(
            each for each in ranks if each != process and (divergence.together or divergence.places[each.pid] != place)
        )
        main = next(each for each in process.threads if each.tid == process.pid)
        on = ", ".join(f"rank {each.rank}" for each in others) if place.collective else thing(process, main, names)
        role = "cause" if process in divergence.cause else "victim"
        pids = tuple(each.pid for each in others)
        processes.append(
            Waiting(process.pid, process.label, role, on, pids, place.collective, place.at, text=subject.call)
        )
    first = min(ranks, key=lambda each: each.rank or 0)
    cause = cause_of_ranks(divergence, names)
    return HangReport(
        "deadlocked", probability, span, tuple(processes), cause.remedy, cause.words, len(ranks), first.host
    )


def _waiting(process: Process, is_cause: bool, knot: DeadlockSet, names: Names) -> Waiting:
    """Tell of the threads of a process that hang: those that hold each other in order, then the main thread."""
    order = {tid: at for at, tid in enumerate(knot.core)}
    stuck = sorted(
        (each for each in process.threads if each.tid in knot.threads),
        key=lambda each: (order.get(each.tid, len(order)), each.tid != process.pid),
    )
    first, *others = stuck
    on = "stopped" if first.wait.kind == "stopped" else _on(process, first, names)
    threads = tuple(
        WaitingThread(
            t.tid,
            _on(process, t, names),
            t.wait.owners,
            line,
            _role(t.tid in knot.core or (not knot.core and is_cause)),
            names.thread(t.tid, process),
            process.subject_of(t.tid).text,
        )
        for t in others
        if (line := users_line(process.stack_of(t.tid))) or t.wait.owners
    )
    at, text = users_line(process.stack_of(first.tid)), process.subject_of(first.tid).text
    name = "" if first.tid == process.pid else names.thread(first.tid, process)
    by = first.wait.by
    return Waiting(process.pid, process.label, _role(is_cause), on, by, at=at, threads=threads, thread=name, text=text)


def _role(is_cause: bool) -> str:
    return "cause" if is_cause else "victim"


def _on(process: Process, thread: Thread, names: Names) -> str:
    """Return what a thread waits for, who holds it, and which other processes could end the wait."""
    if is_loop(process, thread):
        return "one of the tasks of its event loop"
    return thing(process, thread, names) + needed(process, thread.wait)
