"""Sources give what the user's own loader would have given; the oracle is the DataLoader itself."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import paceline as pl
from paceline.errors import JobError, JobWarning, PlanError
from paceline.interfaces.testing.conformance import difference
from paceline.training.data.loader_sources import StreamSource
from paceline.training.data.opening import open_source

X = torch.randn(40, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3
ALL = TensorDataset(X, Y)


def net() -> nn.Module:
    return nn.Linear(4, 3).double()


def job(data: Any, **changes: Any) -> pl.Job:
    given: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "optimizer": partial(torch.optim.SGD, lr=0.1), "epochs": 2}
    return pl.Job(net, data, **{**given, **changes})


def virtual(made: pl.Job, plan: str = "sequential", **rest: Any) -> pl.Run:
    return pl.train(made, plan, engine="virtual", folder=None, **rest)


def by_hand(loader: DataLoader[Any], epochs: int = 2) -> nn.Module:
    """The loop a user would have written."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


class Stream(IterableDataset[Any]):
    """Gives the samples in their order; with a length only if it is stated."""

    def __init__(self, stated: int | None = None, given: int = 40) -> None:
        self.stated, self.given = stated, given

    def __len__(self) -> int:
        if self.stated is None:
            raise TypeError
        return self.stated

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.given):
            yield X[number % 40], Y[number % 40]


class Backwards(Sampler[list[int]]):
    """A batch sampler of the user's, whose short batch comes first."""

    def __iter__(self) -> Iterator[list[int]]:
        yield [39]
        yield from ([*range(start, start + 13)] for start in (26, 13, 0))


def pairs(rows: list[Any]) -> Any:
    return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(ALL, batch_size=7),
        DataLoader(ALL, batch_size=7, drop_last=True),
        DataLoader(ALL, batch_size=7, collate_fn=pairs),
        DataLoader(ALL, batch_size=7, sampler=range(39, -1, -1)),  # type: ignore[arg-type]
        DataLoader(Stream(), batch_size=7),
        DataLoader(Stream(40), batch_size=7, drop_last=True),
        DataLoader(ALL, batch_sampler=[[0, 1, 2], [3], [5, 6]]),
        DataLoader([(X[:5], Y[:5]), (X[5:9], Y[5:9])], batch_size=None),  # type: ignore[arg-type]
    ],
    ids=["plain", "drop_last", "collate", "sampler", "stream", "stated", "batches", "whole"],
)
def test_one_process_trains_as_the_users_own_loop(loader: DataLoader[Any]) -> None:
    assert difference(virtual(job(loader)).model, by_hand(loader)) < 1e-12


@pytest.mark.parametrize("plan", ["ring:workers=2", "downpour:workers=2", "gpipe:workers=2"])
def test_a_stream_is_read_alike_under_every_plan(plan: str) -> None:
    made = job(DataLoader(Stream(), batch_size=8))
    if plan.startswith("gpipe"):
        made = made.with_(model=lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).double())
    tensors = made.with_(data=(X, Y))
    assert difference(virtual(made, plan).model, virtual(tensors, plan).model) == 0.0


def test_a_sampler_draws_by_seed_and_epoch() -> None:
    weights = WeightedRandomSampler([1.0] * 20 + [5.0] * 20, 30, generator=torch.Generator().manual_seed(3))
    made = job(DataLoader(ALL, batch_size=6, sampler=weights))
    source, again = open_source(made.data, 0), open_source(made.data, 0)
    first, second = (source.batch(torch.arange(30), epoch)[1] for epoch in (0, 1))
    assert len(source) == 30
    assert not torch.equal(first, second)
    assert torch.equal(again.batch(torch.arange(30), 1)[1], second)
    assert not torch.equal(open_source(made.data, 1).batch(torch.arange(30), 0)[1], first)


def test_the_short_batch_of_a_batch_sampler_comes_last() -> None:
    source = open_source(job(DataLoader(ALL, batch_sampler=Backwards())).data, 0)  # type: ignore[arg-type]
    seen = source.batch(torch.arange(40), 0)[0]
    assert torch.equal(seen, torch.cat([X[26:39], X[13:26], X[:13], X[39:]]))


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((), float(index)) + torch.rand(())


def test_a_collate_fn_that_draws_gives_the_same_for_the_same_chunk() -> None:
    def collate(rows: list[Tensor]) -> Tensor:
        return torch.stack(rows) + torch.rand(()) + random.random()

    made = job(DataLoader(Noisy(), batch_size=4, collate_fn=collate))  # type: ignore[arg-type]
    one, other = (open_source(made.data, 5).batch(torch.tensor([3, 9]), 1) for _ in range(2))
    assert torch.equal(one, other)


def test_a_stream_goes_back_by_beginning_again() -> None:
    source = open_source(job(Stream()).data, 0)
    assert isinstance(source, StreamSource)
    for numbers in ([0, 1], [6, 7], [2, 3], [39], [0]):
        assert torch.equal(source.batch(torch.tensor(numbers), 0)[0], X[numbers])


def test_a_function_may_make_an_iterator_for_every_epoch() -> None:
    made = job(lambda: iter(Stream()), batch_size=8)
    assert difference(virtual(made).model, virtual(job((X, Y), batch_size=8, shuffle=False)).model) == 0.0


def test_packed_sequences_reach_the_model_whole() -> None:
    seen: list[object] = []

    def collate(rows: list[Any]) -> Any:
        return pack_sequence([x.unsqueeze(1) for x, _ in rows]), torch.stack([y for _, y in rows])

    def step(model: nn.Module, batch: Any) -> Tensor:
        seen.append(batch[0])
        loss: Tensor = model(X[:1]).sum()
        return loss

    virtual(job(DataLoader(ALL, batch_size=20, collate_fn=collate), loss=None, step=step), "ring:workers=2")
    assert all(isinstance(each, PackedSequence) for each in seen)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (iter([1, 2]), "data= is an iterator, which is used up"),
        ({"train": ALL, "test": ALL}, "data= is a dictionary of train, test"),
        (Stream(stated=50), "ended after 40 samples in epoch 0"),
        (lambda: DataLoader(ALL, batch_size=7), "data= makes batches of 7, and the job has batch_size=100"),
        (DataLoader(ALL, batch_size=4, sampler=[]), "data= holds no samples"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_read_says_so(data: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        virtual(job(data))


def test_a_stream_without_an_end_says_how_to_give_it_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.training.data.loader_sources.MOST", 100)
    with pytest.raises(JobError, match=r"states no length and has not ended after 100 samples; .*max_updates="):
        virtual(job(Stream(given=1000)))


def test_counting_that_takes_long_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.training.data.loader_sources.PATIENCE", 0.0)
    with pytest.warns(JobWarning, match=r"is a stream that states no length: its samples are counted first, .*__len__"):
        assert len(open_source(job(Stream()).data, 0)) == 40


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for number in itertools.count():
            yield ALL[number % len(ALL)]


@pytest.mark.parametrize(
    "plan", ["sequential", "ring:workers=2", "downpour:workers=2", "local_sgd:workers=2", "zero:workers=2"]
)
def test_an_endless_stream_is_trained_for_so_many_updates(plan: str) -> None:
    given = job(Endless()).with_(batch_size=10, epochs=3, accumulate_grad_batches=2 if plan == "sequential" else 1)
    run = pl.train(given, plan, engine="virtual", folder=None, max_updates=7)
    assert run.record.summary is not None
    assert run.record.summary.updates == 7


@pytest.mark.filterwarnings("ignore:.*has no checkpoint yet")  # where the run ended before the first was written
def test_a_run_of_an_endless_stream_is_replayed_and_resumed(tmp_path: Path) -> None:
    def stop(progress: Any) -> None:
        if progress.updates >= 4:
            raise KeyboardInterrupt

    given = job(Endless()).with_(batch_size=10)
    run = pl.train(given, folder=tmp_path, max_updates=7)
    assert pl.replay(str(run.path)).matches
    with pytest.raises(KeyboardInterrupt):
        pl.train(given, folder=tmp_path / "stopped", max_updates=300, checkpoint_every=1, progress=stop)
    (stopped,) = (tmp_path / "stopped").iterdir()
    again = pl.train(resume=stopped)
    assert again.record.summary is not None
    assert again.record.summary.updates == 300


@pytest.mark.parametrize(
    ("data", "plan", "message"),
    [
        (
            DataLoader(ALL, batch_sampler=[[0], [1, 2], [3, 4], [5]]),
            "ring:workers=2",
            "this loader makes whole batches",
        ),
        (
            DataLoader(ALL, batch_size=4, sampler=SubsetRandomSampler(range(40))),
            "parallel_sgd:mode=map_reduce,workers=2",
            "has others in every epoch",
        ),
    ],
)
def test_a_plan_names_what_a_loader_cannot_give(data: Any, plan: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        pl.train(job(data), plan, folder=None)


def test_processes_replay_and_resume_alike(tmp_path: Any) -> None:
    weights = WeightedRandomSampler([1.0] * 20 + [5.0] * 20, 32)
    made = job(DataLoader(ALL, batch_size=8, sampler=weights, collate_fn=pairs, num_workers=1))
    run = pl.train(made, "downpour:workers=2", folder=tmp_path)
    assert run.path is not None
    assert pl.replay(run.path).matches
    stream = pl.train(job(DataLoader(Stream(), batch_size=8, num_workers=2)), "ring:workers=2", folder=tmp_path)
    assert pl.replay(stream).matches
    assert difference(stream.model, virtual(job(DataLoader(Stream(), batch_size=8)), "ring:workers=2").model) == 0.0
