"""Pipelines without a flush compute, bit for bit, what a plain sequential loop does that keeps all versions of all
weights for ever and applies the same stale ones by definition.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.interfaces.api.train import train
from paceline.interfaces.testing.jobs import JOBS
from paceline.plans.plan import Plan
from paceline.training.data.opening import open_source
from paceline.training.data.source import Order
from paceline.training.gradients.replica import Chance
from paceline.training.jobs.job import Job

Versions = Callable[[int, int, int], tuple[int, int]]  # (stages, stage, batch) -> what a forward reads; is applied to


def stash(stages: int, stage: int, batch: int) -> tuple[int, int]:
    return max(0, batch - (stages - 1 - stage)), batch


def two_buffers(stages: int, stage: int, batch: int) -> tuple[int, int]:
    return max(0, batch - 1), batch


class Oracle:
    """One layer after the other, with the versions of its weights that the definition says. Backward: the derivative of
    each layer where its forward was, with the weights that the backward is to see.
    """

    def __init__(self, job: Job, cuts: list[int], versions: Versions, predicts: bool) -> None:
        self.job, self.versions, self.predicts = job, versions, predicts
        module = job.make_model().train()
        assert isinstance(module, nn.Sequential)
        self.chance = Chance(module, job.seed)
        bounds = [0, *cuts, len(module)]
        self.stages = [list(module[a:b]) for a, b in pairwise(bounds)]
        self.module, self.history = module, [[self._weights(stage)] for stage in self.stages]
        self.optimizers = [self._optimizer(stage) for stage in self.stages]
        self.momenta: list[list[dict[nn.Parameter, Tensor]]] = [[{}] for _ in self.stages]

    def _optimizer(self, stage: list[nn.Module]) -> Any:
        mine = [p for layer in stage for p in layer.parameters()]
        return self.job.optimizer(mine) if mine else None

    @staticmethod
    def _weights(stage: list[nn.Module]) -> dict[nn.Parameter, Tensor]:
        return {p: p.detach().clone() for layer in stage for p in layer.parameters()}

    def read(self, stage: int, batch: int) -> dict[nn.Parameter, Tensor]:
        version, applied = self.versions(len(self.stages), stage, batch)
        weights = {p: value.clone() for p, value in self.history[stage][version].items()}
        if self.predicts and self.optimizers[stage] is not None:
            lr = self.optimizers[stage].param_groups[0]["lr"]
            for p, momentum in self.momenta[stage][version].items():
                weights[p].add_(momentum, alpha=-(applied - version) * lr)
        return weights

    def train(self, updates: int, micro_batches: int) -> list[Tensor]:
        agenda = Plan.parse("sequential", None).agenda(61, self.job.batch_size, 9)
        source, order = open_source(self.job.data, self.job.seed), Order(61, self.job.seed, True)
        agenda = Plan.parse(f"sequential:chunks={micro_batches}").agenda(61, self.job.batch_size, 9)
        for batch in range(updates):
            gradients = [dict[nn.Parameter, Tensor]() for _ in self.stages]
            for chunk in agenda.filled(batch):
                x, y = source.batch(order.indices(chunk), chunk.epoch)
                self._through(batch, chunk, x, y, gradients)
            for number, optimizer in enumerate(self.optimizers):
                self._apply(number, optimizer, gradients[number])
        return [p.detach() for p in self.module.parameters()]

    def _through(
        self, batch: int, chunk: Any, x: Tensor, y: Tensor, gradients: list[dict[nn.Parameter, Tensor]]
    ) -> None:
        inputs: list[list[Tensor]] = [[] for _ in self.stages]
        reads = [self.read(number, batch) for number in range(len(self.stages))]
        self.chance.begin(chunk.update, chunk.number)
        for number, stage in enumerate(self.stages):
            self._set(reads[number])
            for layer in stage:
                inputs[number].append(x)
                with torch.no_grad():
                    x = layer(x)
        scores = x.requires_grad_()
        assert self.job.loss is not None
        loss = self.job.loss(scores, y)
        (g,) = torch.autograd.grad(loss, scores, None if chunk.weight == 1.0 else torch.full_like(loss, chunk.weight))
        for number in reversed(range(len(self.stages))):
            newest = self.history[number][-1]
            self._set(newest if self.predicts else reads[number])
            for layer, x in reversed(list(zip(self.stages[number], inputs[number], strict=True))):
                g = self._back(chunk, layer, x, g, gradients[number])

    def _back(
        self, chunk: Any, layer: nn.Module, x: Tensor, g: Tensor, gradients: dict[nn.Parameter, Tensor]
    ) -> Tensor:
        x = x.detach().requires_grad_()
        self.chance.begin(chunk.update, chunk.number)
        mine = list(layer.parameters())
        gx, *rest = torch.autograd.grad(layer(x), [x, *mine], g)
        for parameter, gradient in zip(mine, rest, strict=True):
            gradients[parameter] = gradients[parameter] + gradient if parameter in gradients else gradient
        return gx

    def _apply(self, number: int, optimizer: Any, gradients: dict[nn.Parameter, Tensor]) -> None:
        self._set(self.history[number][-1])
        if optimizer is not None:
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
            optimizer.step()
            optimizer.zero_grad()
        self.history[number].append(self._weights(self.stages[number]))
        momentum = {p: s["momentum_buffer"].clone() for p, s in optimizer.state.items()} if optimizer else {}
        self.momenta[number].append(momentum)

    @staticmethod
    def _set(weights: dict[nn.Parameter, Tensor]) -> None:
        for parameter, value in weights.items():
            parameter.data = value.clone()


CUTS = {2: [3], 3: [2, 4], 4: [1, 3, 6]}
MODES: dict[str, tuple[str, Versions, bool, int]] = {
    "stash": ("pipedream", stash, False, 1),
    "two buffers": ("pipedream:mode=two_buffers,micro_batches=5", two_buffers, False, 5),
    "predicted": ("spectrain", stash, True, 1),
}


@pytest.mark.parametrize("workers", CUTS)
@pytest.mark.parametrize("mode", MODES)
def test_the_bits_are_those_of_the_definition(mode: str, workers: int) -> None:
    name, versions, predicts, micro_batches = MODES[mode]
    job = JOBS["mlp"]()
    expected = Oracle(job, CUTS[workers], versions, predicts).train(20, micro_batches)
    cuts = "+".join(map(str, CUTS[workers]))
    plan = f"{name}{',' if ':' in name else ':'}workers={workers},cuts={cuts}"
    engines = ("virtual", "local") if workers == 3 else ("virtual",)
    for engine in engines:
        run = train(job, plan, engine=engine, folder=None, max_updates=20)
        for parameter, value in zip(run.model.parameters(), expected, strict=True):
            assert torch.equal(parameter.detach(), value), engine


def test_the_trace_shows_how_old_each_gradient_is() -> None:
    run = train(JOBS["mlp"](), "pipedream:workers=3,cuts=2+4", engine="virtual", folder=None, max_updates=12)
    rows = [(int(r["shard"]), int(r["version"]), int(r["base"])) for r in run.trace.rows if r["kind"] == 3]
    assert {(v - 1 - base) for stage, v, base in rows if stage == 2} == {0}
    assert [v - 1 - base for stage, v, base in sorted(rows) if stage == 0] == [0, 1, *[2] * 10]


class Tied(nn.Module):
    """The first layer's weights again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = nn.Linear(12, 9, bias=False), nn.Linear(9, 9)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.body(self.table(x))), self.table.weight.t())


TABLE = """worker 0  F0.0 F1.0 F0.2 B0.2U B0.0U F1.2v1 B1.2U B1.0U
worker 1  F0.1 F1.1 B0.1U B1.1U
"""  # its second micro-batch is in the last stage when the first stage makes the next version
APART = """worker 0  F0.0 F1.0 B0.0U B1.0U
worker 1  F0.1 F1.1 B0.1U B1.1U
worker 2  F0.2 B0.2U F1.2v1 B1.2U
"""


@pytest.mark.parametrize("engine", ["virtual", "local"])
@pytest.mark.parametrize("kind", ["pipedream:workers=3", "table:file=FILE"])
def test_a_parameter_of_several_stages_is_read_in_the_version_of_the_first(
    kind: str, engine: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text(f"keeps 2 2 1\n{TABLE}")
    plan = f"{kind.replace('FILE', str(tmp_path / 'mine.txt'))},cuts=body+t"
    job = JOBS["mlp"]().with_(model=lambda: Tied().double())
    run = train(job, plan, engine=engine, folder=None, max_updates=20)

    model = job.make_model()
    history = [{name: p.detach().clone() for name, p in model.named_parameters()}]
    optimizer = job.optimizer(list(model.parameters()))  # type: ignore[operator]
    agenda = Plan.parse("sequential").agenda(61, job.batch_size, 9)
    source, order = open_source(job.data, job.seed), Order(61, job.seed, True)
    for batch in range(20):
        behind = (batch % 2, batch % 2) if "table" in kind else (min(batch, 2), min(batch, 1))
        first, second = (history[batch - late] for late in behind)
        read = {name: (first if name == "table.weight" else second)[name].clone().requires_grad_() for name in first}
        (chunk,) = agenda.filled(batch)
        x, y = source.batch(order.indices(chunk), chunk.epoch)
        loss = job.loss(torch.func.functional_call(model, read, (x,)), y)  # type: ignore[misc]
        for name, gradient in zip(read, torch.autograd.grad(loss, list(read.values())), strict=True):
            model.get_parameter(name).grad = gradient
        optimizer.step()
        history.append({name: p.detach().clone() for name, p in model.named_parameters()})
    for name, parameter in run.model.named_parameters():
        assert torch.equal(parameter.detach(), history[-1][name]), name


def test_what_is_carried_to_a_stage_of_the_same_worker_stays_as_it_was_predicted(tmp_path: Path) -> None:
    job, bits = JOBS["mlp"]().with_(model=lambda: Tied().double()), []
    for text in (TABLE, APART):
        (tmp_path / "mine.txt").write_text(f"predicts\n{text}")
        run = train(
            job, f"table:file={tmp_path / 'mine.txt'},cuts=body+t", engine="virtual", folder=None, max_updates=20
        )
        bits.append(run.summary()["parameters_sha256"])
    assert bits[0] == bits[1]
