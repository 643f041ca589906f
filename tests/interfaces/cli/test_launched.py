"""What ranks say of a failure, to people and to torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from paceline.interfaces.cli.environment import rank_before
from tests.interfaces.cli.conftest import Command


def test_torchrun_names_the_message_as_the_root_cause(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    done = command("train", "job.py", "--plan", "rign")
    assert done.code == 2
    said = str(ChildFailedError("paceline", {0: ProcessFailure(0, 4711, done.code, str(file))}))
    assert "PlanError: there is no plan 'rign'; did you mean 'ring'?" in said
    assert "To enable traceback" not in said


def test_a_message_of_another_rank_says_so(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }.items():
        monkeypatch.setenv(name, value)
    assert command("train", "job.py", "--plan", "rign").err.startswith("rank 1: PlanError: ")
    assert rank_before({}) == ""
    monkeypatch.setenv("RANK", "0")
    assert command("train", "job.py", "--plan", "rign").err.startswith("PlanError: ")
