"""Admission: how many instances are under way.

One worker admits instances in their order: the next one as soon as fewer than `active` are under way (max_active_keys
in the paper). An instance has ended when each of its holders has computed all of its gradients. Between two epochs all
come to their end, so that an evaluation sees parameters that no instance is still changing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    def messages(self, workers: int, holders: Callable[[int], Sequence[int]]) -> list[Message]:
        """Begin the instances that may begin; return what to tell whom.

        Args:
            workers: all of them are told when a pass has come to its end.
            holders: returns the workers that have a part in an instance.
        """
        outbox: list[Message] = []
        while not self.finished:
            while self.next < self.passes[self.drained] and len(self.open) < self.active:
                mine = holders(self.next)
                self.open[self.next] = len(mine)
                outbox += [Message(worker, BEGIN, self.next) for worker in mine]
                self.next += 1
            if self.open:
                break
            outbox += [Message(worker, DRAINED, -1, self.drained) for worker in range(workers)]
            self.drained += 1
        return outbox

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
