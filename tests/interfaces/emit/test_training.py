"""What is to be trained: what is left out is filled in, and what cannot be is refused."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import PacelineError, PlanError
from paceline.interfaces.emit.training import ROSTERS, training
from paceline.plans.clusters import check_method
from paceline.plans.plan import RECIPES, Plan


def test_what_is_left_out() -> None:
    small = training("experiments/My net.py:big", "downpour", 4)
    assert (small.name, small.nodes, small.cpus, small.gpus, small.memory) == ("my-net-big", 4, 1, 0, None)
    assert small.begins == ["--plan", "downpour:workers=4", "--checkpoint-every", "60s"]
    wide = training("digits", "ring:workers=7,threads=3", nodes=2)
    assert (wide.name, wide.nodes, wide.cpus) == ("digits", 2, 12)
    usual = training("digits", "ring")
    assert usual.begins[:4] == ["--plan", "ring", "--workers", str(usual.plan.workers)]
    one = training("digits", "sequential", nodes=1, roster="environment")
    assert one.begins == ["--plan", "sequential", "--checkpoint-every", "60s"]


@pytest.mark.parametrize("roster", ROSTERS)
@pytest.mark.parametrize("nodes", [None, 1])
@pytest.mark.parametrize("name", sorted(set(RECIPES) - {"table"}))
def test_what_is_written_is_accepted_where_it_runs(name: str, nodes: int | None, roster: str) -> None:
    """The words of the command are those that `paceline train` takes on such nodes, for every plan."""
    plan = Plan.parse(name)
    here = roster == "environment" and (nodes or plan.workers) == 1
    try:
        if not here:
            check_method(plan)
    except PlanError:
        with pytest.raises(PlanError, match="--roster environment --nodes 1"):
            training("digits", name, nodes=nodes, roster=roster)
        return
    found = training("digits", name, nodes=nodes, roster=roster)
    assert found.plan.name == name
    keeps = not plan.traits.no_checkpoints
    assert ("--checkpoint-every" in found.begins) == keeps == found.resumable


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"plan": "dwnpour"}, "did you mean 'downpour'"),
        ({"plan": "ring:workers=0"}, "workers=0"),
        ({"plan": "ring:wrokers=2"}, "did you mean 'workers'"),
        ({"plan": "sequential", "workers": 4}, "--workers 4: plan sequential has 1"),
        ({"nodes": 0}, "--nodes 0: give 1 to 2"),
        ({"nodes": 3}, "--nodes 3: give 1 to 2"),
        ({"workers": 4, "nodes": 2, "roster": "environment"}, "--nodes 2: under --roster environment each node has"),
        ({"cpus": 0}, "--cpus 0: give a whole number from 1"),
        ({"gpus": -1}, "--gpus -1: give a whole number from 0"),
        ({"memory": 0}, "--memory 0: give a whole number from 1"),
        ({"roster": "rai"}, "--roster 'rai': did you mean 'ray'"),
        ({"job": ""}, "JOB '' is empty"),
        ({"job": "a\nb.py"}, "contains a line break"),
        ({"job": "-x.py"}, "write ./-x.py"),
    ],
)
def test_what_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(PacelineError) as error:
        training(**({"job": "job.py", "plan": "ring"} | given))
    assert says in str(error.value)
