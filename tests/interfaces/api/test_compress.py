"""`compress`: the whole way from a run to a C file, and what is refused before it."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.compression import result
from paceline.compression.building import Latency
from paceline.compression.emission.c_file import CFile
from paceline.compression.page import page_of
from paceline.compression.result import Bounds, Compression, Point, choose, frontier
from paceline.compression.samples import Loss, loss_between, score_of
from paceline.errors import PlanError, RunFolderError, UsageError

FILE = CFile("", (), 0, True)


def job(**changes: object) -> pl.Job:
    """Four classes that lie apart."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(4, (600,), generator=generator)
    x = nn.functional.one_hot(y, 4).float().repeat(1, 3) + 0.3 * torch.randn(600, 12, generator=generator)
    settings = {
        "model": lambda: nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4)),
        "data": (x[:500], y[:500]),
        "test": (x[500:], y[500:]),
        "loss": nn.CrossEntropyLoss(),
        "optimizer": partial(torch.optim.SGD, lr=0.5),
        "batch_size": 50,
        "epochs": 4,
    }
    return pl.Job(**{**settings, **changes})  # type: ignore[arg-type]


def test_a_run_becomes_a_c_file(tmp_path: Path) -> None:
    run = pl.train(job(), folder=tmp_path)
    assert run.path is not None
    said: list[str] = []
    found = pl.compress(run, within=5.0, widths=[0.5], epochs=2, say=said.append)
    assert len(found.points) == 1 + 4 * 2, "float32, and four precisions with two kernels each"
    assert {point.width for point in found.points} == {0.5}
    assert any("8 channels" in line for line in said)
    assert found.chosen is not None
    assert found.chosen.accuracy >= found.trained - 0.05
    assert found.on_test is not None
    assert found.on_test > 0.9
    found.save(tmp_path / "net.c")
    assert (tmp_path / "net.c").read_text() == found.chosen.file.text
    assert found.as_dict()["chosen"]["size"] == found.chosen.size


def test_a_job_with_a_schedule_is_retrained_for_as_many_epochs_as_the_schedule_is_made_for() -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.OneCycleLR:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=40)

    run = pl.train(job(lr_scheduler=schedule), folder=None)
    assert len(pl.compress(run, widths=[0.5]).points) == 9


def test_no_point_within_the_bounds_leaves_the_frontier(tmp_path: Path) -> None:
    run = pl.train(job(), folder=None)
    found = pl.compress(run, size=10, widths=[1.0])
    assert found.chosen is None
    assert found.model is None
    assert found.frontier
    with pytest.raises(RunFolderError, match="no network within the bounds"):
        found.save(tmp_path / "net.c")


def point(accuracy: float, size: int, p50: float, error: float = 0.0) -> Point:
    """A point beside a trained model of 90%."""
    lost = Loss(100 * (0.9 - accuracy), error)
    return Point(1.0, "int8", "small", accuracy, lost, size, 0, FILE, Latency(p50, p50))


def test_the_frontier_holds_what_nothing_beats() -> None:
    best, small, fast, beaten = point(0.9, 900, 9.0), point(0.8, 100, 9.0), point(0.8, 900, 1.0), point(0.8, 900, 9.0)
    assert frontier([beaten, fast, best, small]) == [best, fast, small]


def test_the_fastest_point_within_the_bounds_is_chosen() -> None:
    accurate, fast, wrong = point(0.9, 900, 9.0), point(0.896, 900, 2.0), point(0.89, 100, 1.0)
    result = [accurate, fast, wrong]
    assert choose(result, Bounds(within=0.5)) is fast
    assert choose(result, Bounds(within=0.1)) is accurate
    assert choose(result, Bounds(within=0.1, latency=5.0)) is None
    assert choose(result, Bounds(within=5.0, size=500)) is wrong


def test_the_page_shows_every_point_and_marks_the_chosen_one() -> None:
    result = (point(0.9, 900, 9.0), point(0.898, 100, 9.0), point(0.8, 900, 1.0))
    page = page_of(Compression("digits", "here", Bounds(), result, result[1], 0.9))
    assert page.count("<title>int8, width 1, small: ") == len(result)
    assert page.count('r="8"') == 1
    assert page.count("<tr class=chosen>") == 2, "among the frontier and among all points"


def test_a_bound_holds_with_confidence() -> None:
    sure, unsure = point(0.898, 900, 9.0, error=0.1), point(0.898, 900, 2.0, error=0.5)
    assert choose([sure, unsure], Bounds(within=0.5)) is sure
    assert choose([sure, unsure], Bounds(within=0.5, confidence=0.5)) is unsure


def test_a_yes_is_told_from_a_no_where_its_loss_does() -> None:
    results, y = torch.tensor([[-1.0], [0.2], [0.7]]), torch.tensor([[0.0], [1.0], [0.0]])
    logits = nn.BCEWithLogitsLoss(), nn.functional.binary_cross_entropy_with_logits
    assert [score_of(loss, y).of(results, y).tolist() for loss in logits] == [[1.0, 1.0, 0.0]] * 2
    assert score_of(nn.BCELoss(), y).of(results, y).tolist() == [1.0, 0.0, 0.0]


def test_an_interval_holds_as_often_as_it_says() -> None:
    """Of 400 validation splits, the true loss of half a point is beyond the interval of 90% in about 40."""
    generator = torch.Generator().manual_seed(0)
    beyond = 0
    for _ in range(400):
        chance = torch.rand(2000, generator=generator)
        trained, made = (chance >= 0.03).double(), ((chance < 0.025) | (chance >= 0.055)).double()
        beyond += loss_between(trained, made).most(0.9) < 0.0
    assert 25 <= beyond <= 55


@pytest.mark.parametrize(("given", "found"), [("5us", 5.0), ("0.2ms", 200.0), ("900 ns", 0.9), (3, 3.0), (None, None)])
def test_a_latency_is_read(given: str | float | None, found: float | None) -> None:
    assert result.latency(given) == pytest.approx(found)


def test_a_size_is_read() -> None:
    assert [result.size(given) for given in ("16KB", "16KiB", "900", 12, None)] == [16_000, 16_384, 900, 12, None]


@pytest.mark.parametrize("given", ["5", "5 parsecs", "fast", "-1us"])
def test_a_latency_that_says_nothing_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="write it as in 5us"):
        result.latency(given)


def test_wrong_use_is_refused_before_the_search(tmp_path: Path) -> None:
    run = pl.train(job(), folder=None, max_updates=1)
    with pytest.raises(UsageError, match="there is no target 'hare'; did you mean 'here'"):
        pl.compress(run, target="hare")
    with pytest.raises(UsageError, match="widths above 0"):
        pl.compress(run, widths=[0.0])
    with pytest.raises(RunFolderError):
        pl.compress(tmp_path)
    told: list[str] = []
    shutil.copy(pl.train(job(), folder=tmp_path, max_updates=1).path / "run.json", tmp_path)
    with pytest.raises(RunFolderError, match=r"has no job\.pickle"):
        pl.compress(tmp_path, say=told.append)
    assert told[0].startswith(f"reading {tmp_path / 'job.pickle'}, which runs code of its author")
    with pytest.raises(UsageError, match=r"confidence=1\.5: give a share"):
        pl.compress(run, confidence=1.5)
    said: list[str] = []
    with pytest.raises(PlanError, match="there is no plan 'rong'; did you mean 'ring'"):
        pl.compress(run, plan="rong", say=said.append)
    assert said == []


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.functional.binary_cross_entropy], ids=["numbers", "shares"])
def test_a_target_need_not_be_a_label(loss: nn.Module) -> None:
    """A regression is held to the variance that it explains, a yes or no to its right answers.

    The first one is in double precision, with a weight that is computed from others.
    """
    x, labels = job().data
    if isinstance(loss, nn.MSELoss):
        x, y = x.double(), (x[:, :2] + x[:, 4:6]).double()
        body = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(12, 16)), nn.Tanh(), nn.Linear(16, 2))
        model = body.double()
    else:
        y = (labels[:, None] > 1).float()
        model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1), nn.Sigmoid())
    other = job(data=(x[:400], y[:400]), test=(x[400:], y[400:]), loss=loss, model=lambda: model, epochs=20)
    found = pl.compress(pl.train(other, folder=None), within=2.0, widths=[1.0])
    assert found.chosen is not None
    assert any(point.precision == "int8" and not found.bounds.faults(point) for point in found.points)
    assert found.trained > 0.9
    assert found.on_test is not None
    assert found.on_test > 0.85
