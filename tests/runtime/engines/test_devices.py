"""Workers that compute on another device than the one that stores their parameters.

Without a GPU the CPU stands in for the device, and parameters and gradients are copied as for a GPU. With a GPU the
same rows run on it.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.algorithms.agenda import Chunk
from paceline.errors import JobError, UsageError
from paceline.interfaces.api.train import train
from paceline.interfaces.testing.conformance import PLANS, check_run, difference, same_numbers
from paceline.interfaces.testing.jobs import JOBS, SPARSE_JOBS
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.methods.split_layers import Dataflow
from paceline.plans.plan import Plan
from paceline.runtime.engines import setup
from paceline.runtime.engines.setup import CPU, Placement, place
from paceline.training.gradients.device_gradients import DeviceGradients, HostDeviceCopy
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Job

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
ROWS = [plan for member in PLANS for plan in member.plans()[-1:] if not isinstance(plan.method, Pipeline)]


def place_workers(monkeypatch: pytest.MonkeyPatch, on_device: bool = False, library: str = "") -> None:
    """Place all workers on a device that the CPU stands in for."""

    def placed(job: Job, plan: Plan, together: bool = False) -> Placement:
        return Placement((CPU,) * plan.workers, on_device, library)

    monkeypatch.setattr(setup, "place", placed)


def sha(run: pl.Run) -> object:
    return run.summary()["parameters_sha256"]


@pytest.mark.filterwarnings("ignore:plan sandblaster:paceline.errors.JobWarning")
@pytest.mark.parametrize(
    ("plan", "job"),
    [  # one job of each plan, the other one of the next
        pytest.param(plan, job, marks=[] if (row + number) % 2 else [pytest.mark.soak], id=f"{plan}-{job}")
        for row, plan in enumerate(ROWS)
        for number, job in enumerate(("residual", "tied"))
        if job == "residual" or not isinstance(plan.method, Dataflow)
    ],
)
def test_every_plan_makes_the_same_bits_on_a_device(plan: Plan, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = JOBS[job]()
    expected = train(made, plan, engine="virtual", folder=None, max_updates=12)
    place_workers(monkeypatch)
    assert sha(train(made, plan, engine="virtual", folder=None, max_updates=12)) == sha(expected)


@pytest.mark.parametrize(
    "plan", ["ring:workers=2", "downpour:workers=2,shards=2", "hogwild:workers=2", "ssp:workers=3"]
)
def test_real_workers_on_a_device(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place_workers(monkeypatch)
    check_run(train(JOBS["residual"](), plan, folder=None, max_updates=12), Plan.parse(plan))


def test_sparse_gradients_and_loops_over_chunks_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SPARSE_JOBS["bag-adagrad"]()
    expected = [
        sha(train(made, p, engine="virtual", folder=None)) for p in ("downpour:workers=2", "sequential:chunks=3")
    ]
    place_workers(monkeypatch)
    copied = [sha(train(made, p, engine="virtual", folder=None)) for p in ("downpour:workers=2", "sequential:chunks=3")]
    assert copied == expected


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("plan", ["ring", "local_sgd:every=4"])
def test_a_library_may_add_up(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo stands in for NCCL; with two workers the order of the sum does not matter."""
    made = JOBS["residual"]()
    by_table = train(made, plan, 2, folder=None, max_updates=12)
    place_workers(monkeypatch, on_device=True, library="gloo")
    run = train(made, plan, 2, folder=None, max_updates=12)
    assert difference(run.model, by_table.model) < 1e-9
    assert run.summary()["bytes_sent"] > 0
    with pytest.raises(UsageError, match="gloo summed"):
        pl.replay(run)


def test_a_copy_keeps_kinds_and_holes_apart() -> None:
    def made() -> list[nn.Parameter]:
        return [
            nn.Parameter(torch.arange(6.0).view(2, 3)),
            nn.Parameter(torch.ones(4).double()),
            nn.Parameter(-torch.ones(5)),
        ]

    here, there = made(), made()
    copy = HostDeviceCopy(here, there)
    with torch.no_grad():
        for parameter in here:
            parameter.mul_(3)
    copy.to_device()
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
    given = [torch.full((2, 3), 2.0), torch.full((4,), 0.5).double(), None]
    back = copy.to_host(given)
    assert back[2] is None
    again = copy.to_host([None, given[1], torch.ones(5)])
    assert again[0] is None
    assert torch.equal(back[0], torch.full((2, 3), 2.0))  # the caller's own: the next copy leaves it alone
    assert back[1].dtype == torch.float64


def test_gradients_on_a_device_have_the_same_randomness() -> None:
    made = JOBS["mlp"]()
    module = made.make_model()
    chunk, batch = Chunk(3, 1, 0, 0, 8, 1.0), tuple(t[:8] for t in made.data)
    found = []
    plain, host, there = (Replica(made, made.make_model().train(), ()) for _ in range(3))
    host.gradients = DeviceGradients(host.parameters, there)
    for replica in (plain, host):
        loss = replica.backward(chunk, batch, 0.5)
        found.append((loss, [g.sum().item() for g in replica.take()]))
    assert found[0] == found[1]
    assert module.training


@pytest.mark.parametrize(
    ("device", "plan", "gpus", "devices", "on_device", "library"),
    [
        ("cpu", "ring:workers=2", 2, "cpu", True, ""),
        ("auto", "ring:workers=2", 0, "cpu", True, ""),
        ("auto", "sequential", 1, "cuda:0", True, ""),
        ("auto", "ring:workers=2", 2, "cuda:0, cuda:1", True, "nccl"),
        ("cuda", "ring:workers=3", 2, "cuda:0, cuda:1", False, ""),
        ("cuda:1", "ring:workers=2", 2, "cuda:1", False, ""),
        ("cuda", "local_sgd:workers=2", 2, "cuda:0, cuda:1", True, "nccl"),
        ("cuda", "ceiling:workers=3", 2, "cuda:0, cuda:1", True, ""),
        ("cuda", "gossip:workers=2", 2, "cuda:0, cuda:1", False, ""),
        ("cuda", "sandblaster:workers=2", 2, "cuda:0, cuda:1", False, ""),
        ("cuda", "downpour:workers=2", 2, "cuda:0, cuda:1", False, ""),
        ("cuda", "ddp:workers=2", 2, "cuda:0, cuda:1", True, "nccl"),
        ("cuda", "ddp:workers=2", 1, "cuda:0", True, "gloo"),
        ("cpu", "ddp:workers=2", 1, "cpu", True, "gloo"),
    ],
)
def test_who_computes_where(
    device: str, plan: str, gpus: int, devices: str, on_device: bool, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    found = place(JOBS["mlp"]().with_(device=device), Plan.parse(plan))
    assert (str(found), found.on_device, found.library) == (devices, on_device, library)


@pytest.mark.parametrize(
    ("device", "message"),
    [("gpu", "is no device"), ("meta", "on the CPU and on CUDA's GPUs"), ("cuda:7", "has 2 GPUs, from cuda:0")],
)
def test_devices_that_are_not_there(device: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(JobError, match=message):
        place(JOBS["mlp"]().with_(device=device), Plan.parse("ring:workers=2"))


@GPU
@pytest.mark.filterwarnings("ignore:plan sandblaster:paceline.errors.JobWarning")
@pytest.mark.parametrize("engine", ["virtual", "local"])
@pytest.mark.parametrize("plan", ROWS, ids=str)
def test_every_plan_on_the_gpu(plan: Plan, engine: str) -> None:
    run = train(JOBS["residual"]().with_(device="cuda"), plan, engine=engine, folder=None, max_updates=12)
    check_run(run, plan)


@GPU
@pytest.mark.parametrize("job", JOBS)
def test_same_numbers_on_the_gpu(job: str) -> None:
    same_numbers(JOBS[job]().with_(device="cuda"), Plan.parse("ring", 2), "local")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize("plan", ["sequential", "ring:workers=2", "downpour:workers=2"])
def test_bfloat16_trains(plan: str, device: str) -> None:
    made = JOBS["mlp"]()
    x, y = made.data
    small = made.with_(
        model=lambda: nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 5)),
        data=(x.float(), y),
        test=(x.float(), y),
        precision="bf16-mixed",
        device=device,
        epochs=15,
    )
    run = pl.train(small, plan, folder=None)
    losses = [h["test_loss"] for h in run.history]
    assert losses[-1] < 0.5 * losses[0]
    assert next(run.model.parameters()).dtype == torch.float32
    check_run(run, Plan.parse(plan))
