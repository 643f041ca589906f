"""What a thread is about to do: all that a strategy knows of it. Between two operations no other thread runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

#: Reads of one location commute, and so do marks; every other pair conflicts. Storing an item *marks* its container,
#: which conflicts with a loop over the container, but not with the storing of other items.
Mode = Literal["read", "mark", "write"]


def conflict(one: Mode, other: Mode) -> bool:
    return one != other or one == "write"


class Touch(NamedTuple):
    """A location that an operation reads or changes."""

    location: Hashable
    mode: Mode


class Place(NamedTuple):
    """A line of the program under test."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line}"


@dataclass(slots=True, eq=False)
class Operation:
    """One step of a thread.

    `acquires` and `releases` say how it orders threads: what happened before a release happens before the acquire of
    the same location that follows it. Accesses of data order nothing, so that they can race.
    """

    verb: str  # "takes", "reads", "waits for": the story's
    subject: object  # what the story names, by its str()
    touches: tuple[Touch, ...]
    place: Place
    ready: Callable[[], bool] = lambda: True  # whether the step can be made now
    deadline: float | None = None  # the virtual time from which it may give up
    is_timer: bool = False  # the deadline is a point on the clock, rather than the end of a thread's patience
    acquires: bool = False
    releases: bool = False
    is_data: bool = False  # an access of data, rather than of a lock, a queue or a clock
    is_access: bool = False  # of a single attribute, item or variable, which can race
    holder: Callable[[], int | None] = field(default=lambda: None)  # the thread without which it is not ready

    def __reduce__(self) -> Any:
        """Send to another process what a search needs: of the locations, only their equality counts there."""
        return Operation, (self.verb, "", self.touches, Place("", 0, ""))

    def conflicts(self, other: Operation) -> bool:
        """Whether the order of the two matters."""
        pairs = ((mine, theirs) for mine in self.touches for theirs in other.touches)
        return any(mine.location == theirs.location and conflict(mine.mode, theirs.mode) for mine, theirs in pairs)


class Option(NamedTuple):
    """A possible next step: of which thread, and whether its deadline passes instead."""

    thread: int
    expires: bool
