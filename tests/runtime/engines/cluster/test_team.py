"""Helpers compute chunks of their worker's batches: the same bits as one process, whoever of them dies."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from paceline.interfaces.testing.jobs import JOBS
from paceline.interfaces.testing.survival.faults import FaultKind
from paceline.interfaces.testing.survival.nodes import NodeProgram, started
from paceline.interfaces.testing.survival.proofs import replayed
from paceline.plans.plan import Plan
from paceline.runtime.engines.cluster.servers.team import TeamLeader, TeamMemory, TeamShape, serve
from paceline.runtime.engines.setup import Setup, set_up
from paceline.runtime.links.waiting import Waiter
from paceline.runtime.runs.live import EventKind, ProcessKind
from paceline.training.data.source import Order, Reader, TensorSource
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.payload import GradientSum
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Job
from tests.runtime.engines.cluster.test_survival import BATCHES, Scene

PATIENCE = 60.0  # seconds that something may take on a busy machine


def _learner(setup: Setup) -> Learner:
    torch.manual_seed(0)
    assert isinstance(setup.source, TensorSource)
    replica = Replica(setup.job, setup.fresh_module().train(), setup.probe.moving)
    return Learner(replica, Reader(setup.source, Order(len(setup.source), setup.job.seed, True), 0, lambda _: None))


class Helper:
    """A helper in this process, which computes while the leader waits: chance is the process's own."""

    def __init__(self, memory: TeamMemory, setup: Setup, number: int) -> None:
        self.memory, self.number, self.agenda, self.learner = memory, number, setup.agenda, _learner(setup)
        self.done: list[int] = []
        for parameter, shared in zip(self.learner.replica.parameters, memory.parameters, strict=True):
            parameter.data = shared
        memory.team.enter(memory.state, number, 1)

    def until(self, ready: Callable[[], bool], whom: Callable[[], str]) -> int:
        """Be the leader's `Waiter`."""
        turn = self.memory.team.due(self.memory.state, self.number)
        if turn is not None:
            serve(self.memory, self.learner, self.agenda, self.number, turn)
            self.done.append(turn.task)
        assert ready()
        return 0


@contextmanager
def _set_up(name: str, chunks: int, **changes: object) -> Iterator[tuple[Setup, TeamMemory]]:
    job: Job = JOBS[name]().with_(**changes)
    setup = set_up(job, Plan.parse(f"downpour:chunks={chunks}"), "virtual")
    shape = TeamShape.of(setup, 2)
    assert shape is not None
    memory = TeamMemory(shape)
    try:
        yield setup, memory
    finally:
        memory.memory.close()


def _same(one: GradientSum, other: GradientSum) -> None:
    assert (one.loss, one.weight, one.samples, one.part) == (other.loss, other.weight, other.samples, other.part)
    for a, b in zip([*one.gradients, *one.buffers], [*other.gradients, *other.buffers], strict=True):
        assert (a is None and b is None) or torch.equal(a, b)  # type: ignore[arg-type]


def _waiter(memory: TeamMemory) -> Waiter:
    return Waiter(0, memory.doorbells[0], lambda: False, PATIENCE, lambda: "in a test")


@pytest.mark.parametrize("name", list(JOBS))
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_team_computes_the_bits_of_one_process(name: str, accumulate: int) -> None:
    with _set_up(name, 3, accumulate_grad_batches=accumulate) as (setup, memory):
        alone, leads = _learner(setup), _learner(setup)
        helper = Helper(memory, setup, 1)
        leader = TeamLeader(memory, leads, helper)  # type: ignore[arg-type]
        for update in range(setup.agenda.updates_per_epoch):  # the last one is smaller
            chunks = setup.agenda.task(update)
            wanted, found = alone.compute(chunks), leader.compute(chunks)
            _same(found, wanted)
            for learner in (alone, leads):
                learner.set_buffers(wanted.buffers)
        assert helper.done == list(range(setup.agenda.updates_per_epoch))


def test_a_leader_without_helpers_computes_their_chunks() -> None:
    with _set_up("mlp", 4) as (setup, memory):
        alone, leads = _learner(setup), _learner(setup)
        memory.team.enter(memory.state, 1, 1)  # asked, and never seen again
        end = threading.Timer(0.05, memory.team.ended, (memory.state, 1))
        end.start()
        for _ in range(2):
            chunks = setup.agenda.task(0)
            _same(TeamLeader(memory, leads, _waiter(memory)).compute(chunks), alone.compute(chunks))
        end.join()


def test_a_job_with_loaders_has_no_helpers() -> None:
    setup = set_up(JOBS["mlp"]().with_(num_workers=1), Plan.parse("ssp:chunks=2"), "virtual")
    assert TeamShape.of(setup, 2) is None
    assert TeamShape.of(set_up(JOBS["mlp"](), Plan.parse("ssp"), "virtual"), 2) is None


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a node with one core has no helpers")
def test_helper_and_leader_are_killed_and_stopped_in_one_run(tmp_path: Path) -> None:
    with started(tmp_path, NodeProgram("downpour:chunks=2,shards=2", 2, BATCHES, 0.01), held=True) as (ran, _):
        scene = Scene(ran, seed=random.Random(5).randrange(100))
        scene.mended(scene.do(FaultKind.KILL_HELPER), "noticed")
        scene.mended(scene.do(FaultKind.KILL_WORKER), "noticed", "replaced")
        fault = scene.do(FaultKind.STOP_HELPER, 4.0)  # longer than a leader waits
        scene.until(scene.injector.poll, f"the end of {fault}")
        run = scene.finish()
        helpers = [e for e in scene.events if (e.kind, e.process) == (EventKind.STARTED, ProcessKind.HELPER)]
        assert len(helpers) == 3  # one for each node, and another in the place of the dead one
        assert not (wrong := replayed(run)), wrong
