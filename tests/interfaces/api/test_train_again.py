"""A run keeps the job that was passed in: trained again, or replayed, it comes to the same bits."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import paceline as pl
from paceline.errors import TuningError
from paceline.interfaces.api.tuning.setup import PlannedObjective, objective_of
from paceline.planning.tuner.searches import Search
from paceline.planning.tuner.training import JobObjective, Measure
from paceline.planning.tuner.trial import Terms, Trial
from paceline.runtime.engines.stepping import SteppedTraining
from paceline.training.jobs.job import Job

# --- Trials that are parallel runs go on from each other's checkpoints, with settings of their own --------------------


def make_job(trial: Trial) -> Job:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    y = x.sum(1, keepdim=True)
    return Job(
        model=lambda: nn.Linear(3, 1),
        data=(x, y),
        test=(x, y),
        loss=nn.MSELoss(),
        batch_size=10,
        optimizer=partial(torch.optim.SGD, lr=trial["lr"], momentum=0.5),
        epochs=2,
        shuffle=False,
    )


def leg(states: Path, number: int, rate: float, start: int, source: int | None = None) -> Trial:
    return Trial(number, {"lr": rate}, start, start + 1, Terms(states=states), source=source)


@pytest.mark.parametrize("plan", ["ring:workers=2", "ssp:workers=1"])
def test_a_member_goes_on_from_what_another_one_has_learned(plan: str, tmp_path: Path) -> None:
    jobs = JobObjective(make_job, SteppedTraining, Measure("test_loss"), heeds=frozenset())
    planned = PlannedObjective(jobs, plan, None)
    planned(leg(tmp_path, 0, 0.02, 0))
    exploited = planned(leg(tmp_path, 1, 0.08, 1, source=0))
    alone = SteppedTraining(make_job(leg(tmp_path, 0, 0.02, 0)).with_(epochs=2))
    alone.advance(4)
    changed = SteppedTraining(make_job(leg(tmp_path, 1, 0.08, 1)).with_(epochs=2))
    changed.restore(alone.state(), settings=False)
    changed.advance(8)
    assert exploited == pytest.approx(changed.evaluate()["test_loss"], rel=1e-5)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0-1", "1-2"]


def test_plans_without_checkpoints_are_refused_under_pbt() -> None:
    with pytest.raises(TuningError, match="keeps no checkpoints"):
        objective_of(make_job, Measure("train_loss"), Search.parse("pbt"), frozenset(), "pipedream:workers=2", None)


SAMPLES = 30
X = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(SAMPLES) % 3
ROWS = TensorDataset(X, Y)


class Augmented(Dataset):  # type: ignore[type-arg]
    """Draws from three generators for each sample."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index] + 0.1 * (torch.randn(4) + random.random() + np.random.rand()), Y[index]


class Counting(Sampler):  # type: ignore[type-arg]
    """Has another order each time it is iterated over, and nobody tells it the epoch."""

    def __init__(self) -> None:
        self.passes = 0

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        yield from ((number * 7 + self.passes) % SAMPLES for number in range(SAMPLES))


class Drawing(Sampler):  # type: ignore[type-arg]
    """Draws from a generator of its own, from one epoch to the next."""

    def __init__(self) -> None:
        self.own = torch.Generator().manual_seed(3)

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(SAMPLES, generator=self.own).tolist()


class Told(Sampler):  # type: ignore[type-arg]
    """Shuffles by the epoch that it is told, as distributed samplers do."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return SAMPLES

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        yield from np.random.RandomState(self.epoch).permutation(SAMPLES).tolist()


class Batches(Counting):
    """Yields batches, others in each epoch."""

    def __len__(self) -> int:
        return SAMPLES // 10

    def __iter__(self) -> Iterator[Any]:
        order = list(super().__iter__())
        yield from (order[first : first + 10] for first in range(0, SAMPLES, 10))


class Flow(IterableDataset):  # type: ignore[type-arg]
    """A stream with a generator of its own."""

    def __init__(self) -> None:
        self.own = np.random.default_rng(5)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(SAMPLES):
            yield X[number] + float(self.own.normal()), Y[number]


class Fading(nn.Module):
    """A loss with a state that each call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.factor *= 0.9
        return F.cross_entropy(output, target) * self.factor


class Noising:
    """An augmentation with a generator of its own."""

    def __init__(self) -> None:
        self.own = torch.Generator().manual_seed(2)

    def __call__(self, batch: Any) -> Any:
        x, y = batch
        return x + 0.1 * torch.randn(x.shape, generator=self.own), y


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3))


def _transform(batch: Any) -> Any:
    x, y = batch
    return x + 0.1 * torch.randn_like(x) + random.random(), y


def _loader(data: Any = ROWS, **rest: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"data": DataLoader(data, **{"batch_size": 10, **rest})}


def _sampled(make: Callable[[], Any]) -> Callable[[], dict[str, Any]]:
    return lambda: {"data": DataLoader(ROWS, batch_size=10, sampler=make())}


def _plateau(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)


def _step(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


ALONG = partial(lr_scheduler.StepLR, step_size=2, gamma=0.5)
#: What is changed in a plain job, by a name; functions make anew what has a state.
CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "model": lambda: {"model": nn.Linear(4, 3)},
    "norms": lambda: {"model": lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))},
    "step": lambda: {"loss": None, "step": _step},
    "stateful loss": lambda: {"loss": Fading()},
    "several optimizers": lambda: {
        "optimizer": lambda model: [torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()]
    },
    "adam": lambda: {"optimizer": torch.optim.AdamW},
    "seed": lambda: {"seed": 5},
    "schedule of updates": lambda: {"lr_scheduler": ALONG},
    "schedule of epochs": lambda: {"lr_scheduler": ALONG, "lr_scheduler_interval": "epoch"},
    "one cycle of epochs": lambda: {
        "lr_scheduler": lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=4),
        "lr_scheduler_interval": "epoch",
    },
    "plateau": lambda: {"lr_scheduler": _plateau},
    "plateau of epochs": lambda: {"lr_scheduler": _plateau, "lr_scheduler_interval": "epoch"},
    "clipping": lambda: {"gradient_clip_norm": 0.1},
    "accumulation": lambda: {"accumulate_grad_batches": 2, "lr_scheduler": ALONG, "lr_scheduler_interval": "epoch"},
    "bf16": lambda: {"precision": "bf16-mixed"},
    "fused": lambda: {"compute": "fused", "lr_scheduler": ALONG, "lr_scheduler_interval": "epoch"},
    "auto": lambda: {"compute": "auto"},
    "skip": lambda: {"on_nan": "skip"},
    "ignore": lambda: {"on_nan": "ignore"},
    "in order": lambda: {"shuffle": False},
    "denominator": lambda: {
        "loss": lambda o, t: F.cross_entropy(o, t, ignore_index=0),
        "loss_denominator": lambda b: (b[1] > 0).sum(),
    },
    "transform": lambda: {"batch_transform": _transform},
    "stateful transform": lambda: {"batch_transform": Noising()},
    "augmented": lambda: {"data": Augmented()},
    "tested": lambda: {
        "test": (X, Y),
        "metrics": {"right": lambda o, t: (o.argmax(1) == t).float().mean()},
        "evaluate_every": 2,
    },
    "evaluate": lambda: {
        "loss": None,
        "step": _step,
        "evaluate": lambda model, batch: (model(batch[0]), batch[1]),
        "test": (X, Y),
        "metrics": {"right": lambda o, t: (o.argmax(1) == t).float().mean()},
    },
    "loader": _loader(),
    "shuffled loader": _loader(shuffle=True),
    "loader that drops": _loader(batch_size=8, shuffle=True, drop_last=True),
    "loader of a subset": lambda: {"data": DataLoader(Subset(ROWS, range(5, 25)), batch_size=5)},
    "collated": _loader(
        collate_fn=lambda rows: (torch.stack([x for x, _ in rows]) * 2, torch.stack([y for _, y in rows]))
    ),
    "generator": _loader(shuffle=True, generator=torch.Generator().manual_seed(9)),
    "weighted": _sampled(lambda: WeightedRandomSampler([1.0] * 15 + [3.0] * 15, SAMPLES)),
    "replacing": _sampled(lambda: RandomSampler(ROWS, replacement=True, num_samples=20)),
    "distributed": _sampled(lambda: DistributedSampler(ROWS, num_replicas=2, rank=1, shuffle=True)),
    "told the epoch": _sampled(Told),
    "counting": _sampled(Counting),
    "drawing": _sampled(Drawing),
    "batch sampler": lambda: {"data": DataLoader(ROWS, batch_sampler=BatchSampler(Counting(), 10, drop_last=False))},
    "own batch sampler": lambda: {"data": DataLoader(ROWS, batch_sampler=Batches())},
    "stream": lambda: {"data": DataLoader(Flow(), batch_size=10)},
    "bare stream": lambda: {"data": Flow()},
    "function": lambda: {"data": lambda: (X, Y)},
    "arrays": lambda: {"data": (X.numpy(), Y.numpy())},
    "wrapped again": lambda: {"data": Job(**_fields(_sampled(Counting)())).data},
}


def _fields(changes: dict[str, Any]) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "model": _net,
        "data": (X, Y),
        "loss": F.cross_entropy,
        "batch_size": 10,
        "epochs": 4,
        "device": "cpu",
        "optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    }
    if isinstance(changes.get("data"), DataLoader):
        del usual["batch_size"]
    return usual | changes


def _shas(job: Job, folder: Path, plan: str, engine: str) -> list[str]:
    run = pl.train(job, plan, engine=engine, folder=folder)
    assert run.job is job
    again = pl.train(run.job, plan, engine=engine, folder=None)
    assert run.path is not None
    results = [run.record, again.record]
    replays = [pl.replay(run), pl.replay(run.path), pl.replay(again)]
    return [r.summary.parameters_sha256 for r in results if r.summary] + [r.parameters_sha256 for r in replays]


@pytest.mark.filterwarnings("ignore::paceline.errors.JobWarning")
@pytest.mark.parametrize("case", CASES)
def test_a_run_s_job_trains_and_replays_to_the_same_bits(case: str, tmp_path: Path) -> None:
    plan = "sequential" if case in ("fused", "auto") else "sequential:chunks=2"
    shas = _shas(Job(**_fields(CASES[case]())), tmp_path, plan, "virtual")
    assert len(set(shas)) == 1


#: Under workers of their own: of each way in which a job is changed for the engines, one.
QUICK = ("schedule of epochs", "counting")
#: Each worker has a copy of what has a state, and a replay one for all.
APART = ("stateful loss", "stateful transform")


@pytest.mark.filterwarnings("ignore::paceline.errors.JobWarning")
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.soak] * (case not in QUICK)) for case in CASES if case not in APART]
)
def test_it_does_so_with_two_workers(case: str, tmp_path: Path) -> None:
    shas = _shas(Job(**_fields(CASES[case]())), tmp_path, "ring:workers=2", "local")
    assert len(set(shas)) == 1


def test_each_option_of_a_job_is_among_the_cases() -> None:
    tried = {name for make in CASES.values() for name in make()}
    unchanging = {"device", "compile_options", "num_workers", "name", "origin", "batch_size", "epochs"}
    assert {field.name for field in fields(Job)} - unchanging == tried


def test_a_resumed_run_draws_from_a_sampler_what_an_unbroken_one_draws(tmp_path: Path) -> None:
    """Each of its processes begins with a sampler as it was before the first epoch."""
    job = Job(**_fields(_sampled(Counting)() | {"epochs": 200}))
    whole = pl.train(job, engine="virtual", folder=None)
    with pytest.raises(pl.RunStopped):
        pl.train(job, folder=tmp_path, checkpoint_every=4, progress=partial(_terminating, []))
    (folder,) = tmp_path.iterdir()
    resumed = pl.train(resume=folder)
    assert whole.record.summary is not None
    assert resumed.record.summary is not None
    assert resumed.record.summary.parameters_sha256 == whole.record.summary.parameters_sha256


def _terminating(signals: list[int], progress: Any) -> None:
    """Ask the run once to end, which writes a last checkpoint first, in its second epoch or later."""
    if progress.updates >= 4 and not signals:
        signals.append(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
