"""Operators and their messages: every order of arrivals in small worlds, and machines that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.dataflow import (
    BACKWARD,
    BEGIN,
    DRAINED,
    ENDED,
    Call,
    Graph,
    Instances,
    Message,
    Work,
    example_graph,
)
from paceline.algorithms.dataflow.holder import Holder, Outcome
from paceline.algorithms.dataflow.proof import explore
from paceline.algorithms.dataflow.worker import (
    Admission,
    Client,
    Drain,
    Effect,
    Forget,
    Program,
    Record,
    Send,
    Take,
    follow_messages,
)


@pytest.mark.parametrize(
    ("workers", "instances", "active", "every"), [(1, 3, 2, 2), (2, 3, 1, 1), (2, 3, 2, 1), (2, 3, 2, 2), (3, 2, 2, 1)]
)
def test_every_order_of_arrivals_ends_with_every_gradient_in_one_update(
    workers: int, instances: int, active: int, every: int
) -> None:
    assert explore(example_graph, workers, instances, active, every, deaths=1).story is None


class Forgetful(Holder):
    """Never sends a gradient to another worker."""

    def done(self, work: Work) -> Outcome:
        found = super().done(work)
        return found._replace(sends=[]) if work.what == BACKWARD else found


class Greedy(Holder):
    """Makes an update of an instance whose gradients are in one already."""

    def done(self, work: Work) -> Outcome:
        found = super().done(work)
        if found.step is not None:
            self.counted[found.step.operator] = found.step.instances
        return found


def test_a_gradient_that_is_not_sent_is_found() -> None:
    story = explore(example_graph, 2, 2, 2, 1, Forgetful).story
    assert story is not None
    assert "never got their gradients" in story


def test_an_update_of_the_same_gradients_twice_is_found() -> None:
    story = explore(example_graph, 2, 2, 2, 1, Greedy).story
    assert story is not None
    assert "twice" in story


def test_gradients_come_before_values_and_older_instances_first() -> None:
    holder, chain = Holder(0, 1), Graph((Call(0, 0), Call(0, 1, (0,))))
    holder.begin(0, chain)
    holder.begin(1, chain)
    order = []
    while (work := holder.next()) is not None:
        order.append(f"{work.what}{work.instance}{work.call}")
        holder.done(work)
    assert order == ["F00", "F01", "B01", "B00", "F10", "F11", "B11", "B10"]


def left_out(unwanted: Callable[[Effect], bool]) -> Callable[[Client], Program]:
    """Return the program of a worker that leaves effects out."""

    def program(client: Client) -> Program:
        program, answer = follow_messages(client), None
        with suppress(StopIteration):
            while True:
                effect = program.send(answer)
                answer = None if unwanted(effect) else (yield effect)

    return program


def test_a_worker_that_does_not_say_that_it_has_ended_is_found() -> None:
    silent = left_out(lambda effect: isinstance(effect, Send) and effect.message.what == ENDED)
    story = explore(example_graph, 2, 2, 1, 1, program=silent).story
    assert story is not None
    assert "never got their gradients" in story


def test_a_worker_that_leaves_out_what_is_left_of_a_pass_is_found() -> None:
    story = explore(example_graph, 2, 3, 2, 2, program=left_out(lambda effect: isinstance(effect, Drain))).story
    assert story is not None
    assert "made no update" in story


def test_a_worker_dies_and_nothing_else_goes_wrong() -> None:
    alone, dying = (explore(example_graph, 2, 2, 2, 1, deaths=deaths) for deaths in (0, 1))
    assert dying.good
    assert dying.states > alone.states


def test_an_instance_that_the_admitting_worker_has_no_part_in_is_forgotten() -> None:
    client, answer, effects = Client(0, 2, (1,), 1, Holder(0, 1)), None, list[Effect]()
    program = follow_messages(client)
    while not isinstance(effect := program.send(answer), Take):
        answer = Graph((Call(1, 0),)) if isinstance(effect, Record) else None
        effects.append(effect)
    assert effects == [Record(0), Send(Message(1, BEGIN, 0)), Forget(0)]


def test_admission_keeps_to_its_bound_and_drains_between_passes() -> None:
    admission = Admission((3, 4), active=2)
    assert [m.instance for _ in range(2) for m in admission.begin((0,))] == [0, 1]
    assert not admission.may_begin
    admission.ended(1)
    assert admission.may_begin
    assert [m.instance for m in admission.begin((0,))] == [2]
    admission.ended(0)
    assert not admission.may_begin  # the next pass
    admission.ended(2)
    assert [(m.what, m.call) for m in admission.drain(1)] == [(DRAINED, 0)]
    assert admission.may_begin


def test_instances_number_every_chunk_with_samples_once() -> None:
    agenda = Agenda(11, 4, epochs=3, parts=3, limit=7)
    instances = Instances(agenda)
    found = [instances.chunk(number) for number in range(instances.passes[-1])]
    assert found == [chunk for update in range(7) for chunk in agenda.filled(update)]
    assert [instances.number(chunk.update, chunk.number) for chunk in found] == list(range(len(found)))
    assert [instances.updates_until(number) for number in range(4)] == [0, 3, 6, 7]
