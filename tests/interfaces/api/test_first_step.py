"""The first step of scripts with a fault: it is named, and nothing is said of scripts without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import RunFailed, UsageError
from paceline.interfaces.api.comparing.first_step import differences, verify_script
from paceline.interfaces.api.comparing.gloo_shim.first_step import FirstStep

SAMPLES = (6, 6)
PATIENCE = 600.0  # seconds until the first step, on a busy machine


def rank_of(rank: int, fault: str = "", samples: tuple[int, ...] = SAMPLES) -> dict[str, Any]:
    """What a process records of its first step, with the gradients of all where it would have summed them."""
    first = FirstStep()
    torch.manual_seed(rank if fault == "seed" else 0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    if fault == "buffer" and rank:
        model[1].running_mean += 0.1  # type: ignore[operator]
    if fault == "dtype" and rank:
        model[2].register_forward_hook(lambda part, inputs, output: output.bfloat16().float().double())
    decay = 0.1 if fault == "decay" and rank else 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=decay)
    x = torch.randn(samples[rank], 3, generator=torch.Generator().manual_seed(10 + rank))
    first.forward(model, (x,))
    model(x).square().sum(1).mean().backward()
    first.before_step(optimizer, (), {})
    return {**first.recorded, "after": {}}


def summed(ranks: list[dict[str, Any]], fault: str = "") -> list[dict[str, Any]]:
    total = sum(rank["samples"] for rank in ranks)
    for name in ranks[0]["local"]:
        by_samples = [rank["local"][name] * (rank["samples"] / total) for rank in ranks]
        plain = [rank["local"][name] / len(ranks) for rank in ranks]
        for rank in ranks:
            gradient: Tensor = sum(by_samples, torch.zeros(()))
            if fault == "uneven":
                gradient = sum(plain, torch.zeros(()))
            if fault == "sum":
                gradient = sum((each["local"][name] for each in ranks), torch.zeros(()))
            if fault == "missing" and name == "2.weight":
                gradient = rank["local"][name]
            rank["gradients"][name] = gradient
            decay = rank["settings"][0]["weight_decay"]
            rank["after"][name] = rank["parameters"][name] * (1 - 0.1 * decay) - 0.1 * gradient
    return ranks


@pytest.mark.parametrize(
    ("fault", "stage", "name", "says"),
    [
        ("seed", "before", "0.weight", "another seed, or no broadcast"),
        ("buffer", "before", "1.running_mean", "no broadcast"),
        ("dtype", "output", "2", "torch.float32 and torch.float64"),
        ("missing", "gradient", "2.weight", "the process's own"),
        ("uneven", "gradient", "0.weight", "the mean over processes, and not over samples"),
        ("sum", "gradient", "0.weight", "the sum over processes"),
        ("decay", "settings", "group 0, weight_decay", "0.0 and 0.1"),
    ],
)
def test_the_first_fault_is_named(fault: str, stage: str, name: str, says: str) -> None:
    samples = (6, 4) if fault == "uneven" else SAMPLES
    found = list(differences(summed([rank_of(rank, fault, samples) for rank in (0, 1)], fault)))
    assert (found[0].stage, found[0].name) == (stage, name)
    assert says in found[0].what


def test_nothing_is_said_where_nothing_differs() -> None:
    assert not list(differences(summed([rank_of(rank) for rank in (0, 1)])))
    assert not list(differences(summed([rank_of(rank, samples=(6, 4)) for rank in (0, 1)])))


SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(10, 5), nn.Tanh(), nn.Linear(5, 3))
if "by-hand" not in sys.argv:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.randn(8, 10)), torch.randint(0, 3, (8,)))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
raise SystemExit("it ends after its first step")
"""


def test_a_script_of_ddp_is_as_one_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    found = verify_script(str(tmp_path / "train.py"), seconds=PATIENCE)
    assert found.same, str(found)
    assert found.samples == [8, 8]


@pytest.mark.soak
def test_a_script_without_ddp_is_named_by_the_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "paceline", "verify", "--script", f"{tmp_path / 'train.py'} by-hand"]
    command += ["--timeout", str(PATIENCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, env=dict(os.environ))
    assert done.returncode == 1
    assert "0.weight: has other values before the step: another seed, or no broadcast" in done.stderr


SHARDED = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 5), nn.Tanh(), nn.Linear(5, 3))
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
x = torch.randn(4 if rank and "uneven" in sys.argv else 8, 10)
nn.functional.cross_entropy(model(x), torch.randint(0, 3, (len(x),))).backward()
nn.utils.clip_grad_norm_(model.parameters(), 0.01)
optimizer.step()
"""


@pytest.mark.soak
def test_a_sharded_model_is_compared_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHARDED)
    found = verify_script(str(tmp_path / "train.py"), seconds=PATIENCE)
    assert found.same, str(found)
    (first, *_) = verify_script(f"{tmp_path / 'train.py'} uneven", seconds=PATIENCE).differences
    assert (first.stage, first.name) == ("gradient", "0.weight")
    assert "the mean over processes" in first.what


def test_a_script_without_a_step_fails_with_its_output(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('nothing to do')")
    with pytest.raises(RunFailed, match=r"(?s)0 of 2 processes made a step.*nothing to do"):
        verify_script(str(tmp_path / "train.py"), seconds=PATIENCE)
    with pytest.raises(UsageError, match="give 2 or more"):
        verify_script("train.py", workers=1)
