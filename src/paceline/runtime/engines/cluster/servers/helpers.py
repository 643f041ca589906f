"""The helpers of a node's team: processes that compute chunks of the batch which the node's worker has."""

from __future__ import annotations

import math
import os
import pickle
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe

import torch

from paceline.runtime.engines.cluster.children import Child, Children, ProcessName
from paceline.runtime.engines.cluster.servers.node_servers import ATTEMPTS
from paceline.runtime.engines.cluster.servers.team import TeamMemory, serve
from paceline.runtime.engines.workers.messages import Assignment
from paceline.runtime.engines.workers.process import become_worker, trim_heap
from paceline.runtime.engines.workers.worker import learner_of
from paceline.runtime.links.memory import SharedTensors
from paceline.runtime.links.waiting import Waiter
from paceline.runtime.runs.live import ProcessKind


def run_helper(
    memory: TeamMemory, helper: int, life: int, box: list[bytes], tensors: SharedTensors | None, pipe: Pipe
) -> None:
    """Compute this helper's chunks, turn after turn, until the agent ends this process.

    An exception ends it. The leader then computes its chunks, and says what is wrong with them.
    """
    become_worker(memory_bounded=False)
    try:
        assignment: Assignment = pickle.loads(box.pop())
        torch.set_num_threads(assignment.plan.threads)
        learner = learner_of(assignment, assignment.open_data(tensors))
        for parameter, shared in zip(learner.replica.parameters, memory.parameters, strict=True):
            parameter.data = shared
        trim_heap()
        waiter = Waiter(helper, memory.doorbells[helper], lambda: False, math.inf, lambda: "at its leader")
        team, state = memory.team, memory.state
        team.enter(state, helper, life)
        while True:
            waiter.until(lambda: team.due(state, helper) is not None, lambda: "the leader")
            turn = team.due(state, helper)
            assert turn is not None
            serve(memory, learner, assignment.agenda, helper, turn)
    finally:
        pipe.close()
        sys.stderr.flush()
        os._exit(1)


class HelperSupervisor:
    """Starts the helpers of a node, and others in the place of those that end."""

    def __init__(
        self,
        children: Children,
        memory: TeamMemory,
        number: Callable[[int], int],
        assignment: Callable[[], bytes],
        tensors: SharedTensors | None,
    ) -> None:
        """`number` makes a number for the process that this node starts as its first, second, ..."""
        self.children, self.memory, self.number, self.assignment = children, memory, number, assignment
        self.tensors = tensors
        self._running: dict[int, Child] = {}
        self._started = 0

    def start(self) -> None:
        """Start all helpers."""
        for helper in range(1, self.memory.shape.processes):
            self._start(helper)

    def ended(self, child: Child) -> None:
        """Start another helper in the place of one that has ended."""
        for helper in [each for each, running in self._running.items() if running is child]:
            del self._running[helper]
            self.memory.team.ended(self.memory.state, helper)
            self.memory.doorbells[0].ring()
            if self._started < ATTEMPTS:
                self._start(helper)

    def _start(self, helper: int) -> None:
        name = ProcessName(ProcessKind.HELPER, self.number(self._started))
        self._started += 1
        arguments = (self.memory, helper, self._started, [self.assignment()], self.tensors)
        self._running[helper] = self.children.start(name, run_helper, arguments)
