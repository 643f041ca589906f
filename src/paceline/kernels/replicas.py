"""Several copies of one network at once, a copy per lane: trained, or evaluated by the way forward alone.

Where `fuse` has sixteen samples side by side, here are sixteen models, each with its own parameters, settings of the
optimizer, seed and rate of dropout, and order of the samples. A batch of one then fills the vectors too, so that true
stochastic descent of all costs little more than that of one. It is for searching and for averaging: seeds, learning
rates, folds.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

import paceline.kernels.machine as machine
from paceline.kernels.build import library
from paceline.kernels.compiled import CompiledCall, canonical, lower, tensors_of, view_of
from paceline.kernels.fused import Fused, check_samples
from paceline.kernels.graph import describe
from paceline.kernels.ir import DropoutMask
from paceline.kernels.layers.base import CannotFuse, Graph, Layer
from paceline.kernels.losses import IGNORED, loss_kind
from paceline.kernels.optimizers import Rule, numbers, rule_of_groups
from paceline.kernels.plan import CHUNKS, Plan, make
from paceline.kernels.printers.access import Access
from paceline.kernels.printers.cpp import part, text
from paceline.kernels.processors import Cpu, Form, Runner, replica_target, vector_target
from paceline.kernels.weights import REALS, OneModel, remember, remembered, tensors_by_name, weights_of

# Several models of one shape, each in memory of its own, trained by one text.
#
# A text is made and compiled once for all models with the same rates of dropout. It has the terms of the optimizer's
# rule that any of them uses.


def fuse_alike(
    models: Sequence[nn.Module],
    loss: Callable[..., object],
    optimizers: Sequence[Callable[..., torch.optim.Optimizer]],
    batch_size: int,
    x: torch.Tensor,
    y: torch.Tensor,
    beside: Sequence[torch.optim.Optimizer] = (),
) -> list[Fused]:
    """Models of one shape, each trained by one thread, compiled for samples such as these.

    The text has the terms of `beside` too: the optimizers of models that will be trained by it later.
    """
    model_optimizers = [make(list(model.parameters())) for model, make in zip(models, optimizers, strict=True)]
    first: dict[tuple[float, ...], Fused] = {}
    networks = []
    for model, optimizer in zip(models, optimizers, strict=True):
        weights, rates = OneModel(model, optimizer, beside=[*model_optimizers, *beside]), rates_of(model)
        network = Fused(weights, loss_kind(loss), batch_size, Runner(Cpu(1)), like=first.get(rates))
        network.prepare(x, y)
        first.setdefault(rates, network)
        networks.append(network)
    return networks


def rates_of(model: nn.Module) -> tuple[float, ...]:
    """The rates of dropout, which are part of a text whose lanes hold samples."""
    return tuple(float(part.p) for part in model.modules() if isinstance(part, nn.Dropout))


def fuse_replicas(
    models: Sequence[nn.Module],
    loss: Callable[..., Any],
    optimizers: Sequence[Callable[..., torch.optim.Optimizer]],
    batch_size: int,
    *,
    threads: int | None = None,
) -> Replicas:
    """Models of one shape, with an optimizer each (or one for all), of one kind; their settings may differ."""
    models = list(models)
    if not models:
        raise CannotFuse("there are no models to train")
    factories = list(optimizers) * (len(models) if len(optimizers) == 1 else 1)
    if len(factories) != len(models):
        raise CannotFuse(f"{len(models)} models and {len(factories)} optimizers: give one for all, or one for each")
    weights = SideBySide(models, factories)
    cpu, kind = Cpu(threads or machine.cores(), Form(target=replica_target)), loss_kind(loss)
    if kind.weights or kind.ignored != IGNORED:
        raise CannotFuse(
            "weight= and ignore_index= of a loss have no kernel for models side by side; fuse(...) has one"
        )
    return Replicas(weights, Fused(weights, kind, batch_size, Runner(cpu)))


class SideBySide:
    """The weights of several models of one shape: a lane of the padded memory for each."""

    def __init__(
        self, models: list[nn.Module], factories: Sequence[Callable[..., torch.optim.Optimizer] | None]
    ) -> None:
        #: Each model with its optimizer. The first stands for all where only shapes and kinds are asked for.
        self.models = [OneModel(model, make) for model, make in zip(models, factories, strict=True)]
        first = self.models[0]
        self.named, self.dtype, self.optimizer = first.named, first.dtype, first.optimizer
        self.module = with_all_dropout(models)
        #: The seed of each model's dropout.
        self.seeds = [0] * len(models)
        #: How many models there is room for.
        self.lanes = machine.target(REALS[self.dtype]).lanes
        if len(models) > self.lanes:
            raise CannotFuse(
                f"{len(models)} models; this machine's vectors have {self.lanes} lanes: train them one after another"
            )
        if len({type(optimizer) for optimizer in self._optimizers()}) > 1:
            raise CannotFuse("the optimizers are of several kinds; only their numbers may differ")
        self.words = self._rule().settings if self.optimizer is not None else ()

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [model.optimizer for model in self.models if model.optimizer is not None]

    def _rule(self) -> Rule:
        """The optimizers' row, with the terms that any of them uses: a decay or a momentum of 0 changes nothing."""
        optimizers = self._optimizers()
        return rule_of_groups(type(optimizers[0]), [g for each in optimizers for g in each.param_groups], 0.0)

    def rule(self, plan: Plan) -> Rule:
        return replace(self._rule(), segments=self.models[0].rule(plan).segments)

    def draws(self, plan: Plan) -> dict[str, Tensor]:
        layers = [s for s in plan.program.forward if isinstance(s, DropoutMask)]
        rates = torch.zeros(1 + max((s.number for s in layers), default=0), self.lanes, dtype=torch.float64)
        for each in layers:
            for lane, model in enumerate(self.models):
                rates[each.number, lane] = _rate(model.module, each)
        seeds = self.seeds + self.seeds[:1] * (self.lanes - len(self.seeds))
        return {"seeds": torch.tensor(seeds, dtype=torch.int64), "rates": rates.contiguous()}

    def views(self, plan: Plan, memory: Tensor) -> list[tuple[Tensor, Tensor]]:
        pairs = []
        by_lane = memory.view(-1, plan.target.lanes)
        for lane, model in enumerate(self.models):
            tensors = {**tensors_by_name(model.module), **plan.program.numbers}
            for name in weights_of(plan):
                place = plan.places[name]
                view = by_lane[place.start : place.start + prod(place.shape), lane].view(place.shape)
                pairs.append((view, tensors[name]))
        return pairs

    def settings(self, lanes: int) -> Tensor:
        optimizers = self._optimizers()
        words = self.words
        rows = []
        for groups in zip(*(optimizer.param_groups for optimizer in optimizers), strict=True):
            by_lane = [numbers(group, words, 0.0) for group in groups]
            by_lane += by_lane[:1] * (lanes - len(by_lane))  # lanes without a model follow the first
            rows.append(list(zip(*by_lane, strict=True)))
        return torch.tensor(rows, dtype=torch.float64).contiguous()

    def count_batches(self, batches: int) -> None:
        for model in self.models:
            model.count_batches(batches)

    def twin(self) -> SideBySide:
        copies = [model.twin().module for model in self.models]
        duplicate = SideBySide(copies, [None] * len(copies))
        duplicate.module = self.module  # whose layers the text has
        return duplicate

    def modules(self) -> list[nn.Module]:
        return [model.module for model in self.models]


class Replicas:
    """Models that generated code trains side by side."""

    def __init__(self, weights: SideBySide, fused: Fused) -> None:
        self.weights, self.fused = weights, fused

    @torch.no_grad()
    def train_epochs(self, x: Tensor, y: Tensor, orders: Tensor, seed: int | Sequence[int] = 0) -> list[float]:
        """One pass of every model over the samples that its row of `orders` names; the mean loss of each.

        A sequence gives each model the seed of its dropout; one number, seeds from there on.
        """
        count = len(self.weights.models)
        if orders.shape[0] != count:
            raise CannotFuse(f"orders of {orders.shape[0]} rows, for {count} models")
        rows = torch.cat([orders, orders[:1].expand(self.weights.lanes - count, -1)])
        self.weights.seeds = [seed + lane for lane in range(count)] if isinstance(seed, int) else list(seed)
        self.fused.train_epoch(x, y, rows)
        updates = -(-orders.shape[1] // self.fused.batch_size)
        sums: list[float] = self.fused.runner.losses(self.fused.compiled(x)).tolist()
        return [total / updates for total in sums[:count]]

    def remembered(self, x: Tensor) -> list[dict[str, list[Tensor]]]:
        """What the optimizer remembers of each model, as `remember` takes it."""
        states = remembered(self.fused.compiled(x), self.weights)
        return [{name: [view.clone() for view in views] for name, views in each.items()} for each in states]

    def remember(self, x: Tensor, states: Sequence[Mapping[str, Sequence[Tensor]]], updates: int) -> None:
        """Go on from what other replicas of these models remembered after so many updates."""
        remember(self.fused.compiled(x), self.weights, states)
        self.fused.updates = updates


def with_all_dropout(models: Sequence[nn.Module]) -> nn.Module:
    """A copy of the first model with the dropout that any of the models has; in the copies, the rates are data.

    A layer's draws depend on its number among the layers that do something. So a model has either all of the layers of
    dropout, or none.
    """
    template = copy.deepcopy(models[0])
    rates = [{name: part.p for name, part in model.named_modules() if isinstance(part, nn.Dropout)} for model in models]
    if any(set(each) != set(rates[0]) for each in rates):
        raise CannotFuse("the models have different layers of dropout; only their rates may differ")
    most = {name: max(each[name] for each in rates) for name in rates[0]}
    for each in rates:
        if any(each.values()) and any(most[name] and not rate for name, rate in each.items()):
            raise CannotFuse("some models drop in layers in which others do not; give all of them a rate above 0")
    for name, rate in most.items():
        template.get_submodule(name).p = rate  # type: ignore[assignment]
    return template


def _rate(model: nn.Module, layer: DropoutMask) -> float:
    """The rate of a layer in one of the models; a module that is called again has underscores behind its name."""
    parts, name = dict(model.named_modules()), layer.layer
    while name not in parts and name.endswith("_"):
        name = name[:-1]
    part = parts.get(name)
    return float(part.p) if isinstance(part, nn.Dropout) else layer.rate


# The way forward of networks of one shape as generated code: what an evaluation computes.
#
# Dropout is left out, as a module in evaluation mode leaves it out. Networks that compute something else then, as by
# batch norm's running statistics, are refused.

MANY = 16  # samples in a batch, from which on vectors hold samples
TEAM = 16  # numbers of the row of work


class Forward:
    """Computes the scores of networks of one shape; any number of threads may call it at once."""

    def __init__(self, model: nn.Module, loss: Callable[..., object], x: Tensor) -> None:
        """Compile for samples such as `x`, for models such as this one in training mode."""
        self.dtype = OneModel(model).dtype
        self.tokens = not x.is_floating_point()
        kind = loss_kind(loss)
        #: Whether the model ends in a log-softmax, which is part of the loss in generated code.
        self.logarithms = kind.of_logarithms
        self.plan = self._planned(model, loss, tuple(x.shape[1:]))
        if len(self.plan.phases) > 1:
            raise CannotFuse(f"the layer {self.plan.program.batch_norm} computes something else in evaluation mode")
        program = self.plan.program
        #: Of a sample's scores in generated code: where each place has a class, its classes stand side by side.
        self.shape = (*program.places, program.outputs) if kind.labels else program.result
        self.classes_last = kind.last or not program.places
        scores, length = Access(self.plan).pointer("scores"), prod(self.shape)
        defines = f"#define SCORES {scores}\n#define SCORES_LENGTH {length}"
        source = "\n".join([text(self.plan, Rule()), "#if IN_PART(0)", defines, part("scores"), "#endif"])
        self.function = library(source)[0].paceline_scores
        self.function.argtypes, self.function.restype = [ctypes.c_void_p, ctypes.c_void_p], None

    def _planned(self, model: nn.Module, loss: Callable[..., object], shape: tuple[int, ...]) -> Plan:
        graph = still(canonical(describe(model, shape, self.tokens), model))
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors_of(graph, model).items()}
        program = lower(graph, shapes, set(), loss_kind(loss))
        program.forward, program.backward = program.forward[:-1], []  # without the loss
        return make(program, vector_target(REALS[self.dtype], MANY))

    @torch.no_grad()
    def scores(self, model: nn.Module, x: Tensor) -> Tensor:
        """Return the model's outputs for samples, as it computes them in evaluation mode."""
        plan, lanes = self.plan, self.plan.target.lanes
        x = x.to(torch.long if self.tokens else self.dtype).contiguous()
        order = torch.arange(len(x))
        check_samples(plan, False, x, x.new_empty(len(x), *plan.program.result), order)
        memory = {
            "weights": torch.zeros(max(1, plan.sizes["weights"]), dtype=self.dtype),
            "gradients": torch.zeros(max(1, plan.sizes["weights"]), dtype=self.dtype),
            "lane_gradients": torch.zeros(max(1, plan.sizes["lanes"] * lanes * CHUNKS), dtype=self.dtype),
            "arenas": torch.zeros(max(1, plan.sizes["arena"] * lanes), dtype=self.dtype),
            "tokens" if self.tokens else "x": x,
            "order": order,
        }
        tensors = {**tensors_by_name(model), **plan.program.numbers}
        for name in weights_of(plan):
            view_of(memory["weights"], plan, name, tensors[name].shape).copy_(tensors[name])
        outputs = torch.empty(len(x), *self.shape, dtype=self.dtype)
        call = CompiledCall(**{name: tensor.data_ptr() for name, tensor in memory.items()}, samples=len(x))
        self.function(ctypes.byref(call), outputs.data_ptr())
        outputs = outputs.log_softmax(-1) if self.logarithms else outputs
        return outputs if self.classes_last else outputs.movedim(-1, 1)


def still(graph: Graph) -> Graph:
    """The same graph without anything that draws random numbers."""
    instead = {layer.name: layer.inputs[0] for layer in graph.layers if layer.kind == "dropout"}

    def source(name: str) -> str:
        return source(instead[name]) if name in instead else name

    def stilled(layer: Layer) -> Layer:
        options = {**layer.options, "rate": 0.0} if "rate" in layer.options else layer.options
        return replace(layer, inputs=tuple(map(source, layer.inputs)), options=options)

    layers = tuple(stilled(layer) for layer in graph.layers if layer.name not in instead)
    return replace(graph, layers=layers, result=source(graph.result))
