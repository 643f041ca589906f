"""What locks, conditions, semaphores and barriers do, as pure machines: no thread, no clock, no scheduler.

Threads are numbers. Each machine says whether a thread may continue, and changes when it does; `interpose` puts them
behind the names of `threading` and `multiprocessing`.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class LockModel:
    """One thread holds it; if it is reentrant, it counts how often."""

    reentrant: bool = False
    owner: int | None = None
    depth: int = 0

    def free_for(self, thread: int) -> bool:
        return self.depth == 0 or (self.reentrant and self.owner == thread)

    def take(self, thread: int, depth: int = 1) -> None:
        self.owner, self.depth = thread, self.depth + depth

    def release(self, thread: int) -> None:
        """Give up the lock once. A plain lock may be released by another thread than its holder."""
        if self.depth == 0 or (self.reentrant and self.owner != thread):
            raise RuntimeError("cannot release un-acquired lock" if self.reentrant else "release unlocked lock")
        self.depth -= 1
        if self.depth == 0:
            self.owner = None

    def release_all(self) -> int:
        """Give up the lock, however often it was taken; return how often that was."""
        depth, self.owner, self.depth = self.depth, None, 0
        return depth


@dataclass(slots=True, eq=False)
class Ticket:
    """The place of a thread in the queue of a condition."""

    notified: bool = False


@dataclass(slots=True)
class ConditionModel:
    """A condition, without its lock: threads wait in a queue, and a notification wakes those that wait already."""

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


@dataclass(slots=True)
class SemaphoreModel:
    """A number of slots, which never exceeds its bound if it has one."""

    value: int
    bound: int | None = None

    def release(self, count: int) -> None:
        if self.bound is not None and self.value + count > self.bound:
            raise ValueError("Semaphore released too many times")
        self.value += count


@dataclass(slots=True)
class BarrierModel:
    """The last of its parties lets all continue."""

    parties: int
    arrived: int = 0
    generation: int = 0
    broken: bool = False

    def arrive(self) -> tuple[int, int]:
        """Arrive; return the generation, and how many had arrived before."""
        self.arrived += 1
        return self.generation, self.arrived - 1

    def open(self) -> None:
        """Let the parties of this generation continue."""
        self.arrived, self.generation = 0, self.generation + 1

    def passed(self, generation: int) -> bool:
        """Whether the parties of a generation may continue, or the barrier broke."""
        return self.generation > generation or self.broken

    def reset(self) -> None:
        """Begin anew; those that wait fail."""
        self.broken = self.arrived > 0
        self.arrived = 0
