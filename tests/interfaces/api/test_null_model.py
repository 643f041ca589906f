"""Null steps on real processes: every case trains, bytes are those of the case, and the table has all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import paceline
from paceline.errors import RunFolderError, UsageError
from paceline.interfaces.api.planning import null_model
from paceline.interfaces.api.planning.null_model import (
    CASES,
    FLOAT,
    ROWS,
    WIDTH,
    NullModel,
    NullStep,
    RefusedCase,
    bench,
    null_job,
)
from paceline.interfaces.cli.tables import table
from paceline.interfaces.testing.jobs import JOBS

# --- A recorded run, opened in Python ---------------------------------------------------------------------------------


def test_a_run_is_opened_as_train_returned_it(tmp_path: Path) -> None:
    run = paceline.train(JOBS["mlp"](), "ring", workers=2, folder=tmp_path, max_updates=3)
    assert run.path is not None
    again = paceline.load_run(run.path)
    assert again.record == run.record
    assert again.job.batch_size == run.job.batch_size
    assert len(again.trace) == len(run.trace)
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), run.model.parameters(), strict=True))
    (run.path / "model.pt").unlink()
    with pytest.raises(RunFolderError, match="--resume"):
        paceline.load_run(run.path)


def test_a_world_is_not_ignored() -> None:
    with pytest.raises(UsageError, match="engine='virtual'"):
        paceline.train(JOBS["mlp"](), "ring", workers=2, world=paceline.World())


def test_a_scalar_is_exchanged_in_three_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(null_model, "ROUNDS", 1)
    found = bench(("scalar",), (2,), seconds=0.02)
    assert [step.mode for step in found.steps] == ["asynchronous", "server", "all-reduce"]
    assert all(0 < step.low <= step.step <= step.high for step in found.steps)
    assert not found.refused
    assert json.loads(json.dumps(found.as_dict()))["published_ms"]["scalar"] == [1.8, 8.8]
    assert "| scalar | 2 |" in table(found)


def test_a_sparse_step_carries_its_rows_and_not_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(null_model, "ROUNDS", 1)
    monkeypatch.setitem(null_model.CASES, "sparse 16 MB", 1_024_000)
    monkeypatch.setitem(null_model.CASES, "sparse 256 MB", 2_048_000)
    found = bench(("sparse",), (1,), seconds=0.02)
    rows = [step for step in found.steps if step.mode == "asynchronous"]
    assert len(rows) == 2
    for step in rows:
        # There and back: at most as many rows as a batch has, with their numbers.
        assert 0 < step.bytes <= 2 * ROWS * (WIDTH * FLOAT + 8)


def test_the_cases_have_the_sizes_that_they_name() -> None:
    for case in ("scalar", "dense 1 MB"):
        assert sum(p.nbytes for p in null_job(case).make_model().parameters()) == CASES[case]


def test_the_table_says_what_could_not_be_trained() -> None:
    step = NullStep("sparse 16 MB", "asynchronous", "downpour:workers=2", 2, 0.01, 0.009, 0.02, 200.0, 65_536.0)
    found = NullModel(
        2, (step,), (RefusedCase("sparse 16 MB", "all-reduce", 2, "plan ring exchanges dense gradients"),)
    )
    text = table(found)
    assert "| sparse 16 MB | 2 | 10 (9 to 20) | - | - | 0.0655 |" in text
    assert "Not measured: sparse 16 MB, all-reduce: plan ring exchanges dense gradients" in text
