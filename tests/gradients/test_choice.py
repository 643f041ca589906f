"""compute="auto": which way is taken, why, and that a run keeps to it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import paceline as pl
from paceline.gradients import choice
from paceline.kernels import build


class Branching(nn.Module):
    """A network that has no kernels: it looks at its data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x) if x.sum() > 0 else -self.layer(x)
        return scores


def job(**changes: object) -> pl.Job:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(60, 6, generator=generator), torch.randint(3, (60,), generator=generator)
    return pl.Job(
        model=lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), data=(x, y),
        loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.SGD, lr=0.1), batch_size=10, compute="auto",
    ).with_(**changes)  # fmt: skip


@pytest.fixture(autouse=True)
def _every_training_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "WORTH", 0.0)


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(choice.Remembered, "_here", {})
    monkeypatch.setattr(choice, "folder", lambda: tmp_path / "cache" / "kernels")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds of an update by each way, in place of what a clock would say."""
    seconds = {"fused": 1e-5, "autograd": 4e-5}
    monkeypatch.setattr(choice, "_seconds", lambda job, *rest: seconds[job.compute])
    return seconds


@pytest.mark.parametrize(("fused", "taken"), [(1e-5, "fused"), (3.9e-5, "autograd"), (5e-5, "autograd")])
def test_what_pays_is_taken_and_kept(fused: float, taken: str, measured: dict[str, float], tmp_path: Path) -> None:
    measured["fused"] = fused
    run = pl.train(job(), "sequential", folder=tmp_path)
    assert run.summary()["compute"] == taken
    said = f"compute=auto took {taken}: an update takes {fused * 1e6:.0f} µs in generated code and 40 µs in PyTorch"
    assert run.record.notes[-1] == said
    measured["fused"] = 1e-3 if taken == "fused" else 1e-9  # what another measurement would say
    choice.Remembered._here.clear()
    assert run.path is not None
    pl.replay(run.path)  # raises if the bits are others


@pytest.mark.parametrize(
    ("changes", "plan", "why"),
    [
        ({"model": Branching}, "sequential", "branches"),
        ({"loss": nn.NLLLoss()}, "sequential", "NLLLoss"),
        ({"loss": None, "step": lambda model, batch: model(batch[0]).square().mean()}, "sequential", "needs loss="),
        ({}, "gpipe:workers=2", "plan gpipe computes by PyTorch's autograd"),
    ],
)
def test_pytorch_computes_what_has_no_kernels_and_the_run_says_why(
    changes: dict[str, object], plan: str, why: str
) -> None:
    run = pl.train(job(**changes), plan, engine="virtual", folder=None)
    assert run.summary()["compute"] == "autograd"
    assert "compute=auto took autograd" in run.record.notes[-1]
    assert why in run.record.notes[-1]


def test_without_a_compiler_pytorch_computes(monkeypatch: pytest.MonkeyPatch, measured: dict[str, float]) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    build.compiler.cache_clear()
    try:
        run = pl.train(job(), "sequential", engine="virtual", folder=None)
    finally:
        build.compiler.cache_clear()
    assert "no C++ compiler" in run.record.notes[-1]


def test_it_is_measured_once_for_the_rounds_of_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []
    monkeypatch.setattr(choice, "_seconds", lambda job, *rest: timed.append(job.compute) or 1.0)
    mine = job()
    for plan in ("sequential", "ring:workers=2"):
        pl.train(mine, plan, engine="virtual", folder=None, max_updates=2)
    assert timed == ["autograd", "fused"]


def test_nothing_is_compiled_for_a_training_of_a_few_seconds(
    monkeypatch: pytest.MonkeyPatch, measured: dict[str, float]
) -> None:
    monkeypatch.setattr(choice, "WORTH", 5.0)
    monkeypatch.setattr(choice, "check_fusible", lambda *_: pytest.fail("code was made"))
    run = pl.train(job(), "sequential", engine="virtual", folder=None)
    assert run.summary()["compute"] == "autograd"
    assert "PyTorch makes all 6 updates in about 0.0 s" in run.record.notes[-1]


def test_a_real_measurement_takes_one_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    run = pl.train(job(), "sequential", folder=None)
    assert run.summary()["compute"] in ("fused", "autograd")
    assert " µs in generated code and " in run.record.notes[-1]


def test_another_process_takes_what_was_measured_before(measured: dict[str, float], tmp_path: Path) -> None:
    first = pl.train(job(), "sequential", engine="virtual", folder=None)
    choice.Remembered._here.clear()
    measured["fused"] = 1e-3  # what a busy minute would say
    second = pl.train(job(seed=1, epochs=2), "sequential", engine="virtual", folder=None)
    assert first.summary()["compute"] == second.summary()["compute"] == "fused"
    choice.Remembered._here.clear()
    other = pl.train(job(batch_size=12), "sequential", engine="virtual", folder=None)
    assert other.summary()["compute"] == "autograd", "another batch size was not measured"


def test_functions_are_named_alike_in_every_process() -> None:
    named = choice._stable(partial(torch.optim.SGD, lr=0.1))
    assert "0x" not in named
    assert named != choice._stable(partial(torch.optim.SGD, lr=0.2))
    assert choice._stable(lambda x: x + 1) != choice._stable(lambda x: x + 2)
