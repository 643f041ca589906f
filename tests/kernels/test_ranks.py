"""Ranks of MPI as one team: the bits of one process, on one node; the same numbers between nodes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.engines.replay.replay import replay

pytest.importorskip("mpi4py")
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))

PROGRAM = """
import sys
from functools import partial
import torch
from mpi4py import MPI
from torch import nn
from paceline.kernels import fuse, fuse_ranks

world, apart = MPI.COMM_WORLD, int(sys.argv[1])
node = world.Split(world.rank // apart, world.rank) if apart else None
torch.manual_seed(0)
x, y = torch.randn(75, 1, 9, 9), torch.randint(5, (75,))

def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 4, 3), NORM, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))

def state(net):
    return [t.clone() for t in net.state_dict().values()]

make, loss = partial(torch.optim.Adam, lr=0.01), nn.CrossEntropyLoss()
ranks, alone = net(), net()
team = fuse_ranks(ranks, loss, make, 32, threads=2, node=node)
one = fuse(alone, loss, make, 32, threads=1)
for epoch in range(3):
    order = torch.randperm(75, generator=torch.Generator().manual_seed(epoch))
    a, b = team.train_epoch(x, y, order), one.train_epoch(x, y, order)
    assert abs(a - b) < 1e-5, (a, b)
gap = max(float((p.double() - q.double()).abs().max()) for p, q in zip(state(ranks), state(alone)))
gaps = world.gather(gap)
team.close()
if world.rank == 0:
    print(max(gaps))
"""


def mpiexec(ranks: int, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [MPIEXEC, "-n", str(ranks), sys.executable, *words]
    places = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": places}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)


# One phase, and several that all must have finished.
@pytest.mark.parametrize(("ranks", "norm"), [(2, "nn.Identity()"), (3, "nn.BatchNorm2d(4)"), (4, "nn.Identity()")])
def test_ranks_of_a_node_give_the_bits_of_one_process(ranks: int, norm: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("NORM", norm))
    done = mpiexec(ranks, tmp_path, "program.py", "0")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 0.0


def test_nodes_add_their_gradients_up(tmp_path: Path) -> None:
    """Four ranks, two of which are said to share memory: two nodes."""
    (tmp_path / "program.py").write_text(PROGRAM.replace("NORM", "nn.Identity()"))
    done = mpiexec(4, tmp_path, "program.py", "2")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-5


def test_ranks_with_a_gpu_each(tmp_path: Path) -> None:
    """The GPUs are played, so the ranks need no window: each has a share of the batch, dropout drawn by itself."""
    program = PROGRAM.replace("NORM", "nn.Identity()").replace(
        "team = fuse_ranks(ranks, loss, make, 32, threads=2, node=node)",
        "from paceline.kernels.cuda.gpu import Gpu, SampleKernels\n"
        "from paceline.kernels.fused import Fused\n"
        "from paceline.kernels.runner import Nodes, OneProcess, Runner\n"
        "from paceline.kernels.weights import OneModel\n"
        "from tests.kernels.played import Played\n"
        "nodes = Nodes(world.rank, world.size, world, world)\n"
        "runner = Runner(Gpu(Played(), SampleKernels('', 32)), OneProcess(), nodes)\n"
        "team = Fused(OneModel(ranks, make), 'cross_entropy', 32, runner)",
    )
    (tmp_path / "program.py").write_text(program)
    done = mpiexec(2, tmp_path, "program.py", "0")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-5


JOB = """
from functools import partial
import torch
from torch import nn
import paceline as pl
x = torch.randn(150, 8, generator=torch.Generator().manual_seed(0))
y = x.argmax(1)
job = pl.Job(model=lambda: nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8)), data=(x, y), test=(x, y),
             loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.SGD, lr=0.5), batch_size=16, epochs=4, {more})
"""


def by_two_and_by_one(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the command says of job.py, under mpiexec and without."""
    words = ("-m", "paceline", "train", "job.py", "--compute", "fused", "--json")
    several, one = (mpiexec(ranks, folder, *words) for ranks in (2, 1))
    assert several.returncode == one.returncode == 0, several.stderr + one.stderr
    found, expected = json.loads(several.stdout), json.loads(one.stdout)
    assert (found["engine"], expected["engine"]) == ("mpi", "local")
    return found, expected


def test_the_command_under_mpiexec(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB.format(more="schedule=lambda o: torch.optim.lr_scheduler.StepLR(o, 9)"))
    found, expected = by_two_and_by_one(tmp_path)
    assert found["test_accuracy"] == pytest.approx(expected["test_accuracy"], abs=0.02)
    assert found["updates"] == 40
    assert found["samples"] == 600
    page = subprocess.run(
        [sys.executable, "-m", "paceline", "report", found["run"]], cwd=tmp_path, capture_output=True, text=True
    )
    assert page.returncode == 0, page.stderr


def test_batches_that_are_accumulated_are_one(tmp_path: Path) -> None:
    """To rounding what one process makes of them, batch by batch; and replayed."""
    (tmp_path / "job.py").write_text(JOB.format(more="accumulate=3"))
    found, expected = by_two_and_by_one(tmp_path)
    assert found["updates"] == expected["updates"] == 16
    assert found["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-4)
    assert replay(tmp_path / found["run"]).matches


def test_a_run_of_ranks_is_replayed_by_one_process(tmp_path: Path) -> None:
    """To the bit, dropout and the optimizer's memory too; and up to an update in the middle of a pass."""
    more = "schedule=None)\njob = job.with_(optimizer=partial(torch.optim.Adam, lr=0.02), model=lambda: nn.Sequential("
    text = JOB.format(more=more + "nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Dropout(0.3), nn.Tanh(), nn.Linear(12, 8))")
    (tmp_path / "job.py").write_text(text)
    done = mpiexec(3, tmp_path, "-m", "paceline", "train", "job.py", "--compute", "fused", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    again = replay(tmp_path / found["run"])
    assert again.matches
    assert again.parameters_sha256 == found["parameters_sha256"]
    half = replay(tmp_path / found["run"], until=17)
    assert half.updates == 17
    assert half.guilty_samples is not None
    assert len(half.guilty_samples) == 16
    assert half.loss is not None
    assert half.parameters_sha256 != found["parameters_sha256"]


def test_a_replay_of_ranks_finds_the_nan(tmp_path: Path) -> None:
    """Which the ranks saw at the end of the pass only."""
    more = ")\njob = job.with_(test=None, data=(x.index_fill(0, torch.tensor([77]), float('nan')), y)"
    (tmp_path / "job.py").write_text(JOB.format(more=more))
    done = mpiexec(2, tmp_path, "-m", "paceline", "train", "job.py", "--compute", "fused")
    assert done.returncode == 1
    assert done.stderr.count("NotFinite: the loss of update 9 is nan") == 1
    (run,) = (tmp_path / "runs").iterdir()
    found = replay(run, until="nan")
    assert found.guilty_samples is not None
    assert 77 in found.guilty_samples
    assert found.guilty_update == found.updates
    assert found.loss is not None
    assert math.isnan(found.loss)


@pytest.mark.parametrize(
    ("more", "words", "says"),
    [
        ("", (), "give --compute fused"),
        ("", ("--compute", "fused", "--plan", "ring"), "all ranks share each batch"),
        ("clip_norm=1.0", ("--compute", "fused"), "knows nothing of clip_norm"),
        (
            "accumulate=2)\njob = job.with_(model=lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))",
            ("--compute", "fused"),
            "batch-norm would see all of it",
        ),
    ],
)
def test_what_ranks_cannot_do_is_said_once(more: str, words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB.format(more=more))
    done = mpiexec(2, tmp_path, "-m", "paceline", "train", "job.py", *words)
    assert done.returncode == 2
    assert done.stderr.count(says) == 1


def test_a_rank_that_fails_ends_all(tmp_path: Path) -> None:
    falls = "schedule=lambda o: 1 // 0 if __import__('os').environ.get('PMI_RANK') == '1' else None"
    (tmp_path / "job.py").write_text(JOB.format(more=falls))
    done = mpiexec(2, tmp_path, "-m", "paceline", "train", "job.py", "--compute", "fused")
    assert done.returncode != 0
    assert "ZeroDivisionError" in done.stderr
