"""The bench: what it measures is the network it says, its tables and its picture."""

from __future__ import annotations

import copy
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from paceline.interfaces.cli import app, register
from paceline.kernels.machine import Peak
from paceline.kernels.measure import bench as measuring
from paceline.kernels.measure.bench import PARTS, bench
from paceline.kernels.measure.figures import SEQUENTIAL, Bench, EpochRow, Meter, Shaped, by_layer, picture, tables
from paceline.kernels.measure.networks import CNN
from paceline.kernels.measure.picture import Point, roofline
from paceline.kernels.measure.study import StepTime, study_network


@pytest.mark.parametrize(("keeps", "threads"), [("outputs", 1), ("outputs", 4), ("inputs", 2)])
def test_the_study_trains_the_same_network(keeps: str, threads: int) -> None:
    """A layer at a time, its loops dealt out to threads: batch 1, as PyTorch would."""
    study = study_network(CNN, keeps, threads)
    twin = copy.deepcopy(study.model)
    x, y = CNN.data(30)
    study.train_epoch(x, y, torch.arange(30))
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.05)
    for one, label in zip(x.split(1), y.split(1), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(twin(one), label).backward()
        optimizer.step()
    for mine, theirs in zip(study.model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-5)


def test_layers_are_measured_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "peak", lambda threads: Peak(threads, 200.0 * threads, 40.0))
    found = bench(("layers",), seconds=0.004, threads=(1, 2), say=lambda line: None)
    for steps in found.steps.values():
        layers = by_layer(steps)
        assert set(layers) == {(k, w) for k in ("convolution", "pooling", "dense") for w in ("forward", "backward")}
        assert all(0 < seconds < 1 for seconds, _ in layers.values())  # of one sample
        forward = {kind: flops for (kind, way), (_, flops) in layers.items() if way == "forward"}
        assert forward == {"convolution": 2 * 6 * 24 * 24 * 25, "pooling": 2 * 6 * 36 * 16, "dense": 2 * 2160}
    said = tables(found)
    assert "| convolution | forward |" in said
    assert all(f"{name}, us (speed-up)" in said for name in found.steps if name != "sequential")
    shown = picture(found)
    ElementTree.fromstring(shown)
    assert "200 GFLOP/s" in shown  # the roof of one core


def test_tables_set_ours_beside_the_best_of_theirs() -> None:
    found = Bench([Peak(1, 200.0, 40.0)], machine={"vector": 64})
    found.rows = [
        EpochRow("mnist-dnn", "fused", 1, 0.2, 50.0, 0.25),
        EpochRow("mnist-dnn", "fused", 2, 0.1, 100.0, 0.25),
        EpochRow("mnist-dnn", "PyTorch eager", 1, 0.8, 12.0, 0.06),
        EpochRow("mnist-dnn", "PyTorch compiled", 1, 0.5, 20.0, 0.1),
    ]
    said = tables(found)
    assert "**5.0 times**" in said
    assert "| fused |  | 2 | 0.100 |  | 1.00 | 100.0 | 25% |" in said


def test_speed_up_and_efficiency_are_the_studys() -> None:
    """Over the sequential program; and over one worker of the same way, by workers."""
    found = Bench([Peak(1, 200.0, 40.0)], machine={"vector": 64})
    name = "mnist-cnn, batch 1"
    found.rows = [
        EpochRow(name, SEQUENTIAL, 1, 3.0, 8.0, 0.04),
        EpochRow(name, "MPI as published", 1, 4.0, 6.0, 0.03, ranks=1),
        EpochRow(name, "MPI as published", 1, 2.5, 10.0, 0.03, ranks=2),
        EpochRow(name, "MPI as published", 2, 2.0, 12.0, 0.03, ranks=2),
    ]
    said = tables(found)
    assert "| *published:* MPI, 2 ranks | | | 68.2 | 1.5 | | | |" in said
    assert "| MPI as published | 1 | 1 | 4.000 | 0.8 |  | 6.0 | 3% |" in said
    assert "| MPI as published | 2 | 1 | 2.500 | 1.2 | 0.80 | 10.0 | 3% |" in said
    assert "| MPI as published | 2 | 2 | 2.000 | 1.5 | 0.50 | 12.0 | 3% |" in said


def test_the_tuners_choice_stands_out() -> None:
    found = Bench([Peak(1, 200.0, 40.0)], machine={"vector": 64})
    seconds, errors = {"direct": 2e-5, "fft": 1e-5}, {"direct": 2e-7, "fft": 3e-7}
    found.shapes = [Shaped("shape", "fft", seconds, errors, {"direct": 50.0, "fft": 100.0})]
    assert "| shape | 20 |  |  |  | **10** | 100 | 3.0e-07 |" in tables(found)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("outputs",), id="one"),
        pytest.param(tuple(measuring.WAYS), marks=pytest.mark.soak, id="all"),
    ],
)
def test_ranks_are_measured_where_there_is_an_mpi(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py")
    monkeypatch.setattr(measuring, "peak", lambda threads: Peak(threads, 200.0, 40.0))
    ways = {name: (*measuring.WAYS[name][:2], ((2, 1),)) for name in names}
    monkeypatch.setattr(measuring, "WAYS", ways)
    found = bench(("ranks",), seconds=0.01, say=lambda line: None)
    rows = {row.who: row for row in found.rows}
    assert not found.missing
    assert set(rows) == {SEQUENTIAL, *(who for _, who, _ in ways.values())}
    assert all(row.seconds > 0 for row in found.rows)


@pytest.mark.parametrize("lack", ["mpi4py", "mpiexec"])
def test_what_is_missing_is_said(lack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring.importlib.util, "find_spec", lambda name: None if lack == "mpi4py" else object())
    monkeypatch.setattr(measuring, "mpiexec", lambda: None)
    found = Bench([Peak(1, 200.0, 40.0)], machine={"vector": 64})
    measuring.ranks(Meter(found, 0.01, (1,), lambda line: None))
    assert not found.rows
    assert "Not measured: ranks: " in tables(found)
    assert lack in tables(found)


def test_every_part_is_in_the_help() -> None:
    register()
    said = CliRunner().invoke(app, ["bench", "--help"], env={"COLUMNS": "200"}).output
    assert not [part for part in PARTS if part not in said]


def test_a_roofline_keeps_its_points_within_its_frame() -> None:
    points = [Point("slow <one>", 0.3, 0.5), Point("fast", 400.0, 190.0)]
    root = ElementTree.fromstring(roofline(points, 200.0, 40.0, "a title"))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    circles = [e for e in root.iter() if e.tag.endswith("circle")]
    assert len(circles) == 2
    assert all(0 < float(c.attrib["cx"]) < width and 0 < float(c.attrib["cy"]) < height for c in circles)


def test_a_roofline_without_points_is_the_machines() -> None:
    assert "200 GFLOP/s" in roofline([], 200.0, 40.0, "a title")


def test_what_follows_a_layer_counts_to_it() -> None:
    times = [StepTime("1", "forward", "contract", 10, 4, 1e-6), StepTime("2", "forward", "apply", 0, 4, 1e-6)]
    assert by_layer(times) == {("convolution", "forward"): (2e-6, 10)}


WRONG = (
    ["rockets"],
    ["kernels", "--parts", "study,moon"],
    ["kernels", "--threads", "two"],
    ["kernels", "--seconds", "inf"],
    ["kernels", "--picture", "/no/such/folder/roofline.svg"],
)


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_words_are_refused(wrong: list[str]) -> None:
    register()
    found = CliRunner().invoke(app, ["bench", *wrong])
    assert found.exit_code != 0
