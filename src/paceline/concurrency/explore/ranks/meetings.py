"""A collective is a meeting of all ranks of a group, and a message a meeting of two: pure machines.

The ranks of a group call its collectives in one order. So the n-th call of each rank belongs to the n-th meeting, and a
meeting to which two ranks bring different calls is an error that a real backend answers with a hang, or wrong values.
"""

from __future__ import annotations

from collections import Counter, defaultdict
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

    calls: dict[int, Call] = field(default_factory=dict)  # by rank of the world
    data: dict[int, Any] = field(default_factory=dict)

    def different(self) -> tuple[int, int] | None:
        """Return two ranks that brought different calls."""
        first, *others = sorted(self.calls)
        return next(((first, each) for each in others if not self.calls[each].matches(self.calls[first])), None)


@dataclass(slots=True, eq=False)
class Parcel:
    """A message, or a request for one: it is received as soon as the two have met."""

    sender: int | None  # of a request None, if it is for a message from any rank
    tag: int | None  # of a request None, if it is for a message with any tag
    is_request: bool
    data: Any = None
    met: Parcel | None = None

    def fits(self, other: Parcel) -> bool:
        pairs = ((self.sender, other.sender), (self.tag, other.tag))
        return self.is_request != other.is_request and all(None in (one, two) or one == two for one, two in pairs)


@dataclass(slots=True, eq=False)
class Group:
    """The meetings of a process group, and its messages and requests that have not met, the oldest first."""

    members: tuple[int, ...]  # ranks of the world
    meetings: list[Meeting] = field(default_factory=list)
    calls: Counter[int] = field(default_factory=Counter)  # how many each rank has made
    waiting: dict[int, list[Parcel]] = field(default_factory=lambda: defaultdict(list))  # by receiver
    open: set[int] = field(default_factory=set)  # receivers that have asked for a message from any rank

    def arrive(self, rank: int, call: Call, data: Any) -> Meeting:
        """Bring the next call of a rank to its meeting."""
        number = self.calls[rank]
        self.calls[rank] += 1
        if number == len(self.meetings):
            self.meetings.append(Meeting())
        meeting = self.meetings[number]
        meeting.calls[rank], meeting.data[rank] = call, data
        return meeting

    def bring(self, receiver: int, parcel: Parcel) -> Parcel:
        """Bring a parcel to the oldest one that fits, or let it wait for one."""
        waiting = self.waiting[receiver]
        other = next((each for each in waiting if parcel.fits(each)), None)
        if other is None:
            waiting.append(parcel)
        else:
            waiting.remove(other)
            parcel.met, other.met = other, parcel
        return parcel
