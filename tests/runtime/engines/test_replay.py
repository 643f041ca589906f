from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import paceline as pl
from paceline.algorithms.cluster.shares import Epoch, Epochs
from paceline.errors import ReplayDiverged, RunFolderError, UsageError, WorkerFailed
from paceline.interfaces.testing.jobs import JOBS
from paceline.plans.plan import Plan
from paceline.runtime.engines.arithmetic.synchronous import AveragedReplicas
from paceline.runtime.engines.replay.from_plan import SynchronousReplayer
from paceline.runtime.engines.replay.replay import servers_apart
from paceline.runtime.engines.setup import set_up
from paceline.runtime.runs.live import EventKind, EventLog, RunEvent
from paceline.runtime.runs.record import AttemptRecord, RunRecord
from paceline.runtime.runs.trace import Kind
from paceline.training.jobs.built_ins import TinyTransformer, cifar_resnet, digits_net, mnist_dnn
from paceline.training.parameters.layout import sha256

G = torch.Generator().manual_seed(0)


def job(model, *shape: int, **rest) -> pl.Job:  # type: ignore[no-untyped-def]
    x, y = torch.randn(600, *shape, generator=G), torch.randint(10, (600,), generator=G)
    given = {"optimizer": partial(torch.optim.Adam, lr=1e-3), "batch_size": 30, "epochs": 2, **rest}
    return pl.Job(model=model, data=(x, y), loss=nn.CrossEntropyLoss(), **given)


@pytest.mark.parametrize(("engine", "apart"), [("local", False), ("cluster", True), ("ray", True)])
def test_runs_whose_servers_were_processes_are_replayed_from_their_pushes(engine: str, apart: bool) -> None:
    """Under Ray servers are the processes of a cluster, too: rows of workers may be missing, and clocks differ."""
    assert servers_apart(AttemptRecord("downpour", 0, engine), RunRecord(engine="local")) is apart
    assert servers_apart(AttemptRecord("downpour", 0), RunRecord(engine=engine)) is apart


CASES = {
    "dnn": lambda: job(mnist_dnn, 28, 28),
    "cnn": lambda: job(digits_net, 1, 16, 16),
    "resnet": lambda: job(cifar_resnet, 3, 16, 16, optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9)),
    "transformer": lambda: job(TinyTransformer, 16, 8),
}


@pytest.mark.parametrize(
    ("case", "shards"),
    [  # every model once
        pytest.param(case, shards, marks=[] if (number + shards) % 2 else [pytest.mark.soak])
        for number, case in enumerate(CASES)
        for shards in (1, 2)
    ],
)
def test_an_asynchronous_run_of_three_processes_replays_to_the_same_bits(
    case: str, shards: int, tmp_path: Path
) -> None:
    run = pl.train(CASES[case](), f"downpour:workers=3,shards={shards}", folder=tmp_path)
    assert run.summary()["staleness"]["max"] > 0
    assert pl.replay(run).matches
    assert run.path is not None
    assert pl.replay(run.path).matches  # from the folder alone


@pytest.mark.parametrize(
    "plan",
    [
        "downpour:workers=3,shards=2,codec=topk:0.5,pull=onebit",
        "downpour:workers=3,codec=onebit",
        "backup:workers=4,backups=2",
        "diloco:mode=asynchronous,every=2,workers=2",
    ],
)
def test_a_run_replays_in_which_another_worker_has_taken_the_place_of_a_dead_one(plan: str) -> None:
    """It begins with the newest versions, and owes nothing; a round may hold a gradient of the dead one."""
    seconds = pl.train(JOBS["mlp"](), plan, engine="virtual", folder=None).summary()["seconds"]
    for death in (0.075, 0.125, 0.4):
        world = pl.World(deaths={1: death * seconds}, repairs={1: (death + 0.1) * seconds})
        run = pl.train(JOBS["mlp"](), plan, engine="virtual", folder=None, world=world)
        assert run.summary()["deaths"] == [1], death
        assert pl.replay(run).matches, death


@pytest.mark.parametrize(
    "plan", ["sequential:chunks=3", "ring:workers=3", "downpour:workers=3,shards=2", "gpipe:workers=2"]
)
def test_until_an_update_leaves_the_model_and_the_next_batch(plan: str) -> None:
    made = CASES["dnn"]()
    run = pl.train(made, plan, folder=None)
    found = pl.replay(run, until=11)
    assert found.updates == 11
    assert found.matches is None
    assert found.guilty_samples is not None
    assert len(found.guilty_samples) == 30
    assert torch.equal(found.guilty_batch[0], made.data[0][found.guilty_samples])
    assert pl.replay(run, until=11).parameters_sha256 == found.parameters_sha256
    assert [pl.replay(run, until=update).updates for update in (3, 7, 14)] == [3, 7, 14]
    start = pl.replay(run, until=0)
    assert start.updates == 0
    assert start.parameters_sha256 == sha256(made.make_model())


@pytest.mark.parametrize(
    "plan", ["sequential", "ring:workers=3", "downpour:workers=3", "downpour:workers=2,shards=2", "backup:workers=3"]
)
@pytest.mark.parametrize("engine", ["local", "virtual"])
def test_a_run_that_turns_to_nan_is_replayed_to_the_update_before(plan: str, engine: str) -> None:
    made = CASES["dnn"]()
    x, _ = made.data
    x[123] = float("nan")
    run = pl.train(made.with_(on_nan="ignore"), plan, engine=engine, folder=None)
    assert not all(bool(p.isfinite().all()) for p in run.model.parameters())
    found = pl.replay(run, until="nan")
    assert all(bool(p.isfinite().all()) for p in found.model.parameters())
    assert found.guilty_samples is not None
    assert 123 in found.guilty_samples.tolist()


class Tires(nn.Module):
    """Fails in the forward of this number in training."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.layer, self.at = nn.Linear(4, 2), at
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count += 1
            if self.count > self.at:
                raise ValueError("tired")
        result: torch.Tensor = self.layer(x)
        return result


@pytest.mark.parametrize("plan", ["ring:workers=2", "downpour:workers=2"])
def test_a_run_that_failed_is_replayed_as_far_as_it_is_recorded(plan: str, tmp_path: Path) -> None:
    x = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    job = pl.Job(
        lambda: Tires(6),
        (x, (x[:, 0] > 0).long()),
        nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=20,
    )
    with pytest.raises(WorkerFailed, match="tired"):
        pl.train(job, plan, folder=tmp_path)
    (run,) = tmp_path.iterdir()
    heard: list[tuple[int, int]] = []
    found = pl.replay(run, progress=lambda updates, last: heard.append((updates, last)))
    assert 0 < found.updates < 20
    assert found.matches is None
    assert heard[-1][0] == found.updates
    if plan.startswith("ring"):
        assert found.updates in (5, 6)
        tireless = pl.train(
            job.with_(model=lambda: Tires(100)), plan, engine="virtual", folder=None, max_updates=found.updates
        )
        assert found.parameters_sha256 == tireless.summary()["parameters_sha256"]


def test_a_run_without_nan_says_so() -> None:
    run = pl.train(CASES["dnn"](), "sequential", folder=None, max_updates=3)
    with pytest.raises(UsageError, match="no NaN"):
        pl.replay(run, until="nan")
    with pytest.raises(UsageError, match="updates 0 to 3"):
        pl.replay(run, until=99)
    with pytest.raises(UsageError, match="neither an update number"):
        pl.replay(run, until="soon")


def test_other_data_or_another_start_is_refused(tmp_path: Path) -> None:
    made = CASES["dnn"]()
    run = pl.train(made, "downpour", workers=2, folder=tmp_path, max_updates=5)
    assert run.path is not None
    x, y = made.data
    with pytest.raises(ReplayDiverged, match="fingerprints"):
        pl.replay(run.path, data=(x + 1, y))
    with pytest.raises(ReplayDiverged, match="does not start"):
        pl.replay(run.path, job=made.with_(seed=5))
    with pytest.raises(RunFolderError, match=r"no run\.json"):
        pl.replay(tmp_path)
    (run.path / "trace.arrow").unlink()
    with pytest.raises(UsageError, match="has no trace, so the order of its updates is not known"):
        pl.replay(run.path)


def test_a_model_with_chance_of_its_own_is_caught() -> None:
    import os

    def step(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1]) * (1 + os.urandom(1)[0] / 2**20)

    made = CASES["dnn"]().with_(loss=None, step=step)
    run = pl.train(made, "downpour", workers=2, folder=None)
    with pytest.raises(ReplayDiverged, match="Does the job draw random numbers"):
        pl.replay(run)


def test_a_run_whose_shard_lost_pushes_says_so(tmp_path: Path) -> None:
    run = pl.train(CASES["dnn"](), "downpour:workers=1,shards=2", folder=tmp_path, max_updates=2)
    assert run.path is not None
    log = EventLog(run.path)
    log.add(RunEvent(EventKind.VIEW, 0.0, shard=1, lossy=True))
    log.close()
    assert pl.replay(run.path).matches
    file = run.path / "run.json"
    record = json.loads(file.read_text())
    record["summary"]["parameters_sha256"] = "0" * 64
    file.write_text(json.dumps(record))
    with pytest.raises(ReplayDiverged, match="acknowledged pushes were lost with servers of shard 1"):
        pl.replay(run.path)


@pytest.mark.parametrize(
    ("plan", "says"), [("local_sgd", "since version 2, a worker that steps"), ("ring", "Does the job")]
)
def test_a_folder_of_older_arithmetic_says_what_has_changed(plan: str, says: str, tmp_path: Path) -> None:
    run = pl.train(CASES["dnn"](), plan, workers=2, folder=tmp_path, max_updates=2)
    assert run.path is not None
    file = run.path / "run.json"
    record = json.loads(file.read_text())
    del record["arithmetic_version"]
    record["summary"]["parameters_sha256"] = "0" * 64
    file.write_text(json.dumps(record))
    with pytest.raises(ReplayDiverged, match=says):
        pl.replay(run.path)


@pytest.mark.parametrize("plan", ["local_sgd:workers=3,every=2", "diloco:workers=3,every=2,overlap=1"])
def test_a_rank_that_was_given_a_sum_has_applied_it(plan: str) -> None:
    """Rank 2 dies in exchange 1, which rank 0 has finished and rank 1 has not: rank 1 takes its sum from rank 0."""
    setup = set_up(JOBS["mlp"](), Plan.parse(plan), "virtual", 9)
    numbers = AveragedReplicas(setup, setup.plan.method, Epochs(3, [Epoch(5, {0: 1, 1: 0})]))
    replayer, taken = SynchronousReplayer(setup, setup.plan.method, numbers), []
    for _ in replayer.replay(5):
        values = [replica.store.memory[0].get("shared", replica.store.values[0]) for replica in numbers.replicas[:2]]
        taken.append([value.clone() for value in values])
    assert torch.equal(*taken[4 if "overlap" in plan else 3])


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    "plan", ["downpour:workers=3,shards=2", "easgd:mode=asynchronous,workers=3", "backup:workers=4"]
)
def test_pushes_tell_all_that_rows_of_workers_tell(plan: str, apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a worker that has no rows, and of two that push twice for a version, since the others have died."""
    world = pl.World(speeds=(1.0, 0.01, 0.01)) if plan.startswith("easgd") else pl.World(deaths={2: 1e-3, 3: 1e-3})
    run = pl.train(JOBS["mlp"](), plan, engine="virtual", folder=None, world=world)
    made = run.trace.of_kind(Kind.APPLY)
    assert (len(np.unique(made[["worker", "shard", "version"]])) < len(made)) is plan.startswith("backup")
    monkeypatch.setattr("paceline.runtime.engines.replay.replay.servers_apart", lambda life, record: apart)
    assert pl.replay(run).matches
