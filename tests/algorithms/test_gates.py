"""The guarantee of each gate, in every interleaving of a small world and in many random large ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.server.desk import Desk
from paceline.algorithms.server.gates import Backup, StaleSynchronous
from paceline.algorithms.server.messages import Action, Apply, Death, Finish, Late, Lease
from paceline.algorithms.server.shard import Gathering
from paceline.plans.plan import Plan
from paceline.runtime.engines.virtual import World, explore, simulate
from paceline.runtime.runs.trace import Kind, Trace

if TYPE_CHECKING:
    from paceline.algorithms.server.messages import State


def soaked(*values: int) -> Any:
    return pytest.param(*values, marks=pytest.mark.soak)


class Counts(Desk):
    """A desk that counts each worker's finished batches itself, and asserts that no lease goes to one too far ahead."""

    BOUND = 1

    def __init__(self, *args) -> None:  # type: ignore[no-untyped-def]
        super().__init__(*args)
        self._count = self.ints
        self.ints += self.workers

    def init(self, state) -> None:  # type: ignore[no-untyped-def]
        super().init(state)
        state[self._count : self._count + self.workers] = [0] * self.workers

    def handle(self, state, event):  # type: ignore[no-untyped-def]
        if isinstance(event, Finish):
            state[self._count + event.worker] += 1
        action = super().handle(state, event)
        if isinstance(event, Death):
            state[self._count + event.worker] = 10**6
        if isinstance(action, Lease):
            counts = state[self._count : self._count + self.workers]
            assert counts[event.worker] - min(counts) <= self.BOUND
        return action


@pytest.mark.parametrize(("batches", "deaths"), [(4, 0), (3, 1), soaked(5, 0), soaked(4, 1), soaked(3, 2)])
def test_ssp_keeps_its_bound_in_every_interleaving_of_three_workers(batches: int, deaths: int) -> None:
    found = explore(3, batches, deaths=deaths, gate=StaleSynchronous(1), desk=Counts)
    assert found.good, found.story
    assert found.states > 1000


def test_the_check_would_notice_a_gate_that_is_one_off() -> None:
    with pytest.raises(AssertionError):
        explore(3, 5, gate=StaleSynchronous(2), desk=Counts)


def test_ssp_with_bound_0_keeps_step() -> None:
    class KeepsStep(Counts):
        BOUND = 0

    assert explore(3, 5, gate=StaleSynchronous(0), desk=KeepsStep).good


@pytest.mark.parametrize(
    ("workers", "needed", "batches", "deaths"),
    [
        (1, 1, 3, 0),
        (2, 2, 4, 1),
        (2, 1, 3, 1),
        (3, 2, 4, 0),
        (3, 2, 2, 1),
        (3, 3, 2, 1),
        (3, 1, 2, 1),
        soaked(3, 2, 4, 1),
        soaked(3, 3, 3, 1),
        soaked(3, 1, 2, 2),
    ],
)
def test_backup_makes_every_version_of_fresh_gradients(workers: int, needed: int, batches: int, deaths: int) -> None:
    found = explore(workers, batches, deaths=deaths, gate=Backup(needed), gathers=needed)
    assert found.good, found.story


def test_a_backup_gate_that_does_not_count_the_dead_is_told() -> None:
    class WaitsForTheDead(Backup):
        def died(self, state: State, at: int, worker: int) -> None:
            pass

    found = explore(2, 4, deaths=1, gate=WaitsForTheDead(2), gathers=2)
    assert found.story is not None
    assert "wait for ever" in found.story


def test_a_shard_that_holds_what_is_too_old_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(self: Gathering, state: State, event: Any) -> Action:
        action = honest(self, state, event)
        if not isinstance(action, Late):
            return action
        state[0] += 1
        return Apply(state[0], self.base(state, event.worker))

    honest = Gathering.handle
    monkeypatch.setattr(Gathering, "handle", handle)
    found = explore(2, 2, gate=Backup(1), gathers=1)
    assert found.story is not None
    assert "too old for its round" in found.story


def test_one_backup_hides_the_stalls_of_one_worker_at_a_time() -> None:
    def seconds(plan: Plan, straggle: tuple[float, float]) -> int:
        world = World(straggle=straggle, seed=1)
        return int(simulate(plan, plan.agenda(200 * 400, 400), world).rows["end"].max())

    slower = {}
    for text in ("backup:workers=4,backups=0", "backup:workers=5,backups=1"):
        plan = Plan.parse(text)
        slower[plan.options["backups"]] = seconds(plan, (0.01, 10.0)) / seconds(plan, (0.0, 1.0))
    assert slower[0] > 1.25
    assert slower[1] < 1.1


WORKERS, BATCHES, BYTES = 8, 32, 220_200


@pytest.mark.parametrize("worlds", [300, soaked(10_000)])
def test_ssp_keeps_its_bound_in_random_worlds_of_eight_with_stragglers_and_a_death(worlds: int) -> None:
    chance = np.random.default_rng(0)
    reached = set()
    for seed in range(worlds):
        bound = int(chance.integers(0, 5))
        world = World(
            speeds=tuple(chance.uniform(0.3, 1.0, WORKERS)),
            straggle=(0.1, 8.0),
            deaths={int(chance.integers(WORKERS)): float(chance.uniform(0, 3e-3))},
            seed=seed,
        )
        plan = Plan.parse(f"ssp:workers={WORKERS},bound={bound}")
        trace = simulate(plan, Agenda(BATCHES * 100, 100, 1), world, BYTES)
        most = _furthest_ahead(trace, world)
        assert most <= bound, f"seed {seed}: {most} ahead under a bound of {bound}"
        reached.add((bound, most))
    assert {(bound, bound) for bound in range(3)} <= reached, "the bound was never even reached"


def _furthest_ahead(trace: Trace, world: World) -> int:
    """Return by how many batches a worker was ahead of the slowest living worker when it began one."""
    rows = trace.rows
    back = world.travel(BYTES) * 1e9
    death = {int(r["worker"]): int(r["start"]) for r in trace.of_kind(Kind.DEATH)}
    begun = rows[rows["kind"] == Kind.COMPUTE]
    pushed = rows[np.isin(rows["kind"], (Kind.APPLY, Kind.DROP))]
    ends = [np.sort(pushed["end"][pushed["worker"] == w]) + back for w in range(WORKERS)]
    most = 0
    for worker, start in zip(begun["worker"].tolist(), begun["start"].tolist(), strict=True):
        clocks = {
            w: int(np.searchsorted(ends[w], start + 2, side="right"))  # times are rounded to nanoseconds
            for w in range(WORKERS)
            if death.get(w, start + 1) > start
        }
        most = max(most, clocks[worker] - min(clocks.values()))
    return most
