"""A lock: one thread holds it; a reentrant one counts how often."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LockModel:
    """`threading.Lock`, or `RLock` if it is reentrant."""

    reentrant: bool = False
    owner: int | None = None
    depth: int = 0

    def free_for(self, thread: int) -> bool:
        return self.depth == 0 or (self.reentrant and self.owner == thread)

    def take(self, thread: int) -> None:
        self.owner, self.depth = thread, self.depth + 1

    def release(self, thread: int) -> None:
        """Give up the lock once. A plain lock may be released by another thread than its holder."""
        if self.depth == 0:
            raise RuntimeError("cannot release un-acquired lock" if self.reentrant else "release unlocked lock")
        if self.reentrant and self.owner != thread:
            raise RuntimeError("cannot release un-acquired lock")
        self.depth -= 1
        if self.depth == 0:
            self.owner = None

    def release_all(self) -> int:
        """Give up the lock, however often it was taken; return how often that was."""
        depth, self.owner, self.depth = self.depth, None, 0
        return depth

    def take_again(self, thread: int, depth: int) -> None:
        """Take it as often as `release_all` gave it up."""
        self.owner, self.depth = thread, depth
