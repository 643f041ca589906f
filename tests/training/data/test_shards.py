"""A folder of shards as the data of a training."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import paceline
from paceline.errors import DataError
from paceline.interfaces.testing.conformance import no_update_lost
from paceline.interfaces.testing.killing import DiesInMidUpdate
from paceline.training.data.opening import Mix, schedule
from paceline.training.data.shards import Shards
from paceline.training.data.source import Order
from paceline.training.shards.files import damaged
from paceline.training.shards.manifest import Account, Column, Manifest, Split
from paceline.training.shards.writing import ShardWriter


def write_folder(folder: Path, rows: int, first: int = 0) -> Path:
    """Write a folder of shards as `prepare` does, without an engine."""
    columns = {"x": Column("<f4", (3,)), "y": Column("<i8")}
    writer = ShardWriter(folder / "train", columns, 4096)
    x = np.arange(first, first + rows * 3, dtype=np.float32).reshape(rows, 3)
    for at in range(0, rows, 1000):
        part = {"x": x[at : at + 1000], "y": np.arange(first + at, first + min(at + 1000, rows))}
        list(writer.add(part))
    list(writer.close())
    splits = {"train": Split(rows, tuple(writer.shards))}
    Manifest(columns, splits, Account(rows, rows, {}), (), 4096, 0).write(folder)
    return folder


def test_a_sample_is_found_by_its_number_in_any_shard_and_process(tmp_path: Path) -> None:
    data = Shards(write_folder(tmp_path / "a", 10_000))
    numbers = torch.tensor([0, 4095, 4096, 8191, 8192, 9999, 17])
    for each in (data, pickle.loads(pickle.dumps(data))):
        x, y = each.batch(numbers, 0)
        assert y.tolist() == numbers.tolist()
        assert x[:, 0].tolist() == (numbers * 3).tolist()
    assert len(pickle.dumps(data)) < 10_000
    loader = torch.utils.data.DataLoader(data, batch_size=100)  # type: ignore[arg-type]
    assert torch.cat([y for _, y in loader]).tolist() == list(range(10_000))


def test_a_model_that_changes_its_input_changes_no_file(tmp_path: Path) -> None:
    data = Shards(write_folder(tmp_path / "a", 5000))
    data._columns[0].values.fill_(7)  # type: ignore[union-attr]
    assert not list(damaged(tmp_path / "a", data.manifest))


def test_windows_visit_every_sample_once_in_an_order_of_seed_and_epoch(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", 20_000)
    orders = {
        (seed, epoch): Shards(folder, window=2, seed=seed).batch(torch.arange(20_000), epoch)[1]
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert all(sorted(order.tolist()) == list(range(20_000)) for order in orders.values())
    assert len({tuple(order[:50].tolist()) for order in orders.values()}) == 4
    first = orders[0, 0][: 2 * 4096]
    assert len({int(number) // 4096 for number in first}) <= 2 or 4 in {int(number) // 4096 for number in first}


@pytest.mark.parametrize("weights", [[0.7, 0.3], [1, 1, 1], [0.5, 0.25, 0.125, 0.125], [0.9, 0.05, 0.03, 0.02], [3.0]])
def test_every_prefix_of_a_mix_is_exact_to_one_sample(weights: list[float]) -> None:
    pattern = schedule(weights)
    shares = np.bincount(pattern, minlength=len(weights)) / len(pattern)
    np.testing.assert_allclose(shares, np.array(weights) / sum(weights), atol=1e-3)
    taken = np.cumsum(np.tile(pattern, 2)[:, None] == np.arange(len(weights)), axis=0)
    due = np.arange(1, len(taken) + 1)[:, None] * shares
    assert np.abs(taken - due).max() < 1


def test_a_mix_uses_each_source_up_before_it_begins_again(tmp_path: Path) -> None:
    small, large = Shards(write_folder(tmp_path / "s", 100)), Shards(write_folder(tmp_path / "l", 5000, 10_000))
    mix = Mix({small: 0.5, large: 0.5}, samples=400)
    y = mix.batch(torch.arange(400), 0)[1]
    assert sorted(y[y < 100].tolist()) == sorted([*range(100)] * 2)
    large_seen = y[y >= 100].tolist()
    assert len(set(large_seen)) == 200
    later = mix.batch(torch.arange(400), 1)[1]
    assert not set(later[later >= 100].tolist()) & set(large_seen)
    assert torch.equal(mix.batch(torch.tensor([5, 300, 7]), 0)[1], y[[5, 300, 7]])


def _job(data: Any, **options: Any) -> paceline.Job:
    return paceline.Job(
        model=lambda: nn.Linear(3, 1),
        data=data,
        step=lambda model, batch: (model(batch[0] / 1e4) - batch[1][:, None] / 1e4).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        batch_size=64,
        **options,
    )


@pytest.mark.parametrize("plan", ["ring:workers=2", "downpour:workers=2"])
def test_runs_read_shards_as_tensors_and_are_replayed(plan: str, tmp_path: Path) -> None:
    data = Shards(write_folder(tmp_path / "a", 5000))
    run = paceline.train(_job(data), plan, folder=tmp_path / "runs")
    assert run.path is not None
    assert paceline.replay(run.path).matches
    if plan.startswith("ring"):
        tensors = data.batch(torch.arange(5000), 0)
        assert (
            paceline.train(_job(tensors), plan, folder=None).summary()["parameters_sha256"]
            == (run.summary()["parameters_sha256"])
        )


def test_generated_code_reads_shards_where_they_lie(tmp_path: Path) -> None:
    data = Shards(write_folder(tmp_path / "a", 5000))
    assert data.tensors is not None
    assert [each.data_ptr() for each in data.tensors] == [column.values.data_ptr() for column in data._columns]  # type: ignore[union-attr]
    assert Shards(tmp_path / "a", window=1).tensors is None
    tensors = data.batch(torch.arange(5000), 0)
    job = paceline.Job(
        model=lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5000)),
        data=data,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-6),
        batch_size=1000,
    )
    found = {
        paceline.train(replace(job, data=each), "sequential", compute="fused", folder=None).summary()[
            "parameters_sha256"
        ]
        for each in (data, tensors)
    }
    assert len(found) == 1


def test_runs_over_a_mix_are_replayed(tmp_path: Path) -> None:
    mix = Mix({Shards(write_folder(tmp_path / "a", 700)): 1, Shards(write_folder(tmp_path / "b", 5000)): 2})
    run = paceline.train(_job(mix), "downpour:workers=2", folder=tmp_path / "runs")
    assert run.path is not None
    assert paceline.replay(run.path).matches


def test_a_flipped_bit_a_missing_and_a_strange_file_are_found(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", 10_000)
    manifest = Shards(folder).manifest
    raw = bytearray((folder / "train" / "00001.x.bin").read_bytes())
    raw[1234] ^= 4
    (folder / "train" / "00001.x.bin").write_bytes(raw)
    (folder / "train" / "00000.y.bin").unlink()
    (folder / "train" / "stray").write_text("")
    assert list(damaged(folder, manifest)) == [
        "train/00000.y.bin is missing",
        "train/00001.x.bin has other bytes than were written: its sha256 differs",
        "train/stray does not belong to the folder",
    ]
    with pytest.raises(DataError, match=r"00000\.y\.bin is missing"):
        Shards(folder)


def test_what_a_folder_lacks_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", 100)
    for options, message in (
        ({"split": "tran"}, "did you mean 'train'"),
        ({"columns": ["z"]}, "no column 'z'"),
        ({"normalize": ["y"]}, "has no statistics"),
        ({"window": -1}, "window=-1"),
    ):
        with pytest.raises(DataError, match=message):
            Shards(folder, **options)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"no manifest\.json"):
        Shards(tmp_path)


@pytest.mark.parametrize("plan", ["downpour", "backup"])
def test_after_a_death_every_sample_has_been_applied_once_per_epoch(plan: str, tmp_path: Path) -> None:
    data, when = Shards(write_folder(tmp_path / "a", 5000)), tmp_path / "die"
    when.touch()
    job = _job(data, epochs=2)
    job = replace(job, optimizer=partial(DiesInMidUpdate, lr=0.01, when=str(when), spared=7))
    run = paceline.train(job, plan, workers=3, folder=tmp_path / "runs")
    assert len(run.summary()["deaths"]) == 1
    no_update_lost(run)
    for epoch in range(2):
        order = Order(5000, job.seed, job.shuffle).span(epoch, 0, 5000)
        assert sorted(data.batch(order, epoch)[1].tolist()) == list(range(5000))
    assert run.path is not None
    assert paceline.replay(run.path).matches
