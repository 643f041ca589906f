"""A worker's post in the arena: what every worker has, whatever it holds of the model."""

from __future__ import annotations

import os

from paceline.core.agenda import Agenda
from paceline.core.rules import Memory
from paceline.engines.local.arena import ABORT, Arena
from paceline.engines.local.process import memory
from paceline.engines.local.state_buffers import ResumePoint
from paceline.links.shared_memory import Doorbell, Waiter
from paceline.plans.plan import Plan
from paceline.runs.trace import Kind


class WorkerContext:
    def __init__(
        self, number: int, arena: Arena, plan: Plan, agenda: Agenda, deadline: float, life: ResumePoint
    ) -> None:
        self.number, self.arena, self.plan, self.agenda, self.life = number, arena, plan, agenda, life
        self.doorbells = [Doorbell(a, b.descriptor) for a, b in zip(arena.asleep, arena.doorbells, strict=True)]
        self.waiter = Waiter(
            number,
            self.doorbells[number],
            self.called_off,
            deadline,
            lambda: f"in update {arena.doing[number]}",
            crowded=plan.workers * plan.threads > len(os.sched_getaffinity(0)),
        )
        self.trace = arena.traces[number]
        self.peak = 0  # bytes of memory that it has had at most, besides what is shared; 0: not looked at yet
        self.carried: list[Memory] = []  # what a codec owes each parameter

    def look_back(self) -> None:
        """At the memory that the training took, without what is shared or libraries' files; before its result goes to
        memory that is shared.
        """
        self.peak = memory("VmHWM") - memory("RssShmem") - memory("RssFile")

    def called_off(self) -> bool:
        """Whether nobody need wait any more."""
        return bool(self.arena.control[ABORT])

    def record(self, kind: Kind, *rest: float) -> None:
        if self.trace.full:
            self.make_room()
        self.trace.write(kind, self.number, *rest)

    def make_room(self) -> None:
        """The trace's ring is full."""
        self.waiter.until(lambda: not self.trace.full, lambda: "the parent to read the trace")
