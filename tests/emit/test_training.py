"""What is to be trained: what is left out is filled in, and what cannot be is refused."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.emit.training import training
from paceline.errors import PacelineError
from paceline.plans.plan import RECIPES


def test_what_is_left_out() -> None:
    small = training("experiments/My net.py:big", "downpour", 4)
    assert (small.name, small.nodes, small.cpus, small.gpus, small.memory) == ("my-net-big", 4, 1, 0, None)
    assert small.begins == ["--plan", "downpour:workers=4", "--checkpoint-every", "60s"]
    wide = training("digits", "ring:workers=7,threads=3", nodes=2)
    assert (wide.name, wide.nodes, wide.cpus) == ("digits", 2, 12)
    usual = training("digits", "ring")
    assert usual.begins[:4] == ["--plan", "ring", "--workers", str(usual.plan.workers)]
    assert training("digits", "sequential").begins == ["--plan", "sequential", "--checkpoint-every", "60s"]


def test_a_plan_without_checkpoints_is_not_asked_for_them() -> None:
    without = [name for name in RECIPES if name not in ONE_MACHINE and not training("digits", name).resumable]
    for name in without:
        assert "--checkpoint-every" not in training("digits", name).begins
    assert "downpour" not in without


ONE_MACHINE = {
    "hogwild", "ddp", "layers", "gpipe", "one_f_one_b", "interleaved", "zero_bubble", "pipedream", "spectrain", "table",
}  # fmt: skip


@pytest.mark.parametrize("plan", sorted(set(RECIPES) - {"table"}))
def test_data_parallel_plans_are_for_many_machines(plan: str) -> None:
    if plan in ONE_MACHINE:
        with pytest.raises(PacelineError, match=f"plan '{plan}' runs on one machine only"):
            training("digits", plan)
    else:
        assert training("digits", plan).plan.name == plan


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"plan": "dwnpour"}, "did you mean 'downpour'"),
        ({"plan": "ring:workers=0"}, "workers=0"),
        ({"plan": "ring:wrokers=2"}, "did you mean 'workers'"),
        ({"plan": "sequential", "workers": 4}, "--workers 4: plan sequential has 1"),
        ({"nodes": 0}, "--nodes 0: give 1 to 2"),
        ({"nodes": 3}, "--nodes 3: give 1 to 2"),
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
