"""A script of the user's, unchanged, under gloo and under Paceline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.api.compare_scripts import compare_script
from paceline.errors import RunFailed, UsageError

DDP = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group(backend="gloo")
if len(sys.argv) > 1:
    assert sys.argv[1:] == ["--steps", "20"], sys.argv
assert dist.get_backend() in ("gloo", "paceline")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(nn.Linear(10, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(8, 10)), torch.randint(0, 3, (8,))).backward()
    optimizer.step()
print(dist.get_backend(), file=open("said", "a"))
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})  # so that one process is tried only once
    path = tmp_path / "train.py"
    path.write_text(DDP)
    return path


def one_round(script: Path) -> dict[str, Any]:
    return compare_script(f"{script} --steps 20", rounds=1).as_dict()


def by_the_command_line(script: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "paceline", "compare", "--script", f"{script} --steps 20", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("way", [one_round, pytest.param(by_the_command_line, marks=pytest.mark.soak)])
def test_a_script_runs_unchanged_under_both_and_trains_the_same(
    script: Path, way: Callable[[Path], dict[str, Any]]
) -> None:
    found = json.loads(json.dumps(way(script)))
    assert [row["processes"] for row in found["rows"]][-2:] == [2, 2]
    assert all(row["steps"] == 20 and row["milliseconds_per_step"] > 0 for row in found["rows"])
    assert found["difference"] < 1e-6
    said = (script.parent / "said").read_text().split()
    assert said.count("paceline") == 2 * found["rounds"]
    assert said.count("gloo") >= 2 * found["rounds"]


def test_a_script_that_needs_two_is_told_of_and_one_that_fails_is_quoted(script: Path) -> None:
    script.write_text(DDP + "import os\nif os.environ['WORLD_SIZE'] == '1': raise ValueError('lonely')\n")
    found = compare_script("train.py", rounds=1)
    assert len(found.rows) == 2
    assert all("does not run as one process" in note for note in found.notes)
    script.write_text("import torch.distributed\nraise KeyError('of the user')\n")
    with pytest.raises(RunFailed, match="of the user"):
        compare_script("train.py", rounds=1)


def test_stupid_inputs_are_told(script: Path) -> None:
    with pytest.raises(UsageError, match="there is no file nothing"):
        compare_script("nothing.py")
    with pytest.raises(UsageError, match="is empty"):
        compare_script("  ")
    script.write_text("print('no training here')\n")
    with pytest.raises(UsageError, match="fewer than 3 steps"):
        compare_script("train.py", rounds=1)
    command = [sys.executable, "-m", "paceline", "compare", "digits", "--script", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "give a JOB, or --script" in done.stderr
