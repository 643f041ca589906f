"""One short run on each engine, which shows quickly whether training works at all."""

from __future__ import annotations

import pytest

import paceline as pl
from paceline.testing.conformance import check_run
from paceline.testing.jobs import JOBS

PLANS = ("sequential", "ring:workers=2", "downpour:workers=2", "gossip:workers=2", "one_f_one_b:workers=2")


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("engine", ["virtual", "local"])
def test_a_short_run_keeps_its_invariants_and_replays(plan: str, engine: str) -> None:
    run = pl.train(JOBS["residual"](), plan, engine=engine, folder=None, updates=6)
    check_run(run, pl.Plan.parse(run.summary()["plan"]))
    assert run.summary()["updates"] == 6


def test_pytorchs_own_ddp_trains() -> None:
    summary = pl.train(JOBS["mlp"](), "ddp:workers=2", folder=None, updates=3).summary()
    assert summary["updates"] == 3
    # What happens inside PyTorch is not in the trace: unknown is not zero.
    assert (summary["wait_fraction"], summary["bytes_sent"]) == (None, None)
