"""A story per bug: what a user saw, and what holds since."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import paceline as pl
from paceline.errors import JobError, PlanError, UsageError
from tests.errors.cases import Case
from tests.errors.happening import happen
from tests.scripts import finish, start, typed

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
SGD = partial(torch.optim.SGD, lr=0.1)
TIMEOUT = 400.0  # seconds, of a process that hangs


def job(model: Any = lambda: nn.Linear(6, 2), **changes: Any) -> pl.Job:
    given: dict[str, Any] = {"data": (X, Y), "loss": nn.CrossEntropyLoss(), "optimizer": SGD, "batch_size": 10}
    return pl.Job(model, **{**given, **changes})


def test_one_dropout_used_twice_drew_the_same_mask_twice() -> None:
    same: list[bool] = []

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.last = nn.Dropout(0.5), nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                ones = torch.ones(8, 6)
                same.append(torch.equal(self.drop(ones), self.drop(ones)))
            return self.last(self.drop(x))  # type: ignore[no-any-return]

    run = pl.train(job(Twice), "downpour:workers=2", engine="virtual", folder=None)
    assert same
    assert not any(same)
    assert pl.replay(run).matches


def test_a_checkpointed_dropout_draws_its_mask_again_in_the_backward_pass() -> None:
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self, again: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.part, self.last = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Tanh()), nn.Linear(6, 2)
            self.again = again

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = checkpoint(self.part, x, use_reentrant=False) if self.again else self.part(x)
            return self.last(x)  # type: ignore[no-any-return]

    shas = {
        pl.train(job(partial(Block, again)), engine="virtual", folder=None).summary()["parameters_sha256"]
        for again in (False, True)
    }
    assert len(shas) == 1


def test_a_model_that_draws_from_numpy_was_another_one_in_every_worker() -> None:
    def drawn() -> nn.Module:
        module = nn.Linear(6, 2)
        module.weight.data = torch.from_numpy(np.random.randn(2, 6)).float() * random.random()
        return module

    assert pl.replay(pl.train(job(drawn), "ring", folder=None)).matches

    def different() -> nn.Module:
        module = nn.Linear(6, 2)
        module.weight.data.fill_(np.random.default_rng().random())
        return module

    with pytest.warns(pl.errors.JobWarning, match=r"makes another weight in each process.*neither a replay"):
        pl.train(job(different), "ring", folder=None)


def test_a_model_that_was_made_with_other_threads_was_refused() -> None:
    """A decomposition rounds otherwise with two threads than with one, which each worker has."""

    def orthogonal() -> nn.Module:
        module = nn.Sequential(nn.Linear(6, 256), nn.Linear(256, 256), nn.Linear(256, 2))
        nn.init.orthogonal_(module[1].weight)
        return module

    torch.set_num_threads(2)
    run = pl.train(job(orthogonal), "ring", folder=None)
    torch.set_num_threads(1)
    assert pl.replay(run).matches


def test_a_model_that_rounds_otherwise_in_each_process_was_refused() -> None:
    def rough() -> nn.Module:
        module = nn.Linear(6, 2)
        module.weight.data.mul_(1 + 1e-6 * np.random.default_rng().random())
        return module

    with pytest.warns(pl.errors.JobWarning, match="rounds otherwise in each process"):
        run = pl.train(job(rough), "ring", folder=None)
    alone = pl.train(job(run.job.make_model()), "sequential:chunks=2", folder=None)
    assert run.trace.loss_curve()[1] == pytest.approx(alone.trace.loss_curve()[1], rel=1e-4)


class LateMomentum(torch.optim.Optimizer):
    """Begins to remember something in its second step."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["n"] = state.get("n", 0) + 1
                if state["n"] > 1:
                    state.setdefault("m", torch.zeros_like(p)).mul_(0.9).add_(p.grad)
                p.sub_(state.get("m", p.grad), alpha=group["lr"])


def test_what_an_optimizer_remembers_only_later_was_lost_at_the_server() -> None:
    with pytest.raises(JobError, match=r"LateMomentum remembers \['m'\] only from a later step on"):
        pl.train(job(optimizer=partial(LateMomentum, lr=0.1)), "downpour", engine="virtual", folder=None)


def test_a_last_batch_smaller_than_the_workers_made_the_loss_nan() -> None:
    run = pl.train(job(batch_size=29), "ring:workers=3", engine="local", folder=None)
    assert run.summary()["train_loss"] < 10


def test_a_sparse_gradient_is_refused_by_name() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.last = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.table((x[:, 0].abs() * 3).long().clamp(max=8)))  # type: ignore[no-any-return]

    with pytest.raises(PlanError, match=r"table\.weight gets a sparse gradient"):
        pl.train(job(Words), "ring", engine="virtual", folder=None)


@pytest.mark.filterwarnings("error::paceline.errors.JobWarning")
def test_augmentation_by_random_and_numpy_is_seeded_too_and_does_not_look_like_a_wrong_loss() -> None:
    def jitter(batch: Any) -> Any:
        return batch[0] * (1 + random.random()) + np.random.rand() + torch.rand(1), batch[1]

    made = job(batch_transform=jitter)
    run = pl.train(made, "ring:workers=3", folder=None)
    assert pl.replay(run).matches
    oracle = pl.train(made, "sequential:chunks=3", engine="virtual", folder=None)
    assert torch.allclose(run.model.weight, oracle.model.weight, atol=1e-5)


def test_a_chunk_of_one_sample_that_batch_norm_refuses_is_found_before_the_start() -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    with pytest.raises(JobError, match="leaves a chunk of one sample"):
        pl.train(job(net, batch_size=19), "ring:workers=3", engine="virtual", folder=None)


@pytest.mark.parametrize("plan", ["ring", pytest.param("sequential", marks=pytest.mark.soak)])
def test_prints_of_the_users_do_not_spoil_the_json(plan: str, tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(
        "import torch, paceline as pl\nfrom torch import nn\nprint('reading')\n"
        "def step(model, batch):\n    print('step')\n    return model(batch[0]).mean() * float('nan')\n"
        "job = pl.Job(model=lambda: nn.Linear(6, 2), data=(torch.randn(40, 6), torch.zeros(40)), step=step,\n"
        "             optimizer=lambda p: torch.optim.SGD(p, lr=0.1), batch_size=10, on_nan='ignore')\n"
    )
    (done,) = finish([typed(tmp_path, "train", "noisy.py", "--plan", plan, "--json")])
    assert done.code == 0, done.err
    assert json.loads(done.out, parse_constant=pytest.fail)["train_loss"] is None
    assert "step" in done.err


def test_a_job_file_that_fails_when_it_is_read_is_wrong_use(tmp_path: Path) -> None:
    for text, says in (("1 / 0", "ZeroDivisionError"), ("import sys; sys.exit(5)", "SystemExit")):
        case = Case("", text + "\n", "train job.py", 2, (), head="")
        folder = tmp_path / says
        folder.mkdir()
        code, said = happen(case, folder)
        assert code == 2
        assert f"when it is read, in line 1: {says}" in said
        assert "Traceback" not in said


def test_a_gate_of_the_users_own_script_reaches_the_workers(tmp_path: Path) -> None:
    (tmp_path / "own_gate.py").write_text(
        "import torch, paceline as pl\nfrom torch import nn\nfrom paceline.plans import plan, recipe\n"
        "from paceline.algorithms.server.gates import Asynchronous\n"
        "from paceline.plans.methods.server import ParameterServer\n"
        "class Own(Asynchronous):\n    pass\n"
        "plan.RECIPES['own'] = recipe.Recipe('mine', lambda: ParameterServer(Own()), recipe.TEAM)\n"
        "job = pl.Job(model=lambda: nn.Linear(6, 2), data=(torch.randn(40, 6), torch.zeros(40).long()),\n"
        "             loss=nn.CrossEntropyLoss(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1), batch_size=10)\n"
        "print(pl.train(job, 'own', workers=2, folder=None).summary()['updates'])\n"
    )
    (done,) = finish([start(tmp_path / "own_gate.py")])
    assert done.out.strip() == "4", done.err


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("short", "sequential"),
        ("long" * 20, "ring"),
        *(pytest.param(*pair, marks=pytest.mark.soak) for pair in (("short", "ring"), ("long" * 20, "sequential"))),
    ],
)
def test_loader_processes_left_folders_behind_and_sockets_had_too_long_names(
    name: str, plan: str, tmp_path: Path
) -> None:
    script, scratch = tmp_path / "loads.py", tmp_path / name
    scratch.mkdir()
    script.write_text(
        "import sys, torch, paceline as pl\nfrom torch import nn\n"
        "class Few(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 40\n"
        "    def __getitem__(self, number): return torch.randn(6), number % 2\n"
        "job = pl.Job(model=lambda: nn.Linear(6, 2), data=Few(), loss=nn.CrossEntropyLoss(), num_workers=2,\n"
        "             optimizer=lambda p: torch.optim.SGD(p, lr=0.1), batch_size=10)\n"
        "pl.train(job, sys.argv[1], folder=None)\n"
    )
    environment = {**os.environ, "TMPDIR": str(scratch)}
    done = subprocess.run(
        [sys.executable, str(script), plan], env=environment, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stderr
    left = [path.name for path in scratch.iterdir()]
    assert not [name for name in left if name.startswith(("pymp-", "paceline-"))]


def test_nobody_waits_less_than_no_time() -> None:
    with pytest.raises(UsageError, match="timeout=-1"):
        pl.train(job(), "ring", folder=None, timeout=-1)


@pytest.mark.parametrize("engine", ["virtual", "local"])
def test_more_shards_than_parameters(engine: str) -> None:
    run = pl.train(job(), "downpour:workers=2,shards=9", engine=engine, folder=None)
    assert run.record.shards == len(list(run.model.parameters())) < 9
