"""What codecs cost is part of every prediction."""

from __future__ import annotations

import pytest
from torch import nn

from paceline.algorithms.codecs.catalogue import CODECS
from paceline.errors import UsageError
from paceline.interfaces.api.planning.coding import coding
from paceline.planning.planner.candidates import candidates, same_learning
from paceline.planning.planner.cluster import links_of
from paceline.planning.planner.facts import Facts, coding_of, reads
from paceline.plans.methods.prediction import Coding
from paceline.plans.plan import Plan
from paceline.training.gradients.message import MessageShape
from paceline.training.parameters.layout import lay_out

FACTS = Facts(100, 40_000, 40_000, {"int8": Coding(10_000, 0.001, 0.002)})


def test_a_measured_codec_is_taken_and_another_one_estimated() -> None:
    assert coding_of(Plan.parse("ring:codec=int8"), FACTS).bytes == 10_000
    assert coding_of(Plan.parse("ring:codec=half"), FACTS).bytes == pytest.approx(20_000, rel=0.01)
    assert coding_of(Plan.parse("ring"), FACTS) == Coding(40_000, 0.0, 0.0)
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
