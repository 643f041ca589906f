"""Collectives: every table is proved, its closed form is its time, and executed it sums."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
import torch

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.collectives import Collective, Part, Step, advance, table_seconds
from paceline.algorithms.collectives.halving_doubling import HalvingDoubling
from paceline.algorithms.collectives.proof import has_its_rounds, prove, prove_mixing
from paceline.algorithms.collectives.rings import Hierarchical, Ring
from paceline.algorithms.collectives.trees import Central, Tree
from paceline.algorithms.collectives.whole_vectors import GRAPHS, Neighbours
from paceline.errors import PlanError
from paceline.plans.plan import Plan
from paceline.runtime.engines.virtual.simulate import simulate
from paceline.runtime.engines.virtual.world import Exchanged, World, exchange
from paceline.runtime.runs.trace import Kind

COLLECTIVES = [Ring(), Tree(), HalvingDoubling(), Hierarchical(2), Hierarchical(3), Central()]
LINKS = [(1e-5, 1e9), (1e-3, 1e9), (1e-7, 1e8), (0.0, 1e9)]  # latency, bandwidth


def worlds(collective: Collective, sizes: Iterable[int]) -> list[int]:
    return [n for n in sizes if not isinstance(collective, Hierarchical) or n % collective.groups == 0]


def test_the_ring_of_three_workers() -> None:
    def step(right: int, send: int, left: int, receive: int, reduce: bool) -> Step:
        return Step(Part(right, send, send + 1), Part(left, receive, receive + 1), reduce)

    assert [list(Ring().steps(worker, 3)) for worker in range(3)] == [
        [step(1, 0, 2, 2, True), step(1, 2, 2, 1, True), step(1, 1, 2, 0, False), step(1, 0, 2, 2, False)],
        [step(2, 1, 0, 0, True), step(2, 0, 0, 2, True), step(2, 2, 0, 1, False), step(2, 1, 0, 0, False)],
        [step(0, 2, 1, 1, True), step(0, 1, 1, 0, True), step(0, 0, 1, 2, False), step(0, 2, 1, 1, False)],
    ]


SIZES = (range(1, 21), pytest.param(range(21, 65), marks=pytest.mark.soak))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("collective", COLLECTIVES, ids=str)
def test_every_table_up_to_64_workers_is_proved_and_takes_its_closed_form(collective: Collective, sizes: range) -> None:
    for workers in worlds(collective, sizes):
        prove(collective, workers)
        for link in LINKS:
            closed, table = collective.seconds(workers, 1e6, *link), table_seconds(collective, workers, 1e6, *link)
            assert closed == pytest.approx(table, rel=1e-12), f"{workers} workers over {link}"


@pytest.mark.parametrize(
    ("collective", "workers", "steps"),
    [(Ring(), 8, 14), (Tree(), 8, 6), (HalvingDoubling(), 8, 6), (HalvingDoubling(), 9, 8), (Central(), 8, 14)],
    ids=str,
)
def test_the_number_of_steps_is_the_literatures(collective: Collective, workers: int, steps: int) -> None:
    assert prove(collective, workers) == steps


class SwappedReceive(Ring):
    def steps(self, worker, workers):  # type: ignore[no-untyped-def]
        for number, step in enumerate(super().steps(worker, workers)):
            wrong = step.receive._replace(first=step.send.first, stop=step.send.stop)
            yield step._replace(receive=wrong) if (worker, number) == (1, 0) else step


class LostStep(Ring):
    def steps(self, worker, workers):  # type: ignore[no-untyped-def]
        steps = list(super().steps(worker, workers))
        yield from steps[:-1] if worker == 2 else steps


class NeverReduces(Ring):
    def steps(self, worker, workers):  # type: ignore[no-untyped-def]
        return (step._replace(reduce=False) for step in super().steps(worker, workers))


class AroundTwice(Ring):
    def steps(self, worker, workers):  # type: ignore[no-untyped-def]
        return (step._replace(reduce=True) for step in super().steps(worker, workers))


class RecursiveDoublingInPlace(Ring):
    """Both partners add into the vector that the other is reading."""

    def steps(self, worker, workers):  # type: ignore[no-untyped-def]
        distance = 1
        while distance < workers:
            whole = Part(worker ^ distance, 0, workers)
            yield Step(whole, whole)
            distance *= 2


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (SwappedReceive, "it waits for ever"),
        (LostStep, "missing for worker 2"),
        (NeverReduces, "instead of one contribution"),
        (AroundTwice, "twice to segment"),
        (RecursiveDoublingInPlace, "may still be reading"),
    ],
)
def test_a_broken_table_is_refused_with_its_story(broken: type[Ring], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        prove(broken(), 4)


def test_groups_that_are_not_equal_are_refused_with_those_that_would_be() -> None:
    with pytest.raises(PlanError, match="6 workers do not make 4 equal groups; groups=1 or 2 or 3 or 6 would do"):
        prove(Hierarchical(4), 6)


@pytest.mark.parametrize("collective", COLLECTIVES, ids=str)
def test_executing_the_table_sums_and_leaves_the_same_bits_everywhere(collective: Collective) -> None:
    from paceline.runtime.engines.arithmetic.synchronous import execute

    for workers in worlds(collective, range(1, 10)):
        flats = [torch.randn(403) for _ in range(workers)]
        total = torch.stack(flats).sum(0)
        execute(collective, flats)
        assert torch.allclose(flats[0], total, atol=1e-5)
        assert all(torch.equal(flat, flats[0]) for flat in flats)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("graph", GRAPHS)
def test_neighbours_are_proved_to_mix_and_take_their_closed_form(graph: str, sizes: range) -> None:
    collective = Neighbours(graph)
    for workers in sizes:
        steps = prove_mixing(collective, workers)
        assert steps == len(collective.weights(0, workers)) - 1
        for link in LINKS:
            closed, table = collective.seconds(workers, 1e6, *link), table_seconds(collective, workers, 1e6, *link)
            assert closed == pytest.approx(table, rel=1e-12), f"{workers} workers over {link}"


class Lopsided(Neighbours):
    def weights(self, worker, workers):  # type: ignore[no-untyped-def]
        return [(w, 0.5 if w == 0 else 0.5 / (workers - 1)) for w in range(workers)]


def test_weights_that_move_the_mean_are_refused() -> None:
    with pytest.raises(PlanError, match="weights of column 0 sum to 2"):
        prove_mixing(Lopsided("complete"), 4)


class Unheard(Neighbours):
    def weights(self, worker, workers):  # type: ignore[no-untyped-def]
        return [(w, 1 / workers) for w in range(workers)]


def test_weights_of_a_worker_that_sends_nothing_are_refused() -> None:
    with pytest.raises(PlanError, match=r"worker 0 is sent \[1, 3\] and mixes \[0, 1, 2, 3\]"):
        prove_mixing(Unheard("ring"), 4)


EVERY_COLLECTIVE = [*COLLECTIVES, *map(Neighbours, GRAPHS)]


def by_table(collective: Collective, came: list[float], size: float, world: World) -> Exchanged:
    """What `meet` says, from the table itself, step by step and worker by worker."""
    workers, piece = len(came), size / collective.segments(len(came))
    clocks, waited, sent = list(came), [0.0] * workers, [0] * workers
    for row in zip(*(collective.steps(worker, workers) for worker in range(workers)), strict=True):
        for worker, step in enumerate(row):
            if step.receive is not None:
                waited[worker] += max(0.0, clocks[step.receive.other] - clocks[worker])
            if step.send is not None:
                sent[worker] += round((step.send.stop - step.send.first) * piece)
        clocks = advance(clocks, row, piece, world.latency, world.bandwidth)
    return Exchanged(clocks, waited, sent)


@pytest.mark.parametrize("collective", EVERY_COLLECTIVE, ids=str)
def test_bytes_waiting_and_ends_of_every_worker_are_the_tables(collective: Collective) -> None:
    for workers in worlds(collective, [*range(1, 65, 7), 64, 66, 96]):
        chance = random.Random(workers)
        for latency, bandwidth in LINKS:
            came = [chance.expovariate(100) for _ in range(workers)]
            world = World(latency=latency, bandwidth=bandwidth)
            assert exchange(collective, came, 220_200, world) == by_table(collective, came, 220_200, world)
        assert has_its_rounds(collective, workers)


@pytest.mark.parametrize("plan", ["ring", "tree", "halving_doubling", "central", "gossip", "gossip:graph=exponential"])
def test_a_65th_worker_changes_little_of_what_each_sends(plan: str) -> None:
    def sent(workers: int) -> float:
        chosen = Plan.parse(plan, workers)
        met = simulate(chosen, Agenda(20 * workers * 4, 20 * workers, 1, parts=workers), World()).of_kind(
            Kind.COLLECTIVE
        )
        assert len(met) == 4 * workers
        return float(met["bytes"].mean())

    assert sent(64) > 0
    assert sent(65) == pytest.approx(sent(64), rel=0.2)
    assert sent(100) == pytest.approx(sent(64), rel=0.2)


@pytest.mark.parametrize("workers", [64, 65, 100])
@pytest.mark.parametrize("updates", [1, 2, 3])
def test_a_straggler_under_gossip_delays_only_those_it_reaches(workers: int, updates: int) -> None:
    def ends(speeds: tuple[float, ...]) -> list[int]:
        world, plan = World(jitter=0.0, speeds=speeds), Plan.parse("gossip:graph=ring", workers)
        rows = simulate(plan, Agenda(workers * updates, workers, 1, parts=workers), world).of_kind(Kind.COLLECTIVE)
        return [int(rows[rows["worker"] == worker]["end"].max()) for worker in range(workers)]

    straggler = 30
    alike, late = ends(()), ends((1.0,) * straggler + (1e-3,))
    delayed = {worker for worker in range(workers) if late[worker] != alike[worker]}
    assert delayed == set(range(straggler - updates, straggler + updates + 1))
