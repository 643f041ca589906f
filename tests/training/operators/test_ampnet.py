"""Operators as an ordinary module: the same numbers where nothing is asynchronous, replays, and refusals by name."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from paceline.errors import JobError, PacelineError, PlanError, UsageError, WorkerDied
from paceline.interfaces.api.train import train
from paceline.interfaces.testing.conformance import difference
from paceline.interfaces.testing.jobs import JOBS, OPTIMIZERS
from paceline.interfaces.testing.killing import kill_one
from paceline.runtime.engines.replay.replay import replay
from paceline.runtime.runs.trace import Kind
from paceline.training.jobs.job import Job

Tree = Any  # a number, or a pair of trees


class TreeNet(nn.Module):
    """Calls `branch` at every node of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.leaf, self.branch = nn.Embedding(4, 6), nn.Bilinear(6, 6, 6)
        self.drop, self.heads = nn.Dropout(0.2), nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)])

    def forward(self, tree: Tree) -> Tensor:
        found: Tensor = self.heads[isinstance(tree, tuple)](self.state(tree))
        return found

    def state(self, tree: Tree) -> Tensor:
        if isinstance(tree, int):
            found: Tensor = self.leaf(torch.tensor([tree]))
            return found
        return self.drop(torch.tanh(self.branch(*map(self.state, tree))))  # type: ignore[no-any-return]


def depth(tree: Tree) -> int:
    return 0 if isinstance(tree, int) else 1 + max(map(depth, tree))


def step(model: nn.Module, batch: list[Tree]) -> Tensor:
    scores = torch.cat([model(tree) for tree in batch])
    return nn.functional.cross_entropy(scores, torch.tensor([min(2, depth(tree)) for tree in batch]))


def grown(draw: random.Random, most: int) -> Tree:
    return draw.randrange(4) if most == 0 or draw.random() < 0.2 else (grown(draw, most - 1), grown(draw, most - 1))


def tree_job(model: Callable[[], nn.Module] = TreeNet, **rest: Any) -> Job:
    draw = random.Random(3)
    data = DataLoader([grown(draw, 3) for _ in range(22)], batch_size=4, collate_fn=list, shuffle=True)  # type: ignore[arg-type]
    defaults: dict[str, Any] = {"step": step, "optimizer": OPTIMIZERS["momentum"], "epochs": 2, "device": "cpu"}
    return Job(model=lambda: model().double(), data=data, **{**defaults, **rest})


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("job", ["mlp", "residual", "lstm", "transformer"])
def test_one_instance_at_a_time_is_sequential(job: str, optimizer: str) -> None:
    made = JOBS[job]().with_(optimizer=OPTIMIZERS[optimizer])
    one, other = (
        train(made, plan, engine="virtual", folder=None, max_updates=12)
        for plan in ("sequential", "ampnet:workers=2,active=1")
    )
    assert difference(one.model, other.model) <= 1e-9


@pytest.mark.parametrize("workers", [1, 3])
def test_a_tree_net_one_at_a_time_is_sequential(workers: int) -> None:
    one = train(tree_job(), "sequential", engine="virtual", folder=None)
    other = train(tree_job(), f"ampnet:workers={workers},active=1", engine="virtual", folder=None)
    assert difference(one.model, other.model) <= 1e-9


@pytest.mark.parametrize("engine", ["virtual", "local"])
def test_trees_under_way_together_are_replayed_to_the_bit(engine: str) -> None:
    plan = "ampnet:workers=3,active=6,micro_batches=4,every=4"
    run = train(tree_job(), plan, engine=engine, folder=None)
    assert replay(run).matches
    works = run.trace.of_kind(Kind.STAGE)
    assert (works["version"] == ord("F")).sum() == (works["version"] == ord("B")).sum()
    assert run.trace.of_kind(Kind.COMPUTE)["samples"].sum() == 2 * 22


def test_a_killed_worker_is_named() -> None:
    with pytest.raises(WorkerDied) as died:
        train(tree_job(epochs=10**5), "ampnet:workers=3", folder=None, progress=kill_one(0.3, lambda n: 1))
    assert died.value.failure.worker == 1


def test_a_replay_stops_at_the_end_of_an_epoch_and_nowhere_else() -> None:
    run = train(tree_job(), "ampnet:active=6", engine="virtual", folder=None)
    half = train(tree_job(epochs=1), "ampnet:active=6", engine="virtual", folder=None)
    found = replay(run, until=6)
    assert difference(found.model, half.model) == 0
    with pytest.raises(UsageError, match="give the end of an epoch: 0, 6, 12"):
        replay(run, until=5)


class Deciding(TreeNet):
    def state(self, tree: Tree) -> Tensor:
        found = super().state(tree)
        return found if found.sum() > 0 else -found


class Sharing(TreeNet):
    def __init__(self) -> None:
        super().__init__()
        self.heads[1].weight = self.heads[0].weight


class Bare(TreeNet):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


class Looping(TreeNet):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([torch.ones(1)])

    def state(self, tree: Tree) -> Tensor:
        found = super().state(tree)
        for scale in self.scales:
            found = found * scale
        return found


class Greatest(TreeNet):
    def state(self, tree: Tree) -> Tensor:
        found = super().state(tree)
        return found + found.max(dim=-1, keepdim=True).values


class Reading(TreeNet):
    def state(self, tree: Tree) -> Tensor:
        return super().state(tree) * self.branch.weight.sum()


REFUSED: list[tuple[type[nn.Module], dict[str, Any], str, type[PacelineError], str]] = [
    (Deciding, {}, "ampnet", JobError, "decides by the value"),
    (Sharing, {}, "ampnet", PlanError, "heads.0 and heads.1 share a parameter"),
    (Bare, {}, "ampnet", PlanError, "parameter scale belongs to the model itself"),
    (Reading, {}, "ampnet", JobError, "reads weight of its operator branch"),
    (Looping, {}, "ampnet", JobError, "reads what is in it of its operator scales"),
    (Greatest, {}, "ampnet", JobError, "reads .values of what an operator returned"),
    (TreeNet, {}, "ampnet:workers=5", PlanError, "has 4 operators with parameters"),
    (TreeNet, {}, "ampnet:on=0+1", PlanError, "for each of the 4 operators"),
    (TreeNet, {}, "ampnet:on=a", PlanError, "is not a worker for each operator"),
    (TreeNet, {"gradient_clip_norm": 1.0}, "ampnet", PlanError, "gradient_clip_norm"),
    (TreeNet, {"lr_scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=1)}, "ampnet", PlanError, "lr_sched"),
]


@pytest.mark.parametrize(("model", "rest", "plan", "error", "says"), REFUSED)
def test_what_cannot_be_done_is_refused_by_name(
    model: type[nn.Module], rest: dict[str, Any], plan: str, error: type[PacelineError], says: str
) -> None:
    with pytest.raises(error, match=says):
        train(tree_job(model, **rest), plan, engine="virtual", folder=None)
