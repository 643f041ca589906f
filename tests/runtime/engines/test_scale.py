"""Simulations of many workers: the closed form of a ring, racks, repairs, and how the cost of a push grows."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace

import numpy as np
import pytest

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.collectives.rings import Ring
from paceline.errors import UsageError
from paceline.plans.plan import Plan
from paceline.runtime.engines.virtual import World, simulate, simulate_totals, world
from paceline.runtime.engines.virtual.rows import Totals
from paceline.runtime.runs.trace import Kind

WORLD = World(compute=1e-5, jitter=0.5, update=1e-6)


def _agenda(plan: Plan, updates: int, batch: int = 100) -> Agenda:
    return plan.agenda(batch * updates, batch)


@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-3])
def test_a_large_ring_in_closed_form_is_the_one_step_by_step(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)
    came = [chance.uniform(0, spread) for _ in range(600)]
    closed = world.exchange(Ring(), came, 1e6, World())
    monkeypatch.setattr(world, "LARGE", 10**9)
    steps = world.exchange(Ring(), came, 1e6, World())
    assert closed.ends == pytest.approx(steps.ends, rel=1e-9)
    assert closed.sent == steps.sent


@pytest.mark.parametrize("name", ["ring", "tree", "local_sgd:every=3", "gossip"])
def test_all_workers_at_once_are_the_same_as_one_after_another(name: str) -> None:
    """A death that comes too late to matter makes the engine take workers one after another."""
    plan = Plan.parse(name, 8)
    once = simulate(plan, _agenda(plan, 7, 80), WORLD)
    each = simulate(plan, _agenda(plan, 7, 80), replace(WORLD, deaths={0: 1e9}))
    for kind in (Kind.COMPUTE, Kind.COLLECTIVE, Kind.APPLY):
        first, second = once.of_kind(kind), each.of_kind(kind)
        for column in ("start", "end", "waited", "samples", "bytes", "update", "base", "version"):
            assert sorted(first[column].tolist()) == sorted(second[column].tolist()), (kind, column)


@pytest.mark.parametrize("name", ["downpour", "ring", "ssp:bound=1"])
def test_totals_are_those_of_the_trace(name: str) -> None:
    plan = Plan.parse(name, 5)
    agenda = _agenda(plan, 40)
    totals, trace = simulate_totals(plan, agenda, WORLD), Totals.of(simulate(plan, agenda, WORLD))
    assert totals == trace
    assert totals.samples == 4000


def test_staleness_is_one_less_than_workers_on_average() -> None:
    plan = Plan.parse("downpour", 64)
    found = simulate_totals(plan, _agenda(plan, 64 * 40), WORLD)
    # The identity: each of 64 workers misses what is applied after its last push and before its first.
    assert found.mean_staleness == pytest.approx(63, abs=64 / 40)
    assert found.quantile(0.5) == pytest.approx(63, abs=4)


def test_workers_die_and_others_take_their_places() -> None:
    plan = Plan.parse("downpour", 20)
    agenda = _agenda(plan, 20 * 30)
    quiet = simulate_totals(plan, agenda, WORLD)
    failing = WORLD.with_failures(20, mtbf=quiet.seconds, repair=quiet.seconds / 10, seconds=quiet.seconds)
    assert failing.deaths
    repaired = simulate_totals(plan, agenda, failing)
    lost = simulate_totals(plan, agenda, replace(failing, repairs={}))
    assert quiet.seconds < repaired.seconds < lost.seconds
    applied = [each.count[Kind.APPLY] for each in (quiet, repaired, lost)]
    assert applied == [600] * 3


def test_racks_share_their_link() -> None:
    plan = Plan.parse("downpour", 16)
    agenda = _agenda(plan, 160)
    flat = simulate_totals(plan, agenda, WORLD, 1_000_000)
    racks = simulate_totals(plan, agenda, replace(WORLD, rack=4, uplink=1e9, far_latency=1e-4), 1_000_000)
    narrow = simulate_totals(plan, agenda, replace(WORLD, rack=4, uplink=1e8, far_latency=1e-4), 1_000_000)
    # Workers beside the server take over most batches of those behind a narrow link.
    assert flat.seconds < racks.seconds < narrow.seconds
    assert narrow.mean_staleness != racks.mean_staleness


def test_a_ring_crosses_racks_at_their_borders_only() -> None:
    flat = world.exchange(Ring(), [0.0] * 8, 8e6, World())
    racks = world.exchange(Ring(), [0.0] * 8, 8e6, replace(World(), rack=4, uplink=1e9))
    assert 14 * 1e-3 <= max(racks.ends) <= 14 * (1e-3 + 1e-4)
    assert max(flat.ends) < max(racks.ends)


@pytest.mark.parametrize("spread", ["uniform", "normal", "lognormal", "exponential"])
def test_speeds_are_drawn_and_fixed_by_the_seed(spread: str) -> None:
    first, second = (World().with_speeds(50, spread, 0.3) for _ in range(2))
    assert first.speeds == second.speeds
    assert len(set(first.speeds)) > 40
    assert min(first.speeds) >= 0.05


@pytest.mark.parametrize(
    "wrong", [{"bandwidth": 0.0}, {"latency": -1.0}, {"speeds": (1.0, 0.0)}, {"compute": math.nan}]
)
def test_impossible_worlds_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="give"):
        World(**wrong)  # type: ignore[arg-type]


def test_shares_of_an_agenda_are_its_chunks() -> None:
    for parts in (1, 3, 7):
        agenda = Agenda(103, 10, 2, accumulate=3, parts=parts)
        for update in range(agenda.updates):
            chunks = agenda.chunks(update)
            for part in range(parts):
                assert agenda.mine(update, part) == [c for c in chunks[part::parts] if c.samples]


@pytest.mark.soak
def test_the_cost_of_a_push_grows_no_faster_than_the_logarithm_of_the_workers() -> None:
    costs = []
    for workers in (64, 256, 1024, 4096):
        plan = Plan.parse("downpour", workers)
        begin = time.process_time()
        simulate_totals(plan, _agenda(plan, workers * 50), WORLD)
        costs.append((time.process_time() - begin) / (workers * 50))
    slope = np.polyfit(np.log([64, 256, 1024, 4096]), np.log(costs), 1)[0]
    assert slope < 0.15, costs


def test_a_large_ring_is_simulated_without_asking_each_worker_about_all_others() -> None:
    plan = Plan.parse("ring", 16_384)
    begin = time.process_time()
    simulate_totals(plan, _agenda(plan, 2), WORLD)
    assert time.process_time() - begin < 30  # half a second; four minutes if the work grows with the workers' square
