"""What a run went wrong with, and how it is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.concurrency.explore.operation import Place
from paceline.narrative import Scene, format_story

Scenes = tuple[tuple[str, str, Place | None], ...]  # who does what, at which line


@dataclass(frozen=True, slots=True)
class Finding:
    """What went wrong in one run."""

    kind: str  # deadlock, lost wake-up, exception, never ends, too long, data race, results differ, ranks differ
    message: str
    story: Scenes = ()
    conclusion: str = ""
    place: Place | None = None

    @property
    def where(self) -> Place | None:
        """The line that a finding is about."""
        return self.place or next((place for _, _, place in self.story if place is not None and place.line), None)

    @property
    def identity(self) -> tuple[str, str]:
        """What stays the same when the schedule is made shorter."""
        return self.kind, self.message if self.kind in ("exception", "data race") else ""

    def text(self) -> str:
        """Return the finding as lines, in the form of `check` and `prove`."""
        head = f"{shown(self.where)}: {self.kind}: {self.message}" if self.where else f"{self.kind}: {self.message}"
        scenes = [
            Scene(who, f"{shown(place)}: {what}" if place and place.line else what) for who, what, place in self.story
        ]
        return format_story(head, scenes, self.conclusion or self.message)

    def to_dict(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return {
            "kind": self.kind,
            "message": self.message,
            "conclusion": self.conclusion,
            "file": self.where.file if self.where else None,
            "line": self.where.line if self.where else None,
            "story": [
                {"who": who, "what": what, "file": place and place.file, "line": place and place.line}
                for who, what, place in self.story
            ],
        }


def at(place: Place | None) -> str:
    """Return a place as the end of a clause."""
    return f" at {shown(place)}" if place and place.line else ""


def shown(place: Place) -> str:
    """Return a place as it is printed: the file as seen from here, and the line."""
    try:
        file = str(Path(place.file).relative_to(Path.cwd()))
    except ValueError:
        file = place.file
    return f"{file}:{place.line}"
