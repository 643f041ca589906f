"""Comparing over a network that is simulated: what the clock adds, what codecs cost, what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.algorithms.codecs.catalogue import most_gathered
from paceline.errors import PlanError, UsageError
from paceline.interfaces.api.comparing import compare_link
from paceline.interfaces.api.comparing.compare import compare
from paceline.interfaces.api.comparing.result import Case, Comparison, StepTimes, step, verdict
from paceline.interfaces.api.planning.measuring import Measured
from paceline.plans.plan import Plan
from paceline.runtime.engines.virtual import World, simulate
from paceline.runtime.runs.trace import Kind, Row, Trace
from paceline.training.jobs.job import Job

# --- Where a step goes, and the sentence that says why workers do not pay ---------------------------------------------


def us(value: float) -> int:
    return int(value * 1000)


def test_a_step_adds_up_to_the_time_there_was() -> None:
    rows = []
    for worker in range(2):
        for number in range(10):
            begin = us(1000 * number)
            rows += [
                Row(Kind.COMPUTE, worker, number, start=begin, end=begin + us(600), samples=5, value=1.0),
                Row(Kind.COLLECTIVE, worker, number, start=begin + us(610), end=begin + us(810), waited=us(150)),
                Row(Kind.APPLY, worker, number, 0, number, number + 1, begin + us(850), begin + us(950)),
            ]
    found = step(Trace.of(rows), 2)
    assert found is not None
    assert (found.compute, found.update, found.communicate, found.wait) == (600, 100, 50, 150)
    assert math.isclose(found.whole * 20, 2 * (9 * 1000 + 950))
    assert step(Trace.of([]), 2) is None


def case(speed: float, ceiling: float, single: float = 1000.0, name: str = "1 thread") -> Case:
    return Case("ring", 2, speed, ceiling, single, name, 100, 100, StepTimes(50_000, 0, 10_000, 70_000, 20_000))


def test_workers_that_pay_need_no_word() -> None:
    assert verdict(case(1500.0, 1900.0)) is None


def test_the_cost_of_communication_is_named_with_the_batch_that_would_pay() -> None:
    said = verdict(case(500.0, 2000.0))
    assert said is not None
    assert "0.50 times as fast as one process" in said
    assert "200,000 µs has 150,000 µs" in said
    assert "waiting for others (70,000 µs)" in said
    assert "batch_size of about 300 (here 100)" in said  # 0.15 s of cost, 0.5 ms saved a sample
    at_300 = 300 / (300 / 2000 + 0.150)
    assert math.isclose(at_300, 1000.0)


def test_where_the_ceiling_is_low_nothing_can_help() -> None:
    said = verdict(case(800.0, 1020.0, name="2 threads"))
    assert said is not None
    assert "keeps several cores busy on its own (2 threads)" in said
    assert "no plan gains more here" in said


def test_rounds_that_differ_settle_nothing() -> None:
    said = verdict(replace(case(900.0, 1000.0), doubt=0.3))
    assert said is not None
    assert "rounds differ by 30%" in said
    assert "not clear whether it is worth it" in said
    assert "no plan gains more here" in (
        verdict(replace(case(500.0, 600.0), doubt=0.3)) or ""
    )  # so far off, it is settled


def _job() -> Job:
    torch.manual_seed(1)
    data = torch.randn(480, 32), torch.randint(4, (480,))
    return Job(
        nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)),
        data,
        nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=60,
        test=data,
        name="small",
        device="cpu",
        epochs=5,
    )


def _measured(job: Job, plan: Plan, seconds: float, guess: float, known: bool) -> Measured:
    """A machine that takes ten microseconds for a sample, and a hundred for an update."""
    return Measured(plan, job.batch_size, 1, 1e-3, (1e-5 * job.batch_size,), (1e-4,), (), (), 0.0, 0.0, 0)


def _compared(monkeypatch: pytest.MonkeyPatch, link: str, *plans: str, folder: Path | None = None) -> Comparison:
    monkeypatch.setattr(compare_link, "measure_for", _measured)
    return compare(_job(), plans, link=link, folder=folder)


def test_one_process_is_the_answer_where_the_network_is_slow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plans = ("sequential", "ring", "ring:codec=topk:0.5", "ring:codec=half")
    found = _compared(monkeypatch, "10kbit,1s", *plans, folder=tmp_path)
    assert found.answer.plan == "sequential" or str(found.answer.plan).startswith("sequential:threads")
    assert "10kbit,1s (simulated" in found.answer.sentence
    alone, ring, top, half = found.rows
    payload = found.table.dense_bytes
    assert payload is not None
    # Six steps of a quarter of the vector each, and a second for each.
    assert ring.step is not None
    assert ring.step.communicate / 1e6 == pytest.approx(6 * (1.0 + payload / 4 / 1250), rel=0.02)
    assert ring.bytes_per_update == pytest.approx(4 * 1.5 * payload, rel=0.01)
    assert half.bytes_per_update == pytest.approx(ring.bytes_per_update / 2, rel=0.1)
    assert alone.step is not None
    assert alone.step.communicate == 0
    assert alone.samples_per_second == pytest.approx(60 / 7e-4, rel=0.01)
    assert [note for note in found.notes if note.startswith(top.plan)], "top-k at a density of 1/2 cannot pay"
    assert {row.codec: row.most_workers for row in found.table.codecs} == {"topk:0.5": 2, "half": None}
    assert found.path is not None
    assert json.loads((found.path / "comparison.json").read_text())["link"] == "10kbit,1s"


def test_several_machines_are_the_answer_where_nothing_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _compared(monkeypatch, "1000000Gbit,0us", "sequential", "downpour")
    assert str(found.answer.plan).startswith("downpour")
    assert 'engine="cluster"' in str(found.answer.command)
    assert found.rows[1].speedup == pytest.approx(4, rel=0.1)


def test_a_training_whose_loss_is_not_finite_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_link, "measure_for", _measured)
    job = _job()
    inputs, labels = job.data
    inputs[7] = torch.nan
    found = compare(job.with_(data=(inputs, labels), test=None), ["sequential", "ring"], link="1Gbit,1ms", folder=None)
    assert found.notes[0].startswith("the training loss was not finite at the end of sequential, ring x4: ")


def test_a_busy_machine_leaves_a_simulated_comparison_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_link, "measure_for", lambda *args: replace(_measured(*args), core_wait=0.4))
    found = compare(_job(), ["sequential", "ring"], link="1Gbit,1ms", folder=None)
    assert found.answer.kind == "undecided"
    assert "workers waited for one 40% of their time" in found.answer.sentence


def test_what_gathered_messages_can_save() -> None:
    assert most_gathered(8.0, 100.0) == 24  # a density of 0.04: below 1 / P up to 24 workers
    assert most_gathered(100.0, 100.0) == 1
    assert most_gathered(25.0, 100.0) == 7  # bytes instead of floats


def test_workers_wait_for_the_link_of_the_servers_machine() -> None:
    plan = Plan.parse("downpour:workers=4")
    alone = World(compute=0.0, jitter=0.0, update=0.0, latency=0.0, bandwidth=1e6)
    shared = World(compute=0.0, jitter=0.0, update=0.0, latency=0.0, bandwidth=1e6, copies=2)
    times = [simulate(plan, plan.agenda(4000, 10), world, 1000).rows["end"].max() / 1e9 for world in (alone, shared)]
    # 400 pushes of 1 KB both ways by four links of their own; by one, less those of the worker on its machine.
    assert times[0] == pytest.approx(0.2, rel=0.05)
    assert shared.copies == 2
    assert times[1] < times[0], "a worker beside the server has no network between them"
    slow = World(compute=1e-4, jitter=0.0, update=0.0, latency=0.0, bandwidth=1e6, copies=2)
    pushes = simulate(plan, plan.agenda(4000, 10), slow, 1000).rows
    away = pushes[(pushes["worker"] > 0) & (pushes["version"] > 0)]
    # The parameters and the copies of all pushes leave by one link, a millisecond each.
    assert len(away) / (pushes["end"].max() / 1e9) < 1000


@pytest.mark.parametrize(
    ("plans", "link", "error", "said"),
    [
        (("sequential", "ddp"), "100Mbit,1ms", PlanError, "does not run on a cluster"),
        (("ring:workers=1",), "100Mbit,1ms", PlanError, "nothing travels"),
        (("ring",), "fast", UsageError, "100Mbit,1ms"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    plans: tuple[str, ...], link: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        compare(_job(), plans, link=link, folder=None)


def test_seconds_are_those_of_this_machine() -> None:
    with pytest.raises(UsageError, match="simulated"):
        compare(_job(), ["ring"], link="1Gbit,1ms", seconds=3.0, folder=None)
