"""`compress`: the whole way from a run to a C file, and what is refused before it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.compression import bounds
from paceline.compression.building import Latency
from paceline.compression.emission.c_file import CFile
from paceline.compression.points import Bounds, Point, choose, frontier
from paceline.errors import JobError, RunFolderError, UsageError

FILE = CFile("", (), 0, True)


def job(**changes: object) -> pl.Job:
    """Four classes that lie apart."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(4, (600,), generator=generator)
    x = nn.functional.one_hot(y, 4).float().repeat(1, 3) + 0.3 * torch.randn(600, 12, generator=generator)
    settings = {
        "model": lambda: nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4)), "data": (x[:500], y[:500]),
        "test": (x[500:], y[500:]), "loss": nn.CrossEntropyLoss(), "optimizer": partial(torch.optim.SGD, lr=0.5),
        "batch_size": 50, "epochs": 4,
    }  # fmt: skip
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


def test_no_point_within_the_bounds_leaves_the_frontier(tmp_path: Path) -> None:
    run = pl.train(job(), folder=None)
    found = pl.compress(run, size=10, widths=[1.0])
    assert found.chosen is None
    assert found.model is None
    assert found.frontier
    with pytest.raises(RunFolderError, match="no network within the bounds"):
        found.save(tmp_path / "net.c")


def point(accuracy: float, size: int, p50: float) -> Point:
    return Point(1.0, "int8", "small", accuracy, size, 0, FILE, Latency(p50, p50))


def test_the_frontier_holds_what_nothing_beats() -> None:
    best, small, fast, beaten = point(0.9, 900, 9.0), point(0.8, 100, 9.0), point(0.8, 900, 1.0), point(0.8, 900, 9.0)
    assert frontier([beaten, fast, best, small]) == [best, fast, small]


def test_the_fastest_point_within_the_bounds_is_chosen() -> None:
    accurate, fast, wrong = point(0.9, 900, 9.0), point(0.896, 900, 2.0), point(0.89, 100, 1.0)
    points = [accurate, fast, wrong]
    assert choose(points, Bounds(within=0.5), trained=0.9) is fast
    assert choose(points, Bounds(within=0.1), trained=0.9) is accurate
    assert choose(points, Bounds(within=0.1, latency=5.0), trained=0.9) is None
    assert choose(points, Bounds(within=5.0, size=500), trained=0.9) is wrong


@pytest.mark.parametrize(("given", "found"), [("5us", 5.0), ("0.2ms", 200.0), ("900 ns", 0.9), (3, 3.0), (None, None)])
def test_a_latency_is_read(given: str | float | None, found: float | None) -> None:
    assert bounds.latency(given) == pytest.approx(found)


def test_a_size_is_read() -> None:
    assert [bounds.size(given) for given in ("16KB", "16KiB", "900", 12, None)] == [16_000, 16_384, 900, 12, None]


@pytest.mark.parametrize("given", ["5", "5 parsecs", "fast", "-1us"])
def test_a_latency_that_says_nothing_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="write it as in 5us"):
        bounds.latency(given)


def test_wrong_use_is_refused_before_the_search(tmp_path: Path) -> None:
    run = pl.train(job(), folder=None, max_updates=1)
    with pytest.raises(UsageError, match="there is no target 'hare'; did you mean 'here'"):
        pl.compress(run, target="hare")
    with pytest.raises(UsageError, match="widths above 0"):
        pl.compress(run, widths=[0.0])
    with pytest.raises(RunFolderError):
        pl.compress(tmp_path)
    x, y = job().data
    regression = job(data=(x, y.float()[:, None]), test=None, loss=nn.MSELoss(), model=lambda: nn.Linear(12, 1))
    with pytest.raises(JobError, match="one whole number per label"):
        pl.compress(pl.train(regression, folder=None, max_updates=1))
