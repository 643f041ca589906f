"""compute="auto": which way is taken, why, and that a run keeps to it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import paceline as pl
from paceline import user_cache
from paceline.kernels import build, compiled, fused
from paceline.training.data.opening import open_source
from paceline.training.gradients import choice


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
        model=lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
        data=(x, y),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=10,
    ).with_(**changes)


@pytest.fixture(autouse=True)
def _every_training_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "FEW", 0)
    monkeypatch.setattr(choice, "SOON", 0.0)
    monkeypatch.setattr(choice, "LITTLE", float("inf"))


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(choice.Measured, "_here", {})
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
    choice.Measured._here.clear()
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
    assert timed == ["autograd", "autograd", "fused"]


def test_nothing_is_measured_for_a_few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(choice, "Measured", lambda *_: pytest.fail("it was measured"))
    run = pl.train(job(epochs=1000), "sequential", engine="virtual", folder=None, max_updates=10)
    assert run.summary()["compute"] == "autograd"
    assert run.record.notes == ("compute=auto took autograd: a training of 10 batches ends before code is made for it",)


@pytest.mark.parametrize(
    ("epochs", "little", "pays"),
    [(100, 0.0, False), (3_500, 0.0, True), (2_500, 0.0, False), (2_500, 0.3, True)],
)
def test_code_is_made_where_two_trainings_win_its_compiler_back(
    monkeypatch: pytest.MonkeyPatch, measured: dict[str, float], epochs: int, little: float, pays: bool
) -> None:
    """Of 6 updates an epoch, 1 ms each by PyTorch, with a compiler of 10 s and code that is expected to take 0.7 ms."""
    measured |= {"autograd": 1e-3, "fused": 1e-4}
    monkeypatch.setattr(choice, "SOON", 0.5)
    monkeypatch.setattr(choice, "LITTLE", little)
    monkeypatch.setattr(choice, "compiling_seconds", lambda text: 10.0)
    monkeypatch.setattr(choice, "is_compiled", lambda text: False)
    monkeypatch.setattr(compiled.Draft, "seconds", lambda draft, batch: 7e-4)
    mine = job(epochs=epochs)
    module, source = mine.make_model(), open_source(mine.data, 0)
    if not pays:
        monkeypatch.setattr(fused.Fused, "prepare", lambda *_: pytest.fail("code was made"))
    found = choice.choose(mine, module, source, 6 * epochs)
    assert found.compute == ("fused" if pays else "autograd")
    assert pays or "code for it about 10 s to make" in found.why


def test_what_was_compiled_for_a_long_training_serves_a_new_short_one_and_changes_no_old_one(
    monkeypatch: pytest.MonkeyPatch, measured: dict[str, float]
) -> None:
    texts = set[str]()
    monkeypatch.setattr(choice, "LITTLE", 0.0)
    monkeypatch.setattr(choice, "compiling_seconds", lambda text: 10.0)
    monkeypatch.setattr(choice, "is_compiled", texts.__contains__)
    monkeypatch.setattr(fused.Fused, "prepare", lambda self, x, y: texts.add(self.draft(x).source))
    mine = job()
    module, source = mine.make_model(), open_source(mine.data, 0)
    assert choice.choose(mine, module, source, 6).compute == "autograd"
    assert choice.choose(mine, module, source, 10**6).compute == "fused"
    assert choice.choose(mine, module, source, 7).compute == "fused"
    assert choice.choose(mine, module, source, 6).compute == "autograd", "the same job, the same bits"


def test_two_processes_measure_one_after_the_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While one measures, another waits, and then takes what the first has measured."""
    mine = job()
    first, second = (choice.Measured(mine, mine.make_model()) for _ in range(2))
    second._figures = {}  # as in another process
    waiting = threading.Event()

    def other() -> float:
        waiting.set()
        with second.alone():
            return second.figure("autograd", lambda: 2.0)

    with ThreadPoolExecutor(1) as pool:
        with first.alone():
            found = pool.submit(other)
            waiting.wait()
            first.figure("autograd", lambda: 1.0)
        assert found.result() == 1.0


class Counting(torch.optim.SGD):
    """An optimizer of the user's own, whose steps have an effect outside of the model."""

    steps = 0

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        Counting.steps += 1
        super().step()


def test_an_optimizer_of_the_users_own_makes_no_step_in_a_measurement() -> None:
    mine = job(optimizer=partial(Counting, lr=0.1))
    found = choice.choose(mine, mine.make_model(), open_source(mine.data, 0), 6)
    assert " µs in generated code and " in found.why
    assert not Counting.steps


def test_a_file_of_another_version_is_measured_again(measured: dict[str, float], tmp_path: Path) -> None:
    mine = job()
    file = tmp_path / "cache" / "choices" / f"{choice.kind_of(mine, mine.make_model())}.json"
    user_cache.write(file, b'{"autograd": null, "other": [1]}')
    assert choice.choose(mine, mine.make_model(), open_source(mine.data, 0), 6).compute == "fused"


@pytest.mark.parametrize("changes", [{"loss": None, "step": lambda model, batch: model(batch[0]).mean()}])
def test_what_generated_code_never_computes_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    monkeypatch.setattr(choice, "Measured", lambda *_: pytest.fail("it was measured"))
    run = pl.train(job(**changes), "sequential", engine="virtual", folder=None)
    assert run.summary()["compute"] == "autograd"


def test_a_real_measurement_takes_one_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    run = pl.train(job(), "sequential", folder=None)
    assert run.summary()["compute"] in ("fused", "autograd")
    assert " µs in generated code and " in run.record.notes[-1]


def test_another_process_takes_what_was_measured_before(measured: dict[str, float], tmp_path: Path) -> None:
    first = pl.train(job(), "sequential", engine="virtual", folder=None)
    choice.Measured._here.clear()
    measured["fused"] = 1e-3  # what a busy minute would say
    second = pl.train(job(seed=1, epochs=2), "sequential", engine="virtual", folder=None)
    assert first.summary()["compute"] == second.summary()["compute"] == "fused"
    choice.Measured._here.clear()
    other = pl.train(job(batch_size=12), "sequential", engine="virtual", folder=None)
    assert other.summary()["compute"] == "autograd", "another batch size was not measured"


@pytest.mark.parametrize(("fused", "taken"), [(1e-5, "fused"), (5e-5, "autograd")])
def test_the_same_command_again_has_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, measured: dict[str, float], fused: float, taken: str
) -> None:
    """The second time its text is compiled, and a clock would say something else."""
    measured["fused"] = fused
    shas = []
    for _ in range(2):
        run = pl.train(job(), "sequential", engine="virtual", folder=None)
        assert run.summary()["compute"] == taken
        shas.append(run.summary()["parameters_sha256"])
        choice.Measured._here.clear()
        measured |= {"fused": 4e-5, "autograd": 1e-5} if taken == "fused" else {"fused": 1e-9}
        monkeypatch.setattr(choice, "is_compiled", lambda text: True)
    assert shas[0] == shas[1]


def test_functions_are_named_alike_in_every_process() -> None:
    named = choice._stable(partial(torch.optim.SGD, lr=0.1))
    assert "0x" not in named
    assert named != choice._stable(partial(torch.optim.SGD, lr=0.2))
    assert choice._stable(lambda x: x + 1) != choice._stable(lambda x: x + 2)
