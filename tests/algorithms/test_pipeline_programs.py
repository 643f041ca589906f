"""The programs of a pipeline's workers in every order of a small world, with a death anywhere; and with faults."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from paceline.algorithms.schedules import Schedule
from paceline.algorithms.schedules.explore import StageClient, explore_stages
from paceline.algorithms.schedules.with_flush import Gpipe, Interleaved, Layers, OneFOneB, ZeroBubble
from paceline.algorithms.schedules.without_flush import Pipedream, Spectrain
from paceline.algorithms.schedules.worker import Agree, Compute, Program, Receive, Send, SumUp, Update
from paceline.algorithms.server.explore_replicas import LeasingClient, explore_replicas
from paceline.algorithms.server.messages import Finish, Push
from paceline.algorithms.server.worker import Assign, AwaitPushes, Count, TakeUp
from paceline.plans.methods.pipeline import Pipeline

Effects = Generator[Any, Any, Any]
Change = Callable[[Any], Effects]


def stages(client: StageClient) -> Program:
    return Pipeline(client.schedule).program(client)


def leases(client: LeasingClient) -> Program:
    return Pipeline(client.schedule).leasing_program(client)


@pytest.mark.parametrize("schedule", [Gpipe(), OneFOneB(), ZeroBubble(), Layers((0, 1, 0, 1)), Interleaved(2)], ids=str)
@pytest.mark.parametrize("agrees", [False, True])
def test_workers_that_flush_wait_for_nobody_but_the_dead(schedule: Schedule, agrees: bool) -> None:
    found = explore_stages(stages, schedule, agrees=agrees)
    assert found.good, found.story
    assert found.states > 60


@pytest.mark.parametrize("schedule", [Pipedream(), Spectrain()], ids=str)
def test_workers_that_never_flush_do_so_too(schedule: Schedule) -> None:
    found = explore_stages(stages, schedule, depth=3, counts=(1, 1, 1, 1))
    assert found.good, found.story
    assert found.states > 60


def test_replicas_that_sum_up_are_explored_together() -> None:
    found = explore_stages(stages, OneFOneB(), replicas=2, counts=(2,), agrees=True)
    assert found.good, found.story
    assert found.states > 500


@pytest.mark.parametrize("batches", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_replicas_that_lease_batches_are_explored_with_their_desk(batches: int) -> None:
    found = explore_replicas(leases, OneFOneB(), batches=batches)
    assert found.good, found.story
    assert found.states > 1000


# --- faults ---------------------------------------------------------------------------------------------------------


def changed(program: Program, change: Change) -> Program:
    """Run a program with other effects in the place of its own."""
    answer = None
    while True:
        try:
            effect = program.send(answer)
        except StopIteration:
            return
        answer = yield from change(effect)


def takes_messages_in_another_order(client: StageClient) -> Change:
    early: list[Any] = []

    def change(effect: Any) -> Effects:
        if not isinstance(effect, Receive) or client.place[1] != 1:
            return (yield effect)
        if early:
            return early.pop()
        early.append((yield effect))
        return (yield effect)

    return change


def sends_before_it_has_computed(client: StageClient) -> Change:
    made: list[Any] = [None]

    def change(effect: Any) -> Effects:
        if isinstance(effect, Send):
            made.append(effect.message)
            return (yield effect._replace(message=made.pop(0)))
        return (yield effect)

    return change


def loses_a_message(client: StageClient) -> Change:
    def change(effect: Any) -> Effects:
        if not (isinstance(effect, Send) and effect.micro == 3):
            return (yield effect)

    return change


def updates_before_its_sum(client: StageClient) -> Change:
    def change(effect: Any) -> Effects:
        if isinstance(effect, SumUp) and not client.place[1]:
            return None
        return (yield effect)

    return change


def does_not_agree(client: StageClient) -> Change:
    def change(effect: Any) -> Effects:
        if isinstance(effect, Agree) and client.place[1]:
            return None
        return (yield effect)

    return change


def sums_stages_up_in_another_order(client: StageClient) -> Change:
    def change(effect: Any) -> Effects:
        if isinstance(effect, SumUp) and client.place == (1, 0):
            effect = effect._replace(stage=2 - effect.stage)
        return (yield effect)

    return change


def updates_twice(client: StageClient) -> Change:
    def change(effect: Any) -> Effects:
        if isinstance(effect, Update):
            yield effect
        return (yield effect)

    return change


def computes_a_backward_twice(client: StageClient) -> Change:
    def change(effect: Any) -> Effects:
        if isinstance(effect, Compute) and effect.work.what == "B":
            yield effect
        return (yield effect)

    return change


STAGE_FAULTS: dict[Callable[[StageClient], Change], str] = {
    takes_messages_in_another_order: "worker 1 computes F0 of stage 1 from (0, 1, 'F')",
    sends_before_it_has_computed: "from no message",
    loses_a_message: "waits for ever",
    updates_before_its_sum: "makes an update of stage 0 without a sum",
    does_not_agree: "waits for ever at the norm of the gradient: it needs worker",
    sums_stages_up_in_another_order: "waits for ever at the sum of stage",
    updates_twice: "makes version 1 of stage 0 after 1",
    computes_a_backward_twice: "twice",
}


@pytest.mark.parametrize("fault", STAGE_FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_of_a_stage_is_told(fault: Callable[[StageClient], Change]) -> None:
    replicas = 2 if fault is sums_stages_up_in_another_order else 1
    schedule: Schedule = Interleaved(2) if replicas == 2 else Gpipe()

    def program(client: StageClient) -> Program:
        return changed(stages(client), fault(client))

    found = explore_stages(program, schedule, replicas, counts=(2, 2) if replicas == 1 else (1,), agrees=True)
    assert found.story is not None
    assert STAGE_FAULTS[fault] in found.story.splitlines()[-1], found.story


def leaks_its_lease(client: LeasingClient) -> Change:
    def change(effect: Any) -> Effects:
        if isinstance(effect, Finish):  # and goes home
            return None
        return (yield effect)

    return change


def asks_before_all_have_pushed(client: LeasingClient) -> Change:
    def change(effect: Any) -> Effects:
        return None if isinstance(effect, AwaitPushes) else (yield effect)

    return change


def pushes_before_it_has_computed(client: LeasingClient) -> Change:
    def change(effect: Any) -> Effects:
        return None if isinstance(effect, Compute) and effect.work.what == "B" else (yield effect)

    return change


def does_not_count_its_push(client: LeasingClient) -> Change:
    def change(effect: Any) -> Effects:
        return None if isinstance(effect, Count) and client.place[1] else (yield effect)

    return change


def takes_up_the_lease_before(client: LeasingClient) -> Change:
    def change(effect: Any) -> Effects:
        if isinstance(effect, TakeUp) and client.place[1] and effect.number > 1:
            effect = TakeUp(effect.number - 1)
        return (yield effect)

    return change


def does_not_announce_the_end(client: LeasingClient) -> Change:
    def change(effect: Any) -> Effects:
        return None if isinstance(effect, Assign) and effect.lease is None else (yield effect)

    return change


def forgets_that_a_batch_was_leased_before(client: LeasingClient) -> Change:
    def change(effect: Any) -> Effects:
        return (yield effect._replace(again=False) if isinstance(effect, Push) else effect)

    return change


LEASE_FAULTS: dict[Callable[[LeasingClient], Change], str] = {
    leaks_its_lease: "shard 0 never got batches [1]",
    asks_before_all_have_pushed: "",
    pushes_before_it_has_computed: "pushes micro-batches () as batch 0",
    does_not_count_its_push: "wait for ever",
    takes_up_the_lease_before: "worker 1 computes F0 of stage 1 from (0, 1, 'F')",
    does_not_announce_the_end: "wait for ever",
    forgets_that_a_batch_was_leased_before: "applied a batch twice",
}


@pytest.mark.parametrize("fault", LEASE_FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_of_a_replica_is_told(fault: Callable[[LeasingClient], Change]) -> None:
    def program(client: LeasingClient) -> Program:
        return changed(leases(client), fault(client))

    found = explore_replicas(program, OneFOneB(), batches=2)
    assert found.story is not None
    assert LEASE_FAULTS[fault] in found.story.splitlines()[-1], found.story
