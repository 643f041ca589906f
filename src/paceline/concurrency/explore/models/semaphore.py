"""A semaphore: a number of slots."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SemaphoreModel:
    """`threading.Semaphore`, or `BoundedSemaphore` if it has a bound."""

    value: int
    bound: int | None = None

    def take(self) -> None:
        self.value -= 1

    def release(self, count: int) -> None:
        if self.bound is not None and self.value + count > self.bound:
            raise ValueError("Semaphore released too many times")
        self.value += count
