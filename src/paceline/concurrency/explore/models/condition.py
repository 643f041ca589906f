"""A condition: threads wait in a queue, and a notification wakes those that wait already."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Ticket:
    """The place of a thread in the queue."""

    notified: bool = False


@dataclass(slots=True)
class ConditionModel:
    """`threading.Condition`, without its lock."""

    waiting: list[Ticket] = field(default_factory=list)

    def wait(self) -> Ticket:
        ticket = Ticket()
        self.waiting.append(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Stop waiting, after a time-out."""
        if ticket in self.waiting:
            self.waiting.remove(ticket)

    def notify(self, count: int) -> int:
        """Wake the threads that have waited longest; return how many those are."""
        woken, self.waiting = self.waiting[:count], self.waiting[count:]
        for ticket in woken:
            ticket.notified = True
        return len(woken)
