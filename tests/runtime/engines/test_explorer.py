"""Programs in every interleaving of a small world, and programs with a fault, which is told as its shortest story."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.algorithms.exploration import Explored
from paceline.algorithms.splits.derivation import ProgramStep
from paceline.algorithms.splits.movements import movements_of_update
from paceline.algorithms.splits.recipes import Tensor, example_program
from paceline.interfaces.testing.conformance import PLANS
from paceline.plans.methods import Synchronous
from paceline.plans.methods.program import (
    BeginExchange,
    EndExchange,
    Exchange,
    Gradient,
    Offer,
    OptimizerStep,
    Program,
    Sum,
    Worker,
)
from paceline.plans.plan import Plan
from paceline.runtime.engines.explorer import explore_program

EVERY = [plan for member in PLANS for plan in member.plans() if plan.traits.whole_model]
RING, LOCAL = Plan.parse("ring", 2).method, Plan.parse("local_sgd:every=1", 2).method


@pytest.mark.parametrize("plan", [plan for plan in EVERY if isinstance(plan.method, Synchronous)], ids=str)
def test_every_interleaving_of_every_program_is_good(plan: Plan) -> None:
    assert isinstance(plan.method, Synchronous)
    found = explore_program(plan.method, min(plan.workers, 3), updates=3 if plan.method.coordinator is None else 1)
    assert found.good, found.story
    assert found.moves >= (3 if plan.workers > 1 else 1)


def steps_by_its_own_gradient(worker: Worker) -> Program:
    for update in worker.updates():
        gradient = yield Gradient(update, update)
        yield Sum(update, gradient)
        yield OptimizerStep(update, update + 1, gradient)


def sums_after_its_step(worker: Worker) -> Program:
    total = 0
    for update in worker.updates():
        gradient = yield Gradient(update, update)
        yield OptimizerStep(update, update + 1, total)
        total = yield Sum(update, gradient)


def leaves_out_the_last_sum(worker: Worker) -> Program:
    for update in worker.updates():
        total = gradient = yield Gradient(update, update)
        if worker.rank or update < worker.last - 1:
            total = yield Sum(update, gradient)
        yield OptimizerStep(update, update + 1, (total, 0))


def waits_for_the_update_after(worker: Worker) -> Program:
    for update in worker.updates():
        gradient = yield Gradient(update, update)
        total = yield Sum(update + worker.rank, gradient)
        yield OptimizerStep(update, update + 1, total)


def sums_the_gradient_before(worker: Worker) -> Program:
    before = None
    for update in worker.updates():
        gradient = yield Gradient(update, update)
        total = yield Sum(update, before if before is not None and worker.rank else gradient)
        before = gradient
        yield OptimizerStep(update, update + 1, total)


def computes_from_the_version_before(worker: Worker) -> Program:
    for update in worker.updates():
        gradient = yield Gradient(update, max(0, update - 1))
        total = yield Sum(update, gradient)
        yield OptimizerStep(update, update + 1, total)


def steps_twice(worker: Worker) -> Program:
    for update in worker.updates():
        gradient = yield Gradient(update, update)
        total = yield Sum(update, gradient)
        yield OptimizerStep(update, update + 1, total)
        if worker.rank:
            yield OptimizerStep(update, update + 1, total)


def forgets_the_last_step(worker: Worker) -> Program:
    for update in worker.updates():
        gradient = yield Gradient(update, update)
        total = yield Sum(update, gradient)
        if update < worker.last - 1:
            yield OptimizerStep(update, update + 1, total)


def takes_what_nobody_began(worker: Worker) -> Program:
    for update in worker.updates():
        gradient = yield Gradient(update, update)
        yield OptimizerStep(update, update + 1, gradient)
        if worker.rank:
            yield BeginExchange(update, update)
        yield EndExchange(update, update)


def offers_twice(worker: Worker) -> Program:
    for update in worker.updates():
        yield Offer(update)
        gradient = yield Gradient(update, update)
        yield OptimizerStep(update, update + 1, gradient)
        yield Offer(update)
        yield Exchange(update, update)


def swaps_two_exchanges(worker: Worker) -> Program:
    for update in worker.updates():
        gradient = yield Gradient(update, update)
        yield OptimizerStep(update, update + 1, gradient)
        for number in (0, 1) if worker.rank else (1, 0):
            yield Exchange(2 * update + number, update)


def goes_on_after_the_last_exchange(worker: Worker) -> Program:
    for update in worker.updates():
        yield Exchange(update, update)
        gradient = yield Gradient(update, update)
        yield OptimizerStep(update, update + 1, gradient)


@pytest.mark.parametrize(
    ("method", "program", "says"),
    [
        (RING, steps_by_its_own_gradient, "steps by its own gradient of update 0"),
        (RING, sums_after_its_step, "has gradients of different parameters"),
        (RING, leaves_out_the_last_sum, "waits for ever at the sum of update 2: it needs worker 0"),
        (RING, waits_for_the_update_after, "waits for ever at the sum of update 0: it needs worker 1"),
        (RING, sums_the_gradient_before, "the sum of update 1 has a gradient of update 0"),
        (RING, computes_from_the_version_before, "the gradient of update 1 is of version 0, not 1"),
        (RING, steps_twice, "version 1 of worker 1 is not that of the others"),
        (RING, forgets_the_last_step, "has finished after 2 of 3 updates"),
        (LOCAL, takes_what_nobody_began, "waits for ever at the end of exchange 0, after update 0: it needs worker 0"),
        (LOCAL, offers_twice, "offers its replica twice for exchange 0"),
        (LOCAL, swaps_two_exchanges, "waits for ever at exchange"),
        (LOCAL, goes_on_after_the_last_exchange, "the replicas of workers 0, 1 differ at the end"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_fault_is_told(method: Synchronous, program: Callable[[Worker], Program], says: str) -> None:
    found = explore_program(method, 2, updates=3, deaths=1, program=program)
    assert found.story is not None
    assert says in found.story, found.story


# --- workers with parts of layers, by the movements of a small net ----------------------------------------------------

SPLIT = Plan.parse("tensor:data=2", 4)


def lines() -> dict[int, list[ProgramStep]]:
    """Return the movements of each worker in an update."""
    steps = list(movements_of_update(example_program(Tensor(), 2)))
    return {worker: list(steps) for worker in range(4)}


def explored(line: dict[int, list[ProgramStep]], program: Callable[[Worker], Program] | None = None) -> Explored:
    method = SPLIT.method
    assert isinstance(method, Synchronous)
    return explore_program(method, 4, updates=1, program=program, movements=lambda worker, update: line[worker])


def test_workers_with_parts_of_layers_wait_for_none_but_the_dead() -> None:
    found = explored(lines())
    assert found.good, found.story
    assert found.states > 500


def test_a_swapped_movement_is_told() -> None:
    line = lines()
    line[1] = line[1][::-1]
    assert "and others of its group to another movement" in str(explored(line).story)


def test_a_movement_that_one_worker_leaves_out_is_told() -> None:
    line = lines()
    del line[3][-1]
    assert "waits for ever at" in str(explored(line).story)


def test_replicas_of_parts_that_do_not_sum_are_told() -> None:
    def program(worker: Worker) -> Program:
        gradient = yield Gradient(0, 0)
        yield OptimizerStep(0, 1, gradient)

    assert "the replicas of workers 0, 2 differ at the end" in str(explored(lines(), program).story)
