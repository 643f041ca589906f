"""`prove --machines` says what was walked, tells the story of a fault, and refuses plans without shard servers."""

from __future__ import annotations

import pytest

from paceline.errors import PlanError
from paceline.planning.explain.cluster_proof import FAULTS, prove_cluster
from paceline.plans.plan import Plan
from tests.algorithms.cluster.planted_faults import PLANTED


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["downpour", "ssp:bound=1"])
def test_a_plan_with_shard_servers_is_proved(plan: str) -> None:
    found = prove_cluster(Plan.parse(plan), 3)
    assert found.holds, str(found)
    assert len([line for line in found.says if line.startswith("every interleaving")]) == len(FAULTS)
    assert found.figures["states"] > 100_000
    assert found.as_dict()["machines"] == 3


def test_a_fault_is_told_as_a_story() -> None:
    said: list[str] = []
    found = prove_cluster(Plan.parse("downpour"), 3, PLANTED["KnowsBatchesByWorker"].machines, said.append)
    assert found.holds is False
    assert said[0] == f"walking every interleaving in which {next(iter(FAULTS))} ..."
    assert "A small cluster goes wrong:" in found.says
    assert found.says[-1].endswith("applies batch 0 as version 2 of [0]")


@pytest.mark.parametrize("plan", ["ring", "backup", "hogwild", "easgd:mode=asynchronous"])
def test_a_plan_without_shard_servers_is_refused(plan: str) -> None:
    with pytest.raises(PlanError, match="use downpour, ssp or dc_asgd"):
        prove_cluster(Plan.parse(plan, 2), 3)


def test_a_proof_needs_several_machines() -> None:
    with pytest.raises(PlanError, match="from 2 to 64"):
        prove_cluster(Plan.parse("downpour"), 1000)
