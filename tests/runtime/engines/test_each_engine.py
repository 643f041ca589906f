"""One short run on each engine, which shows quickly whether training works at all."""

from __future__ import annotations

import os
import warnings

import pytest

import paceline as pl
from paceline.interfaces.testing.conformance import check_run, difference
from paceline.interfaces.testing.jobs import JOBS
from paceline.runtime.engines.setup import set_up
from paceline.runtime.runs.trace import Kind

PLANS = ("sequential", "ring:workers=2", "downpour:workers=2", "gossip:workers=2", "one_f_one_b:workers=2")


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("engine", ["virtual", "local"])
def test_a_short_run_keeps_its_invariants_and_replays(plan: str, engine: str) -> None:
    run = pl.train(JOBS["residual"](), plan, engine=engine, folder=None, max_updates=6)
    check_run(run, pl.Plan.parse(run.summary()["plan"]))
    assert run.summary()["updates"] == 6


@pytest.mark.parametrize("plan", ["downpour:workers=2", "hogwild:workers=2"])
def test_a_push_moves_a_gradient_there_and_the_parameters_back(plan: str) -> None:
    run = pl.train(JOBS["mlp"](), plan, engine="virtual", folder=None, max_updates=3)
    size = sum(p.nbytes for p in run.model.parameters())
    assert {int(moved) // size for moved in run.trace.of_kind(Kind.APPLY)["bytes"]} == {2}


def test_a_crowd_of_processes_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        set_up(JOBS["mlp"](), pl.Plan.parse("ring:workers=9"), "local")
        set_up(JOBS["mlp"](), pl.Plan.parse("ring:workers=8"), "local")
    assert [str(note.message) for note in noted if "with its own PyTorch" in str(note.message)] == [
        "9 workers on 1 core: each is a process with its own PyTorch, and they take turns"
    ]


def test_pytorchs_own_ddp_trains_as_a_ring_does() -> None:
    run = pl.train(JOBS["mlp"](), "ddp:workers=2", folder=None, max_updates=3)
    ring = pl.train(JOBS["mlp"](), "ring:workers=2", engine="virtual", folder=None, max_updates=3)
    summary = run.summary()
    assert summary["updates"] == 3
    # What happens inside PyTorch is not in the trace: unknown is not zero.
    assert (summary["wait_fraction"], summary["bytes_sent"]) == (None, None)
    assert difference(run.model, ring.model) < 1e-9
