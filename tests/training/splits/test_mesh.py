"""Pipelines on a mesh: replicas of stages whose layers several workers share."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from paceline.errors import PlanError, WorkerDied
from paceline.interfaces.api.train import train
from paceline.interfaces.testing.conformance import difference, no_update_lost, replays, same_numbers
from paceline.interfaces.testing.jobs import DEEP_JOBS, JOBS, SAMPLES
from paceline.interfaces.testing.killing import kill_one, worker_processes
from paceline.plans.plan import Plan, make
from paceline.runtime.engines.setup import set_up
from paceline.runtime.runs.progress import Progress
from paceline.training.stages.cutting import Blueprint


@pytest.mark.parametrize("job", ["transformer", "tied"])
def test_all_axes_together_compute_what_one_process_does(job: str) -> None:
    same_numbers(JOBS[job](), Plan.parse("mesh:data=2,layers=2,inside=2,micro_batches=2"), "virtual")


def test_a_table_splits_the_layers_of_stages(tmp_path: Path) -> None:
    plan = "mesh:data=1,layers=2,inside=2,ways=*:whole"
    same_numbers(JOBS["residual"](), Plan.parse(plan), "virtual")
    with pytest.raises(PlanError, match="the model has no layer 'encoder'"):
        train(JOBS["mlp"](), "mesh:layers=2,inside=2,ways=encoder:rows", engine="virtual", folder=None)


def test_replicas_may_make_unequal_numbers_of_micro_batches() -> None:
    """The last batch of an epoch has fewer samples than there are micro-batches."""
    job = JOBS["mlp"]().with_(batch_size=SAMPLES - 5)
    plan = Plan.parse("mesh:data=2,layers=2,inside=1,micro_batches=6")
    last = set_up(job, plan, "virtual").agenda.filled(1)
    mine = [sum(c.number // 6 == replica for c in last) for replica in range(2)]
    assert mine[0] != mine[1]
    same_numbers(job, plan, "virtual")
    with pytest.raises(PlanError, match="fewer samples than plan mesh has replicas"):
        train(
            JOBS["mlp"]().with_(batch_size=SAMPLES - 1), "mesh:data=2,layers=2,inside=1", engine="virtual", folder=None
        )


def test_axes_make_the_workers() -> None:
    assert Plan.parse("mesh:data=3,layers=2,inside=1").workers == 6
    assert make("mesh", workers=12, data=3, inside=2).method.depth(12) == 2  # type: ignore[attr-defined]
    with pytest.raises(PlanError, match="data=2 x layers=2 x inside=2 are 8 workers, not 4"):
        make("mesh", workers=4, data=2, layers=2, inside=2)
    with pytest.raises(PlanError, match="6 workers do not fill a mesh of data=2 by layers by inside=2"):
        make("mesh", workers=6, data=2, inside=2)
    with pytest.raises(PlanError, match="cannot honour gradient_clip_norm"):
        train(JOBS["mlp"]().with_(gradient_clip_norm=1.0), "mesh:data=2,layers=1,inside=2", folder=None)


def test_the_norm_of_the_gradient_is_that_of_all_replicas() -> None:
    job = JOBS["mlp"]().with_(gradient_clip_norm=0.1)
    same_numbers(job, Plan.parse("mesh:data=2,layers=2,inside=1"), "virtual")


def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(tmp_path: Path) -> None:
    job, plan = DEEP_JOBS["mlp"](), "mesh:data=1,layers=2,inside=2,micro_batches=2,balance=operations"
    whole = train(job.with_(epochs=2), plan, folder=tmp_path)
    first = train(job.with_(epochs=1), plan, folder=tmp_path, checkpoint_every=2)
    again = train(job, resume=first.path, epochs=2)
    assert difference(whole.model, again.model) == 0.0


def test_another_replica_finishes_the_work_of_a_dead_one() -> None:
    def kill_the_last(state: Progress) -> None:
        if state.updates >= 10 and not victims:
            victims.append(worker_processes()[3])
            victims[0].kill()

    victims: list[psutil.Process] = []
    job, plan = JOBS["mlp"]().with_(epochs=80), "distbelief:data=2,layers=2,inside=1"
    run = train(job, plan, folder=None, progress=kill_the_last)
    assert {3} <= set(run.summary()["deaths"]) <= {2, 3}
    no_update_lost(run)
    replays(run)


def test_every_stage_that_a_server_holds_has_parameters() -> None:
    tail = [nn.ReLU() for _ in range(12)]  # heavier than the layers, as calls are counted
    job = JOBS["mlp"]().with_(
        model=lambda: nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5), *tail).double()
    )
    setup = set_up(job, Plan.parse("distbelief:workers=2,data=1,balance=operations"), "virtual")
    assert isinstance(setup.blueprint, Blueprint)
    assert setup.blueprint.names == ("2",)
    with pytest.raises(PlanError, match="at most 2 stages with parameters, and the plan wants 3"):
        set_up(job, Plan.parse("distbelief:workers=3,data=1,balance=operations"), "virtual")


def test_a_killed_worker_is_named() -> None:
    torch.manual_seed(0)
    plan = "mesh:data=2,layers=2,inside=1"
    with pytest.raises(WorkerDied) as died:
        train(JOBS["mlp"]().with_(epochs=10**4), plan, folder=None, progress=kill_one(0.3, lambda n: 2))
    assert died.value.failure.worker == 2


@pytest.mark.parametrize(
    "plan",
    ["mesh:data=2,layers=1,inside=2,micro_batches=2", "mesh:data=1,layers=2,inside=2", "one_f_one_b:micro_batches=5"],
)
def test_the_virtual_engine_counts_the_bytes_that_processes_send(plan: str) -> None:
    """Also of smaller micro-batches, at the end of an epoch."""
    found = []
    for engine in ("virtual", "local"):
        rows = train(JOBS["mlp"](), f"{plan},balance=operations", engine=engine, folder=None, max_updates=6).trace.rows
        found.append(
            {
                (int(w), int(k)): int(rows["bytes"][(rows["worker"] == w) & (rows["kind"] == k)].sum())
                for w in set(rows["worker"].tolist())
                for k in set(rows["kind"].tolist())
            }
        )
    assert sum(found[0].values()) > 0
    assert {key: sent for key, sent in found[0].items() if sent} == {
        key: sent for key, sent in found[1].items() if sent
    }
