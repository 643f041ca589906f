from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch

import paceline as pl
from paceline.errors import JobError, RunFolderError
from paceline.runs.folder import RunFolder, new_folder
from paceline.runs.record import RunRecord
from paceline.testing.jobs import JOBS

RACERS = 16


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: "20260101-120000")


@pytest.mark.usefixtures("frozen")
def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    together = Barrier(RACERS)

    def begin(_: int) -> Path:
        together.wait()
        path = new_folder(tmp_path / "runs", "job-ring")
        with RunFolder(path) as place:
            place.write(RunRecord())
        return path

    with ThreadPoolExecutor(RACERS) as pool:
        paths = list(pool.map(begin, range(RACERS)))
    numbers = ["", *(f"-{number}" for number in range(1, RACERS))]
    assert sorted(path.name for path in paths) == sorted(f"20260101-120000-job-ring{number}" for number in numbers)
    assert all((path / "run.json").exists() for path in paths)


@pytest.mark.usefixtures("frozen")
def test_a_thousand_runs_of_one_second_are_enough(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"20260101-120000-job{f'-{number}' if number else ''}").touch()
    with pytest.raises(RunFolderError, match="already holds a thousand runs"):
        new_folder(tmp_path, "job")


def test_a_comparison_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    job = JOBS["mlp"]().with_(data=(torch.zeros(0, 12),))
    with pytest.raises(JobError):
        pl.compare(job, ["sequential"], folder=tmp_path)
    assert not list(tmp_path.iterdir())
