"""Every interleaving of a small world, and broken machines that it catches with the shortest story."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, MutableSequence, Sequence
from typing import Any

import pytest

from paceline.algorithms.exploration import Walker
from paceline.algorithms.server.desk import NONE, Desk
from paceline.algorithms.server.gates import Asynchronous, Backup, Gate, StaleSynchronous
from paceline.algorithms.server.messages import Ask, Compute, Finish, Join, Late, Lease, Pull, Push
from paceline.algorithms.server.shard import Shard
from paceline.algorithms.server.worker import Client, Program
from paceline.errors import ProtocolError
from paceline.runtime.engines.virtual import explore


@pytest.mark.parametrize(
    ("workers", "batches", "shards", "deaths"),
    [
        (1, 3, 2, 0),
        (2, 3, 1, 0),
        (2, 3, 2, 0),
        (2, 3, 2, 1),
        (3, 3, 1, 0),
        (3, 2, 1, 1),
        (3, 2, 2, 0),
        pytest.param(3, 3, 1, 1, marks=pytest.mark.soak),
        pytest.param(3, 3, 2, 0, marks=pytest.mark.soak),
        (3, 2, 1, 2),
    ],
)
def test_every_interleaving_is_good(workers: int, batches: int, shards: int, deaths: int) -> None:
    found = explore(workers, batches, shards, deaths)
    assert found.good, found.story
    assert found.states > 10


class OnlyTheSlower(Asynchronous):
    """A broken stale-synchronous gate: it wants a worker to be behind the fastest, where equal is enough."""

    def ints(self, workers: int) -> int:
        return workers

    def open(self, state: MutableSequence[int], at: int, worker: int) -> bool:
        clocks = list(state[at : at + 2])
        return clocks[worker] == 0 or clocks[worker] < max(clocks)

    def finished(self, state: MutableSequence[int], at: int, worker: int) -> None:
        state[at + worker] += 1


class LeasesTwice(Desk):
    def _ask(self, state, worker):  # type: ignore[no-untyped-def]
        action = super()._ask(state, worker)
        if isinstance(action, Lease) and action.batch == 1:
            state[0] = 1
        return action


class ForgetsOrphans(Desk):
    def handle(self, state, event):  # type: ignore[no-untyped-def]
        action = super().handle(state, event)
        for cell in range(self._orphan, self._orphan + self.workers):
            state[cell] = NONE
        state[2] = 0
        return action


def test_a_broken_gate_is_told_as_its_shortest_story() -> None:
    found = explore(2, 4, gate=OnlyTheSlower())
    assert found.story is not None
    assert found.story.endswith("=> workers [0, 1] wait for ever")
    assert found.story.count("\n") <= 10


def test_a_desk_that_leases_twice_is_told_in_the_fewest_steps() -> None:
    found = explore(2, 2, desk=LeasesTwice)
    assert found.story is not None
    assert "same batch" in found.story or "twice" in found.story
    assert found.story.count("\n") <= 10


def test_a_desk_that_forgets_the_dead_is_caught() -> None:
    assert explore(2, 2, deaths=0, desk=ForgetsOrphans).good
    found = explore(2, 2, deaths=1, desk=ForgetsOrphans)
    assert found.story is not None
    assert "dies" in found.story


def test_what_cannot_happen_is_refused() -> None:
    desk = Desk(2, 3, Asynchronous())
    state = [0] * desk.ints
    desk.init(state)
    desk.handle(state, Ask(0))
    with pytest.raises(ProtocolError):
        desk.handle(state, Ask(0))
    with pytest.raises(ProtocolError):
        desk.handle(state, Finish(1, 0))


def test_four_thousand_workers_still_cost_microseconds() -> None:
    """State is touched in a few places only: counted, not timed."""

    class Counting(list):  # type: ignore[type-arg]
        touched = 0

        def __getitem__(self, place):  # type: ignore[no-untyped-def]
            Counting.touched += 1
            return super().__getitem__(place)

    desk, shard = Desk(4096, 10**6, Asynchronous()), Shard(4096)
    state = Counting([0] * desk.ints)
    desk.init(state)
    Counting.touched = 0
    for worker in range(100):
        desk.handle(state, Ask(worker))
    assert Counting.touched < 1000
    assert shard.ints == 1 + 2 * 4096


@pytest.mark.parametrize(
    ("gate", "shards", "gathers"),
    [
        (Asynchronous(), 2, 0),
        (StaleSynchronous(0), 2, 0),
        (StaleSynchronous(1), 1, 0),
        (Backup(1), 1, 1),
        pytest.param(Backup(2), 1, 2, marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_a_worker_may_join_in_the_place_of_a_dead_one_at_any_point(gate: Gate, shards: int, gathers: int) -> None:
    found = explore(2, 3, shards, deaths=1, joins=1, gate=gate, gathers=gathers)
    assert found.good, found.story


def test_a_worker_that_joins_too_early_makes_a_shard_apply_a_batch_twice() -> None:
    class Hasty(Desk):
        def _join(self, state, worker):  # type: ignore[no-untyped-def]
            state[self._lost + worker] = NONE
            return super()._join(state, worker)

    found = explore(2, 3, shards=2, deaths=1, joins=1, desk=Hasty)
    assert found.story is not None
    assert "twice" in found.story


def test_a_living_worker_cannot_join() -> None:
    desk = Desk(2, 3, Asynchronous())
    state = [0] * desk.ints
    desk.init(state)
    with pytest.raises(ProtocolError, match="it is alive"):
        desk.handle(state, Join(0))


def forgets_a_shard(client: Client) -> Program:
    lease = yield Ask(client.number)
    while lease is not None:
        lease = yield Compute(client.number, lease)
        for shard in client.order[: client.shards - bool(lease.batch)]:
            yield Push(client.number, shard, lease.batch, lease.again)
        lease = yield Finish(client.number, lease.batch)


def pushes_twice(client: Client) -> Program:
    lease = yield Ask(client.number)
    while lease is not None:
        lease = yield Compute(client.number, lease)
        for shard in (*client.order, client.order[0]):
            yield Push(client.number, shard, lease.batch, lease.again)
        lease = yield Finish(client.number, lease.batch)


def does_not_say_that_a_batch_is_another_ones(client: Client) -> Program:
    lease = yield Ask(client.number)
    while lease is not None:
        lease = yield Compute(client.number, lease)
        for shard in client.order:
            yield Push(client.number, shard, lease.batch)
        lease = yield Finish(client.number, lease.batch)


def finishes_before_its_last_push(client: Client) -> Program:
    lease = yield Ask(client.number)
    while lease is not None:
        lease = done = yield Compute(client.number, lease)
        for shard in client.order[1:]:
            yield Push(client.number, shard, done.batch, done.again)
        lease = yield Finish(client.number, done.batch)
        yield Push(client.number, client.order[0], done.batch, done.again)


def leaves_with_a_lease(client: Client) -> Program:
    lease = yield Ask(client.number)
    while lease is not None and not (client.number and lease.batch == 1):
        lease = yield Compute(client.number, lease)
        for shard in client.order:
            yield Push(client.number, shard, lease.batch, lease.again)
        lease = yield Finish(client.number, lease.batch)


def pushes_what_is_too_old_again(client: Client) -> Program:
    lease = yield Ask(client.number)
    while lease is not None:
        yield Pull(client.number, 0)
        lease = yield Compute(client.number, lease)
        yield Push(client.number, 0, lease.batch, lease.again)  # and goes on, also where it was late
        lease = yield Finish(client.number, lease.batch)


def never_pulls_again(client: Client) -> Program:
    lease = yield Ask(client.number)
    while lease is not None:
        answer: object = Late()
        while isinstance(answer, Late):
            yield Compute(client.number, lease)
            answer = yield Push(client.number, 0, lease.batch, lease.again)
        lease = yield Finish(client.number, lease.batch)


def does_not_push_its_third_batch(client: Client) -> Program:
    lease = yield Ask(client.number)
    for push in (True, True, False, True):  # no variable says which of the first two it is at
        if lease is not None:
            yield Compute(client.number, lease)
            if push:
                yield Push(client.number, 0, lease.batch, lease.again)
            lease = yield Finish(client.number, lease.batch)


FAULTY = pytest.mark.parametrize(
    ("program", "says", "world"),
    [
        (forgets_a_shard, "never got batches", {"shards": 2}),
        (pushes_twice, "applied a batch twice", {"shards": 2}),
        (does_not_say_that_a_batch_is_another_ones, "applied a batch twice", {"shards": 2, "deaths": 1}),
        (finishes_before_its_last_push, "never got batches", {"shards": 2, "deaths": 1}),
        (leaves_with_a_lease, "waits? for ever|never got batches", {}),
        (pushes_what_is_too_old_again, "never got batches", {"gathers": 1, "gate": Backup(1)}),
        (never_pulls_again, "go on for ever", {"gathers": 1, "gate": Backup(1)}),
        (does_not_push_its_third_batch, "never got batches", {}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)


@FAULTY
def test_a_fault_in_a_worker_is_told(program: Callable[[Client], Program], says: str, world: dict[str, Any]) -> None:
    found = explore(2, 3, **world, program=program)
    assert found.story is not None
    assert re.search(says, found.story), found.story


@FAULTY
def test_what_a_worker_was_answered_before_hides_no_fault(
    program: Callable[[Client], Program], says: str, world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worlds that differ in nothing but earlier answers are one state; told apart, they end in as short a story."""
    shortest = explore(2, 3, **world, program=program).story
    if "go on" not in says:  # with all its answers, a worker that goes on for ever comes to no end of states
        monkeypatch.setattr(Walker, "point", Walker.key)
    story = explore(2, 3, **world, program=program).story
    assert shortest is not None
    assert story is not None
    assert story.count("\n") == shortest.count("\n")


def in_a_variable() -> Generator[str, int, None]:
    last = 0
    while True:
        last = yield f"after {last}"


def in_a_list() -> Generator[str, int, None]:
    answers: list[int] = []
    while True:
        answers.append((yield "next"))


def in_an_iterator() -> Generator[str, int, None]:
    for word in ("next", "next"):
        yield f"{word} and"


@pytest.mark.parametrize(
    ("program", "first", "second", "alike"),
    [
        (in_a_variable, (1, 2), (2,), True),
        (in_a_variable, (1, 2), (2, 1), False),
        (in_a_list, (1, 2), (2,), False),
        (in_an_iterator, (0,), (), False),
    ],
)
def test_programs_are_at_one_point_only_where_they_go_on_alike(
    program: Callable[[], Generator[str, int, None]], first: Sequence[int], second: Sequence[int], alike: bool
) -> None:
    points = []
    for answers in (first, second):
        walker = Walker(program)
        for answer in answers:
            walker.send(answer)
        points.append(walker.point())
    assert (points[0] == points[1]) is alike
