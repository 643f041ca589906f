"""What people type by mistake: each gets the exit code and the message of wrong_inputs.toml, and never a riddle."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.interfaces.testing.leaks import nothing_left_behind
from tests.interfaces.cli.conftest import Command

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = tomllib.loads(Path(__file__).with_name("wrong_inputs.toml").read_text())
JOB = """
from functools import partial
import os
import torch
from torch import nn
import paceline
x = torch.rand(100, 20, generator=torch.Generator().manual_seed(0))
y = (x[:, :5].sum(1) > 2.5).long()
settings = dict(model=lambda: nn.Linear(20, 10), data=(x, y), loss=nn.CrossEntropyLoss(), batch_size=10,
                optimizer=partial(torch.optim.SGD, lr=0.1))
"""


@pytest.fixture(autouse=True, scope="module")
def _leaves_nothing_behind(_own_temporary_folder: None) -> Iterator[None]:
    with nothing_left_behind():
        yield


@pytest.mark.filterwarnings("default::paceline.errors.JobWarning")
@pytest.mark.parametrize("row", TABLE["input"], ids=[row["typed"] for row in TABLE["input"]])
def test_a_wrong_input_gets_its_message(row: dict[str, Any], folder: Path, command: Command) -> None:
    for name, text in TABLE["files"].items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for name, line in {"right": "", **TABLE["mistakes"]}.items():
        (folder / f"{name}.py").write_text(f"{JOB}{line}\njob = paceline.Job(**settings)\n")
    done = command(*shlex.split(row["typed"])[1:])
    said = " ".join(done.err.replace("│", " ").split())
    assert (done.code, row["says"] in said) == (row["exit"], True), said
    assert "src/paceline" not in said, "lines of Paceline's own say nothing to a user"
    assert done.out == ""


def test_there_are_at_least_forty_of_them() -> None:
    assert len({row["typed"] for row in TABLE["input"]}) >= 40


def test_the_job_without_a_mistake_trains(folder: Path, command: Command) -> None:
    (folder / "right.py").write_text(f"{JOB}job = paceline.Job(**settings)\n")
    assert command("train", "right.py").code == 0
