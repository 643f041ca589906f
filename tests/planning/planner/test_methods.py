"""Predictions of methods against closed forms, and their bytes against the virtual engine's trace."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

from paceline.algorithms.codecs.catalogue import CODECS
from paceline.algorithms.collectives.rings import Ring
from paceline.errors import UsageError
from paceline.interfaces.api.planning.measuring import coding
from paceline.planning.planner.cluster import links_of
from paceline.planning.planner.costs import meeting
from paceline.planning.planner.facts import Facts, ModelDivision, coding_of, reads
from paceline.planning.planner.methods import cut, predict
from paceline.planning.planner.prediction import candidates, numbers_of_workers, same_learning
from paceline.planning.planner.simulating import timeline
from paceline.plans.methods.prediction import Coding, NotPredicted, queued
from paceline.plans.plan import RECIPES, Plan, make
from paceline.runtime.engines.virtual import World, simulate
from paceline.runtime.runs.trace import Kind
from paceline.training.gradients.message import MessageShape
from paceline.training.parameters.layout import lay_out
from tests.planning.planner.cards import costs

# --- What codecs cost is part of every prediction ---------------------------------------------------------------------

CODECS_FACTS = Facts(100, 40_000, 40_000, {"int8": Coding(10_000, 0.001, 0.002)})


def test_a_measured_codec_is_taken_and_another_one_estimated() -> None:
    assert coding_of(Plan.parse("ring:codec=int8"), CODECS_FACTS).bytes == 10_000
    assert coding_of(Plan.parse("ring:codec=half"), CODECS_FACTS).bytes == pytest.approx(20_000, rel=0.01)
    assert coding_of(Plan.parse("ring"), CODECS_FACTS) == Coding(40_000, 0.0, 0.0)
    assert [reads(Plan.parse(plan, 4)) for plan in ("ring:codec=int8", "ring:codec=half", "downpour:codec=int8")] == [
        4,
        1,
        1,
    ]


@pytest.mark.parametrize("name", [name for name, row in CODECS.items() if not row.make().variable])
def test_the_bytes_of_a_codec_are_those_of_its_messages(name: str) -> None:
    layout, row = lay_out(nn.Linear(40, 50), 1, []), CODECS[name]
    found = coding(name, layout)
    assert found.bytes == MessageShape(row.make(), layout.shards[0], layout.dtype).fixed
    assert found.encode > 0 < found.decode


def test_codecs_are_candidates_only_where_learning_may_differ() -> None:
    coded = [each.plan for each in candidates((2, 4), 4, "any", codecs=("half", "topk")) if each.plan.codec is not None]
    assert {str(plan) for plan in coded} >= {"ring:workers=2,codec=half", "downpour:workers=4,codec=topk"}
    assert not any(map(same_learning, coded))
    assert not [each for each in candidates((2, 4), 4, "same", codecs=("half",)) if each.plan.codec is not None]


def test_a_link_is_read_as_it_is_said() -> None:
    fast = links_of("1Gbit,0.2ms")
    assert (fast.bandwidth, fast.latency) == (125e6, pytest.approx(2e-4))
    for wrong in ("fast", "100Mbit", "0Mbit,1ms", "1..2Mbit,1ms", "100MB,1ms"):
        with pytest.raises(UsageError, match="link"):
            links_of(wrong)


# --- Closed forms equal the simulation: without jitter and stragglers both take the same seconds for an update --------
# Over several updates the simulation of `central` is faster than its closed form: workers that have their sum begin the
# next update while it is sent to others.

SIMULATING_FACTS = Facts(160, 4_000_000_000, 40_000)  # seconds of exchange, since the trace has whole nanoseconds


@pytest.mark.parametrize("workers", [2, 4, 16])
@pytest.mark.parametrize("name", ["ring", "tree", "halving_doubling", "hierarchical", "central"])
def test_all_reduce(name: str, workers: int) -> None:
    plan = make(name, workers=workers)
    predicted = predict(plan, costs(), SIMULATING_FACTS)
    trace = timeline(plan, costs(), SIMULATING_FACTS, 1)
    assert predicted.seconds == pytest.approx(float(trace.rows["end"].max()) / 1e9, rel=1e-9)


def test_later_updates_of_a_central_worker_overlap() -> None:
    plan, few = make("central", workers=4), Facts(100, 40_000, 40_000)
    predicted = predict(plan, costs(), few)
    trace = timeline(plan, costs(), few, 100)
    assert float(trace.rows["end"].max()) / 1e9 < 100 * predicted.seconds


def test_a_server_with_one_worker_has_nothing_to_wait_for() -> None:
    plan = make("downpour", workers=1)
    predicted = predict(plan, costs(), SIMULATING_FACTS)
    assert predicted.terms.wait == pytest.approx(0, abs=1e-12)
    trace = timeline(plan, costs(), SIMULATING_FACTS, 20)
    rows = trace.of_kind(Kind.APPLY)
    assert predicted.staleness == 0
    assert (rows["version"] - 1 - rows["base"]).max() == 0


FACTS = Facts(batch=100, payload=40_000, served=40_000)


def test_one_process_is_its_parts() -> None:
    found = predict(Plan.parse("sequential"), costs(), FACTS)
    assert found.terms.compute == pytest.approx(1e-3)
    assert found.terms.update == pytest.approx(1e-5)
    assert found.seconds == pytest.approx(1.01e-3)
    assert found.low < found.seconds < found.high


@pytest.mark.parametrize("workers", [2, 4])
def test_a_ring_is_computing_and_its_closed_form(workers: int) -> None:
    found = predict(Plan.parse("ring", workers), costs(), FACTS)
    assert found.terms.exchange == pytest.approx(Ring().seconds(workers, 40_000, 1e-5, 1e9))
    assert found.terms.compute == pytest.approx(1e-5 + 9.9e-4 / workers)


@pytest.mark.parametrize("name", ["ring", "tree", "halving_doubling", "central", "hierarchical"])
def test_bytes_are_those_of_the_trace(name: str) -> None:
    plan, updates = Plan.parse(name, 4), 3
    trace = simulate(plan, plan.agenda(300, 100, limit=updates), World(), FACTS.payload)
    sent = int(trace.rows["bytes"].sum()) / updates / 4
    assert predict(plan, costs(), FACTS).bytes == pytest.approx(sent, rel=1e-6)


def test_a_server_is_bound_by_the_slower_of_workers_and_shard() -> None:
    for workers in (1, 2, 5, 50):
        rate, wait = queued(workers, 1e-3, 1e-4)
        assert rate <= min(workers / 1.1e-3, 1e4) * (1 + 1e-9)
        assert wait >= 0
    assert queued(1, 1e-3, 1e-4)[0] == pytest.approx(1 / 1.1e-3)
    assert queued(200, 1e-3, 1e-4)[0] == pytest.approx(1e4, rel=1e-3)


def test_the_queue_agrees_with_the_virtual_engine() -> None:
    """Within a tenth, for two to eight workers: the queue is an approximation, the engine is not."""
    for workers in (2, 4, 8):
        plan = Plan.parse("downpour", workers)
        world = World(compute=1e-5, jitter=0.2, update=2e-4, latency=0.0, bandwidth=1e12)
        agenda = plan.agenda(100 * 2000, 100)
        trace = simulate(plan, agenda, world, 1000)
        measured = 2000 / (trace.of_kind(Kind.APPLY)["end"].max() / 1e9)
        assert queued(workers, 1.1e-3, 2e-4)[0] == pytest.approx(measured, rel=0.1)


def test_every_plan_is_predicted_or_said_not_to_be() -> None:
    plans = [make(name) for name in RECIPES if name != "table"]
    unknown, facts = set(), replace(FACTS, division=ModelDivision(1000.0, held=0.5))
    for plan in plans:
        try:
            predict(plan, costs(), facts)
        except NotPredicted:
            unknown.add(plan.name)
    unknown -= {plan.name for plan in plans if plan.traits.holds == "stages"}  # this model has too few layers for them
    assert unknown == {"sandblaster", "ampnet"}


def test_split_layers_share_what_is_split() -> None:
    half = ModelDivision(1000.0, messages=4, segments=2, held=0.5, computed={"0": 0.5})
    plan, facts = Plan.parse("tensor", 2), replace(FACTS, division=half)
    found, whole = predict(plan, costs(), facts), predict(Plan.parse("sequential"), costs(), FACTS)
    assert found.terms.compute == pytest.approx(whole.terms.compute / 2)
    assert found.terms.update == pytest.approx(whole.terms.update / 2)
    assert found.terms.exchange == pytest.approx(4 * 1e-5 + 1000 / 1e9)
    assert found.bytes == 1000
    assert found.memory < whole.memory
    with pytest.raises(NotPredicted, match="on the machine"):
        predict(plan, costs(), FACTS)


def test_stages_share_the_model() -> None:
    stages = cut(costs(), 100, 1, 1, 1)
    assert sum(stage.forward + stage.backward for stage in stages) == pytest.approx(1e-3)


def test_candidates_learn_as_one_process_unless_others_are_asked_for() -> None:
    same = list(candidates([2, 4], 4))
    assert all(same_learning(each.plan) for each in same)
    names = {each.plan.name for each in candidates([2, 4], 4, "any")}
    assert {"downpour", "local_sgd", "pipedream"} <= names
    assert "ceiling" not in names
    assert {each.plan.name for each in same} >= {"sequential", "ring", "ddp", "gpipe"}


def test_numbers_of_workers() -> None:
    assert numbers_of_workers(2) == [2]
    assert numbers_of_workers(16) == [2, 3, 4, 8, 16]
    assert numbers_of_workers(2, 4) == [2, 3, 4]


def test_fragments_are_as_many_exchanges_of_a_part_each() -> None:
    """In a period the bytes are the same, and the latency is paid once for each fragment."""
    whole, parts = (
        predict(make("diloco", workers=4, every=8, **options), costs(), Facts(64, 4_000_000, 4_000_000))
        for options in ({}, {"fragments": 4})
    )
    assert parts.bytes == pytest.approx(whole.bytes)
    added = parts.terms.exchange - whole.terms.exchange
    one, none = (meeting(costs(), Ring(), 4, size).seconds for size in (1_000_000, 4_000_000))
    assert added == pytest.approx((4 * one - none) / 8)


def test_of_an_overlapped_exchange_counts_what_computing_does_not_cover() -> None:
    facts = Facts(64, 400_000_000, 400_000_000)
    plans = [make("diloco", workers=4, every=8, fragments=4, overlap=overlap) for overlap in (0, 1, 2)]
    none, one, two = (predict(plan, costs(), facts).terms for plan in plans)
    assert none.exchange - one.exchange == pytest.approx(one.own / 2)
    assert none.exchange - two.exchange == pytest.approx(min(none.exchange, two.own))
