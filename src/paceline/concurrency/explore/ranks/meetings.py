"""A collective is a meeting of all ranks of a group, and a message a meeting of two: pure machines.

The ranks of a group call its collectives in one order. So the n-th call of each rank belongs to the n-th meeting, and a
meeting to which two ranks bring different calls is an error that a real backend answers with a hang, or wrong values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paceline.concurrency.explore.operation import Place


class Call(NamedTuple):
    """A collective as one rank calls it; `kind` and `detail` must be the same on all, and `name`, but for Join."""

    name: str  # all_reduce, gradient of DDP
    is_joined: bool  # the rank answers, in Join, what the others call
    kind: str  # all_reduce
    detail: str  # shape, type, operator, root
    place: Place

    def matches(self, other: Call) -> bool:
        same_name = self.is_joined or other.is_joined or self.name == other.name
        return same_name and (self.kind, self.detail) == (other.kind, other.detail)

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True, eq=False)
class Meeting:
    """One collective of a group."""

    members: tuple[int, ...]  # ranks of the world
    calls: dict[int, Call] = field(default_factory=dict)
    data: dict[int, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.calls) == len(self.members)


@dataclass(slots=True, eq=False)
class Group:
    """The meetings of a process group."""

    members: tuple[int, ...]
    meetings: list[Meeting] = field(default_factory=list)
    calls: dict[int, int] = field(default_factory=dict)  # how many each rank has made

    def arrive(self, rank: int, call: Call, data: Any) -> Meeting:
        """Bring the next call of a rank to its meeting."""
        number = self.calls.get(rank, 0)
        self.calls[rank] = number + 1
        if number == len(self.meetings):
            self.meetings.append(Meeting(self.members))
        meeting = self.meetings[number]
        meeting.calls[rank], meeting.data[rank] = call, data
        return meeting


def different(meeting: Meeting) -> tuple[int, int] | None:
    """Return two ranks that brought different calls to a meeting."""
    ranks = sorted(meeting.calls)
    first = meeting.calls[ranks[0]]
    other = next((rank for rank in ranks if not meeting.calls[rank].matches(first)), None)
    return None if other is None else (ranks[0], other)


@dataclass(slots=True, eq=False)
class Parcel:
    """A message, or a request for one: it is received as soon as the two have met."""

    sender: int | None  # of a request None, if it is for a message from any rank
    is_request: bool
    data: Any = None
    met: Parcel | None = None

    def fits(self, other: Parcel) -> bool:
        is_between = None in (self.sender, other.sender) or self.sender == other.sender
        return is_between and self.is_request != other.is_request


@dataclass(slots=True)
class Post:
    """Messages and requests that have not met: by group, receiver and tag, the oldest first."""

    waiting: dict[tuple[str, int, int], list[Parcel]] = field(default_factory=dict)

    def bring(self, group: str, receiver: int, tag: int, parcel: Parcel) -> Parcel:
        """Bring a parcel to the oldest one that fits, or let it wait for one."""
        waiting = self.waiting.setdefault((group, receiver, tag), [])
        other = next((each for each in waiting if parcel.fits(each)), None)
        if other is None:
            waiting.append(parcel)
        else:
            waiting.remove(other)
            parcel.met, other.met = other, parcel
        return parcel
