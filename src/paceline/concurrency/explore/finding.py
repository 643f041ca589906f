"""What a run went wrong with, and how it is told."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any, TypeAlias

from paceline.concurrency.explore.operation import Place
from paceline.narrative import Scene, format_story

MARK = "__explore__"  # the name that a rewritten module has
Scenes = tuple[tuple[str, str, Place | None], ...]  # who does what, at which line
#: Kinds that are about the whole run: where its threads are when it is given up says nothing.
OF_THE_RUN = ("never ends", "too long", "results differ", "ranks diverge")


@dataclass(frozen=True, slots=True)
class Finding:
    """What went wrong in one run."""

    kind: str  # deadlock, lost wake-up, exception, never ends, data race, suspected race, results differ, ranks differ
    message: str
    story: Scenes = ()
    conclusion: str = ""
    place: Place | None = None
    schedule: Scenes = ()  # how it came to that: which thread was interrupted where

    @property
    def where(self) -> Place | None:
        return self.place or next((place for _, _, place in self.story if place is not None and place.line), None)

    @property
    def places(self) -> set[tuple[str, int]]:
        """The lines at which it goes wrong. That a thread waits for the end of another one explains nothing."""
        scenes = [each for each in self.story if "waits for the end of " not in each[1]] or self.story
        return {place[:2] for place in (self.place, *(place for _, _, place in scenes)) if place is not None}

    def is_like(self, other: Finding) -> bool:
        """Whether the two are taken to be one mistake: of one kind, with a line in common."""
        if self.kind in OF_THE_RUN or other.kind in OF_THE_RUN or not (self.places or other.places):
            return self.kind == other.kind
        return self.kind == other.kind and not self.places.isdisjoint(other.places)

    def text(self) -> str:
        """Return the finding as lines, in the form of `check` and `prove`."""
        head = f"{shown(self.where)}: {self.kind}: {self.message}" if self.where else f"{self.kind}: {self.message}"
        scenes = [
            Scene(who, f"{shown(place)}: {what}" if place and place.line else what)
            for who, what, place in (*self.schedule, *self.story)
        ]
        return format_story(head, scenes, self.conclusion or self.message)

    def to_dict(self) -> dict[str, Any]:
        schedule, story = (
            [
                {"who": who, "what": what, "file": place and place.file, "line": place and place.line}
                for who, what, place in scenes
            ]
            for scenes in (self.schedule, self.story)
        )
        where = {"file": self.where and self.where.file, "line": self.where and self.where.line}
        words = {"kind": self.kind, "message": self.message, "conclusion": self.conclusion or self.message}
        return {**words, **where, "schedule": schedule, "story": story}


def at(place: Place | None) -> str:
    """Return a place as the end of a clause."""
    return f" at {shown(place)}" if place and place.line else ""


def shown(place: Place) -> str:
    """Return a place as it is printed: the file as seen from here, and the line."""
    return f"{relative(place.file)}:{place.line}"


def relative(file: str) -> str:
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file


def exception_in(who: str, error: BaseException, kind: str = "exception", note: str = "") -> Finding:
    """Describe an exception that ended a thread, a task or the program."""
    place = first_place(reversed(list(walk_tb(error.__traceback__))))
    source = linecache.getline(place.file, place.line).strip() if place else ""
    text = str(error) or source.removeprefix("assert ")
    message = f"{who}: {type(error).__name__}: {text}" if text else f"{who}: {type(error).__name__}"
    scene = (who, f"raises {type(error).__name__}{f' in `{source}`' if source else ''}", place)
    return Finding(kind, message + note, (scene,), message, place)


def of_program(frames: Iterable[tuple[FrameType, int]]) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of the program's own code, leaving out what it generates, as data classes do."""
    return (each for each in frames if MARK in each[0].f_globals and not each[0].f_code.co_filename.startswith("<"))


def first_place(frames: Iterable[tuple[FrameType, int]]) -> Place | None:
    code = ((frame.f_code, line) for frame, line in of_program(frames))
    return next((Place(each.co_filename, line, each.co_name) for each, line in code), None)


# --- Stories: who waits for whom, and the schedule that led there: which thread was interrupted at which line ---------

Run: TypeAlias = Any  # of the scheduler, which calls this module
Task: TypeAlias = Any
LONGEST = 16  # lines of a story
WAITING = {
    "takes": "waits for",
    "gets from": "waits for an item of",
    "puts into": "waits for room in",
    "reads from": "waits for a message of",
    "writes into": "waits for room in",
}


def circle_of(tasks: Sequence[Task], first: Task) -> list[Task]:
    """Return the circle of holders, none of which waits with a deadline, that a wait has closed; empty if none."""
    path: list[Task] = []
    each = first
    while each not in path:
        operation = each.pending
        if each.done or operation is None or operation.deadline is not None or operation.ready():
            return []
        path.append(each)
        holder = operation.holder()
        if holder is None:
            return []
        each = tasks[holder]
    return path if each is first else []


def deadlock(circle: Sequence[Task], others: Sequence[Task]) -> Finding:
    """Describe threads that wait for each other, or that wait for what no thread will do any more."""
    if circle:
        names = [each.name for each in circle]
        chain = ", which waits for ".join([*names[1:], names[0]])
        conclusion = f"deadlock: {names[0]} waits for {chain}" if names[1:] else f"{names[0]} waits for itself"
        message = "threads wait for each other" if names[1:] else "a thread waits for what it holds itself"
        return Finding("deadlock", message, tuple(map(_scene, circle)), conclusion)
    blocked = [each for each in others if each.pending is not None and not each.done]
    ranks = [each for each in blocked if each.pending is not None and each.pending.verb == "calls"]
    if ranks:
        return _hung_ranks(ranks, [each.name for each in others if each.done and each.name.startswith("rank ")])
    blocked.sort(key=lambda each: "the end of" in _scene(each)[1])  # which explains nothing
    for lost in blocked:
        subject = lost.pending.subject if lost.pending else None
        if signal := getattr(subject, "early_signal", None):
            return Finding(
                "lost wake-up",
                f"{lost.name} waits for {subject}, which was notified before it waited",
                ((signal[0], f"sends {subject}, and no thread waits", signal[1]), *map(_scene, blocked)),
                f"{lost.name} waits for ever: test the condition under the lock, in a loop, before each wait",
            )
    everyone = ", ".join(each.name for each in blocked)
    return Finding(
        "deadlock",
        "no thread can continue",
        tuple(scene for each in blocked for scene in (_scene(each), *getattr(each.pending.subject, "scenes", ()))),
        f"{everyone} can never continue: no thread is left that could wake {'it' if len(blocked) == 1 else 'them'}",
    )


def _hung_ranks(ranks: Sequence[Task], ended: Sequence[str]) -> Finding:
    """Describe ranks that wait in collectives which others do not call."""
    calls = [f"{each.name} calls {each.pending.subject}{at(each.pending.place)}" for each in ranks if each.pending]
    if ended:
        calls.append(f"{' and '.join(ended)} {'has' if len(ended) == 1 else 'have'} ended")
    advice = "let every rank call the same collectives, in the same order and equally often"
    return Finding("deadlock", ", ".join(calls), tuple(map(_scene, ranks)), advice)


def _scene(waiter: Task) -> tuple[str, str, Place]:
    operation = waiter.pending
    verb = WAITING.get(operation.verb, operation.verb)
    return waiter.name, f"{verb} {operation.subject}{getattr(operation.subject, 'held', '')}", operation.place


def story_of(finding: Finding, run: Run) -> Finding:
    """Return a finding with the schedule that led to it: a line wherever another thread continues."""
    scenes: list[tuple[str, str, Place | None]] = []
    for step, following in pairwise(run.trace if run.switches else ()):
        thread = step.option.thread
        if following.option.thread != thread:
            operation, who = following.pending.get(thread), run.tasks[thread].name
            could = any(each.thread == thread and not each.expires for each in following.options)
            what = f"{operation.verb} {operation.subject}" if operation else "runs to its end"
            before = "" if operation is None else "is interrupted before it " if could else "runs until it "
            scenes.append((who, before + what, operation.place if operation else None))
    if len(scenes) > LONGEST:
        left_out = len(scenes) - LONGEST
        scenes = [("", f"({left_out} earlier stretches are left out)", None), *scenes[-LONGEST:]]
    return replace(finding, schedule=tuple(scenes))
