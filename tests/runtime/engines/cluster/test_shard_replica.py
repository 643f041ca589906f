"""A worker computes with parameters where they have arrived, and never where others may still arrive."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from paceline.algorithms.server.messages import Join, Push
from paceline.interfaces.testing.jobs import JOBS
from paceline.plans.plan import Plan, server_of
from paceline.runtime.engines.arithmetic.common import make_learner
from paceline.runtime.engines.arithmetic.servers import ServerArithmetic
from paceline.runtime.engines.cluster.agent import Agent
from paceline.runtime.engines.cluster.node import resume_point
from paceline.runtime.engines.cluster.servers.gradient_side import GradientSide, ShardReplica
from paceline.runtime.engines.cluster.servers.shard_state import GradientVector, vector_pool
from paceline.runtime.engines.setup import set_up
from paceline.training.gradients.encoder import GradientEncoder, PulledView, apart, encoder_of
from paceline.training.gradients.message import MessageShape
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.worker_state import WorkerState
from tests.runtime.engines.cluster.stubs import layout_of, small_job


def _replica() -> tuple[ShardReplica, nn.Parameter]:
    job = small_job()
    layout, module = layout_of(job), job.make_model()
    (shard,) = layout.shards
    parameters = list(module.parameters())
    vector = vector_pool(shard, layout, False, None, 0).take()
    return ShardReplica(shard, layout.dtype, parameters, vector), parameters[0]


def test_parameters_are_used_where_they_have_arrived() -> None:
    replica, weight = _replica()
    for number in (1.0, 2.0, 3.0):
        room = replica.values.raw
        room[:] = torch.full_like(replica.values.flat, number).view(torch.uint8).numpy().data
        replica.take(room)
        assert weight.detach().eq(number).all()
        assert weight.data_ptr() == replica.values.flat.data_ptr()


def test_parameters_that_arrived_elsewhere_are_copied_and_the_room_for_the_others_is_given_up() -> None:
    replica, weight = _replica()
    room = replica.values.raw
    body = torch.full_like(replica.values.flat, 5.0).view(torch.uint8).numpy().data
    replica.take(body)
    replica.move()
    room[:] = bytes(len(room))  # the other answer arrives after all
    assert weight.detach().eq(5.0).all()
    assert weight.data_ptr() == replica.values.flat.data_ptr()


@pytest.mark.parametrize("strided", [False, True])
def test_a_large_gradient_is_sent_from_where_it_was_computed(strided: bool) -> None:
    """The same bytes travel, copied or not: a weight whose numbers do not lie side by side is copied."""
    layout = layout_of(small_job(inputs=10_000, outputs=30))
    vector = vector_pool(layout.shards[0], layout, False, None, 0).take()
    assert isinstance(vector, GradientVector)
    weight = torch.randn(10_000, 30).T if strided else torch.randn(30, 10_000)
    for gradients in ([weight, torch.randn(30)], [weight, None], [weight, torch.randn(30)]):
        vector.write(gradients, [], [7])
        sent = b"".join(vector.parts)
        assert len(vector.parts) == (1 if strided or gradients[1] is None else 3)
        vector.bytes[:] = sent  # as it arrives
        given = vector.arrival(0).gradients
        assert all(torch.equal(a, b) for a, b in zip(given, gradients, strict=True) if a is not None and b is not None)
        assert [a is None for a in given] == [b is None for b in gradients]
        assert vector.bases.tolist() == [7]


def _side() -> tuple[GradientSide, GradientEncoder]:
    """Return the side of worker 4, process 1 of rank 1, whose answers are coded, too."""
    setup = set_up(small_job(40, 30), Plan.parse("downpour:workers=3,codec=onebit,pull=int8"), "virtual", None)
    learner, _ = make_learner(setup)
    encoder = encoder_of(setup.plan.codec, setup.layout, learner.replica)
    assert encoder is not None
    runner: Any = SimpleNamespace(
        layout=setup.layout, plan=setup.plan, job=setup.job, learner=learner, replica=learner.replica, encoder=encoder,
        state_writer=SimpleNamespace(found=None),
    )  # fmt: skip
    return GradientSide(runner, server_of(setup.plan), 4), encoder


def _computed(side: GradientSide) -> GradientSum:
    return GradientSum([torch.randn_like(p) for p in side.runner.replica.parameters], [], 0.0, 1.0, 2, 0)


@pytest.mark.parametrize("taken", [(1, 7), (4, 3)])
def test_a_gradient_that_no_shard_has_taken_leaves_what_is_owed(taken: tuple[int, int]) -> None:
    """A shard had the batch from another process, or from this one, which was leased it twice."""
    side, encoder = _side()
    values = side.shards[0].values

    def owed_after(taken: tuple[int, int]) -> list[torch.Tensor]:
        side.take(0, _computed(side), [7])
        side.adopt(0, 8, True, memoryview(b"".join(apart(values.raw, taken))))
        return [memory["owed"].clone() for memory in encoder.residuals if memory]

    before = owed_after((4, 7))
    assert any(owed.any() for owed in before)
    assert all(map(torch.equal, before, owed_after(taken)))
    assert not all(map(torch.equal, before, owed_after((4, 7))))


def test_an_answer_that_comes_to_the_second_computation_of_a_batch_is_added_once() -> None:
    side, _ = _side()
    pull = side.runner.plan.pull
    assert pull is not None
    (mine,), shape = side.shards, MessageShape(pull, side.runner.layout.shards[0], torch.float32)
    server = PulledView(shape, side.runner.job.seed)
    for version in (1, 2):
        newest = [torch.randn(span.shape) for span in side.runner.layout.shards[0].parameters]
        server.whole(newest, []) if mine.noted < 0 else server.difference(newest, [], version)
        server.note(4, version, version - 1, version)
        for _ in range(2):
            side.take(version, _computed(side), [version - 1])
            (answer,) = server.answer_to(4, version, version, (4, version - 1)) or ()
            side.adopt(0, version, True, answer)
            assert all(map(torch.equal, mine.values.views, server.values))
            assert mine.noted == version


@pytest.mark.parametrize("life", [0, 1])
def test_a_worker_in_a_dead_ones_place_starts_from_nothing_that_one_has_left(life: int) -> None:
    """Neither from its replica nor with what it owed: the state is of the checkpoint, and belonged to one process."""
    found = list[bool]()

    def start(*arguments: Any) -> None:
        found.append(arguments[-2].newest is not None)

    agent = Agent.__new__(Agent)
    agent.resume = resume_point(5, 0, True, WorkerState({"owed.0": torch.ones(2)}))
    agent.config, agent._launcher = (SimpleNamespace(parts=2, rank=1), SimpleNamespace(start=start))  # type: ignore[assignment]
    agent.setup = SimpleNamespace(layout=None)  # type: ignore[assignment]
    agent.arena, agent.tensors, agent._team, agent._workers, agent._life = None, None, None, 0, life  # type: ignore[assignment]
    agent._start_worker()
    agent._start_worker()
    assert found == [life == 0, False]
    assert agent.resume.state_buffer is not None
    agent.resume.state_buffer.close()


@pytest.mark.parametrize("plan", ["downpour:workers=2,codec=onebit", "easgd:workers=2,mode=asynchronous"])
def test_a_replay_of_a_resumed_run_lets_such_a_worker_start_so_too(plan: str) -> None:
    setup = set_up(JOBS["mlp"](), Plan.parse(plan), "virtual", None)
    before, sums = ServerArithmetic(setup), ServerArithmetic(setup)
    for worker in (1, 0):
        before.compute(worker, setup.agenda.task(worker))
        before.push(Push(worker, 0, worker, False))
    sums.resume(before)
    saved = before.ports[1][0].worker_state().tensors
    assert saved
    assert all(torch.equal(value, saved[name]) for name, value in sums.ports[1][0].worker_state().tensors.items())
    sums.join(Join(1))
    state = sums.ports[1][0].worker_state()
    assert not all(torch.equal(value, saved[name]) for name, value in state.tensors.items())
    if sums.method.exchange is not None:
        centre = [*sums.newest(0)[0].parameters, *sums.newest(0)[0].buffers]
        assert all(map(torch.equal, sums.ports[1][0].values(), centre))
    else:
        assert not any(value.any() for value in state.tensors.values())
