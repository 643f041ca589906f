"""A collective is a meeting of all ranks of a group, and a message a meeting of two: pure machines.

The ranks of a group call its collectives in one order. So the n-th call of each rank belongs to the n-th meeting, and a
meeting to which two ranks bring different calls is an error that a real backend answers with a hang, or wrong values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paceline.explore.operation import Place


class Call(NamedTuple):
    """A collective as one rank calls it; `name` and `detail` must be the same on all."""

    name: str  # all_reduce, gradient of DDP
    detail: str  # shape, type, operator, root
    place: Place

    def matches(self, other: Call) -> bool:
        return (self.name, self.detail) == (other.name, other.detail)

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

    @property
    def missing(self) -> list[int]:
        return [rank for rank in self.members if rank not in self.calls]


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
class Message:
    """What one rank sends to another."""

    data: Any
    received: bool = False


@dataclass(slots=True)
class Post:
    """The messages on their way: by group, sender, receiver and tag, in the order in which they were sent."""

    messages: dict[tuple[str, int, int, int], list[Message]] = field(default_factory=dict)

    def send(self, group: str, sender: int, receiver: int, tag: int, data: Any) -> Message:
        message = Message(data)
        self.messages.setdefault((group, sender, receiver, tag), []).append(message)
        return message

    def senders(self, group: str, receiver: int, tag: int, sender: int | None) -> list[int]:
        """Return the ranks that have sent something to a receiver, or the one that is asked for if it has."""
        return [
            key[1]
            for key, messages in self.messages.items()
            if messages and (key[0], key[2], key[3]) == (group, receiver, tag) and sender in (None, key[1])
        ]

    def receive(self, group: str, sender: int, receiver: int, tag: int) -> Message:
        message = self.messages[group, sender, receiver, tag].pop(0)
        message.received = True
        return message
