"""A recorded run, opened in Python."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paceline
from paceline.errors import RunFolderError, UsageError
from paceline.interfaces.testing.jobs import JOBS


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
