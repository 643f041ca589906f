"""What a run went wrong with, and how it is told."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

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
        return {
            "kind": self.kind,
            "message": self.message,
            "conclusion": self.conclusion or self.message,
            "file": self.where.file if self.where else None,
            "line": self.where.line if self.where else None,
            "schedule": _rows(self.schedule),
            "story": _rows(self.story),
        }


def _rows(scenes: Iterable[tuple[str, str, Place | None]]) -> list[dict[str, Any]]:
    return [
        {"who": who, "what": what, "file": place and place.file, "line": place and place.line}
        for who, what, place in scenes
    ]


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
    place = last_place(error.__traceback__)
    source = linecache.getline(place.file, place.line).strip() if place else ""
    text = str(error) or source.removeprefix("assert ")
    message = f"{who}: {type(error).__name__}: {text}" if text else f"{who}: {type(error).__name__}"
    scene = (who, f"raises {type(error).__name__}{f' in `{source}`' if source else ''}", place)
    return Finding(kind, message + note, (scene,), message, place)


def last_place(trace: TracebackType | None) -> Place | None:
    """Return the innermost line of the program in a traceback."""
    place = None
    while trace is not None:
        if MARK in trace.tb_frame.f_globals:
            code = trace.tb_frame.f_code
            place = Place(code.co_filename, trace.tb_lineno, code.co_name)
        trace = trace.tb_next
    return place
