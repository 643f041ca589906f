"""Admission: how many instances are under way.

One worker admits instances in their order: the next one as soon as fewer than `active` are under way (max_active_keys
in the paper). An instance has ended when each of its holders has computed all of its gradients. Between two epochs all
come to their end, so that an evaluation sees parameters that no instance is still changing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.algorithms.dataflow import BEGIN, DRAINED, Message


class Admission:
    """Admits instances 0, 1, ... up to the last of each pass; `passes` holds the number behind the last of each."""

    def __init__(self, passes: Sequence[int], active: int) -> None:
        self.passes, self.active, self.next = tuple(passes), active, 0
        #: For each instance under way, the holders that have not ended it yet.
        self.open: dict[int, int] = {}
        #: Passes after which the workers were told that everything has ended.
        self.drained = 0

    @property
    def may_begin(self) -> bool:
        """Whether the next instance may begin."""
        return self.next < self.passes[self.drained] and len(self.open) < self.active

    def begin(self, holders: Sequence[int]) -> list[Message]:
        """Begin the next instance; return the messages to the workers that have a part in it."""
        instance = self.next
        self.open[instance] = len(holders)
        self.next += 1
        return [Message(worker, BEGIN, instance) for worker in holders]

    def drain(self, workers: int) -> list[Message]:
        """End a pass, of which nothing is under way; return the messages to all workers."""
        self.drained += 1
        return [Message(worker, DRAINED, -1, self.drained - 1) for worker in range(workers)]

    def ended(self, instance: int) -> None:
        """Take note that one of an instance's holders has ended it."""
        self.open[instance] -= 1
        if not self.open[instance]:
            del self.open[instance]

    @property
    def finished(self) -> bool:
        return self.drained == len(self.passes)

    def key(self) -> tuple[Any, ...]:
        return self.next, tuple(sorted(self.open.items())), self.drained

    def copy(self) -> Admission:
        copied = Admission(self.passes, self.active)
        copied.next, copied.open, copied.drained = self.next, dict(self.open), self.drained
        return copied
