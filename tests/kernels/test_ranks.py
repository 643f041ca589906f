"""Ranks of MPI as one team: the bits of one process, on one node; the same numbers between nodes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline.errors import PacelineError
from paceline.interfaces.api.train import train
from paceline.interfaces.cli import app, register
from paceline.plans.plan import Plan
from paceline.runtime.engines.mpi import check
from paceline.runtime.engines.replay.replay import replay
from paceline.training.jobs.loading import load_job

pytest.importorskip("mpi4py")

from tests.kernels.by_ranks import LayerSpec, mpiexec


# One phase, and several that all must have finished.
@pytest.mark.parametrize(("ranks", "norm"), [(2, False), (3, True), (4, False)])
def test_ranks_of_a_node_give_the_bits_of_one_process(ranks: int, norm: bool, by_ranks: LayerSpec) -> None:
    gap, losses, results = by_ranks["training", ranks, 0, norm]
    assert gap == 0.0
    assert losses < 1e-5
    assert results == 1


def test_nodes_add_their_gradients_up(by_ranks: LayerSpec) -> None:
    """Four ranks, two of which are said to share memory: two nodes."""
    gap, losses, results = by_ranks["training", 4, 2, False]
    assert 0.0 < gap < 1e-5
    assert losses < 1e-5
    assert results == 1


def test_ranks_with_a_gpu_each(by_ranks: LayerSpec) -> None:
    """The GPUs are played, and share no memory: each has a share of the batch."""
    gap, losses, results = by_ranks["devices",]
    assert gap < 1e-5
    assert losses < 1e-5
    assert results == 1


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


#: What two ranks train, by the name of the folder: how the text above ends.
MORE = {
    "accumulated": "accumulate_grad_batches=3",
    "adam": "lr_scheduler=None)\njob = job.with_(optimizer=partial(torch.optim.Adam, lr=0.02), model=lambda: "
    "nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Dropout(0.3), nn.Tanh(), nn.Linear(12, 8))",
    "nan": ")\njob = job.with_(test=None, data=(x.index_fill(0, torch.tensor([77]), float('nan')), y)",
    "refused": "accumulate_grad_batches=2)\n"
    "job = job.with_(model=lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))",
}
FUSED = ("train", "job.py", "--compute", "fused")


@dataclass(frozen=True)
class Ended:
    """A command that two ranks were given: its folder, each rank's exit code, and what both wrote for people."""

    folder: Path
    codes: tuple[int, int]
    said: str

    @property
    def run(self) -> Path:
        (run,) = (self.folder / "runs").iterdir()
        return run

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "run.json").read_text())["summary"]
        return found


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """What one start of MPI made of all of `MORE`."""
    folders = {name: tmp_path_factory.mktemp(name) for name in MORE}
    for name, folder in folders.items():
        (folder / "job.py").write_text(JOB.format(more=MORE[name]))
        (folder / "words.json").write_text(json.dumps(FUSED))
    done = mpiexec(2, Path.cwd(), "-m", "tests.kernels.commands_by_ranks", *map(str, folders.values()))
    assert done.returncode == 0, done.stderr
    found = {}
    for name, folder in folders.items():
        (first, said), (second, more) = (json.loads((folder / f"ended-{rank}.json").read_text()) for rank in (0, 1))
        found[name] = Ended(folder, (first, second), said + more)
    return found


def by_one(folder: Path) -> dict[str, Any]:
    """The summary of a run of this process."""
    return train(load_job(str(folder / "job.py")), "sequential", folder=None, compute="fused").summary()


def test_the_command_under_mpiexec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(JOB.format(more="lr_scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 9)"))
    done = mpiexec(2, tmp_path, "-m", "paceline", *FUSED, "--json")
    assert done.returncode == 0, done.stderr
    found, expected = json.loads(done.stdout), by_one(tmp_path)
    assert found["engine"] == "mpi"
    assert found["test_accuracy"] == pytest.approx(expected["test_accuracy"], abs=0.02)
    assert found["updates"] == 40
    assert found["samples"] == 600
    register()
    page = CliRunner().invoke(app, ["report", found["run"]])
    assert page.exit_code == 0, page.output


def test_batches_that_are_accumulated_are_one(by_two: dict[str, Ended]) -> None:
    """To rounding what one process makes of them, batch by batch; and replayed."""
    ended = by_two["accumulated"]
    assert ended.codes == (0, 0)
    found, expected = ended.summary, by_one(ended.folder)
    assert found["updates"] == expected["updates"] == 16
    assert found["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-4)
    assert replay(ended.run).matches


def test_a_run_of_ranks_is_replayed_by_one_process(by_two: dict[str, Ended]) -> None:
    """To the bit, dropout and the optimizer's memory too; and up to an update in the middle of a pass."""
    ended = by_two["adam"]
    assert ended.codes == (0, 0)
    again, parameters = replay(ended.run), ended.summary["parameters_sha256"]
    assert again.matches
    assert again.parameters_sha256 == parameters
    half = replay(ended.run, until=17)
    assert half.updates == 17
    assert half.guilty_samples is not None
    assert len(half.guilty_samples) == 16
    assert half.loss is not None
    assert half.parameters_sha256 != parameters


def test_a_replay_of_ranks_finds_the_nan(by_two: dict[str, Ended]) -> None:
    """Which the ranks saw at the end of the pass only."""
    ended = by_two["nan"]
    assert ended.codes == (1, 1)
    assert ended.said.count("NotFinite: the loss of update 9 is nan") == 1
    found = replay(ended.run, until="nan")
    assert found.guilty_samples is not None
    assert 77 in found.guilty_samples
    assert found.guilty_update == found.updates
    assert found.loss is not None
    assert math.isnan(found.loss)


def test_what_ranks_cannot_do_is_said_once(by_two: dict[str, Ended]) -> None:
    assert by_two["refused"].codes == (2, 2)
    assert by_two["refused"].said.count("batch-norm would see all of it") == 1


@pytest.mark.parametrize(
    ("changes", "plan", "says"),
    [
        ({"compute": "autograd"}, "sequential", "give --compute fused"),
        ({}, "ring", "all ranks share each batch"),
        ({"gradient_clip_norm": 1.0}, "sequential", "does not know gradient_clip_norm"),
    ],
)
def test_what_ranks_cannot_do_is_refused(changes: dict[str, Any], plan: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB.format(more=""))
    job = load_job(str(tmp_path / "job.py")).with_(compute="fused")
    with pytest.raises(PacelineError, match=says):
        check(job.with_(**changes), Plan.parse(plan))


def test_a_rank_that_fails_ends_all(tmp_path: Path) -> None:
    rank = "__import__('os').environ['PMI_RANK']"
    falls = f"lr_scheduler=lambda o: torch.optim.lr_scheduler.ConstantLR(o, 1 // ({rank} == '0'))"
    (tmp_path / "job.py").write_text(JOB.format(more=falls))
    done = mpiexec(2, tmp_path, "-m", "paceline", "train", "job.py", "--compute", "fused")
    assert done.returncode != 0
    assert "ZeroDivisionError" in done.stderr
