"""The parameters that generated code trains, as their module and optimizer have them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Protocol

import torch
from torch import Tensor, nn

from paceline.kernels.comparison import without_dropout
from paceline.kernels.compiled import Compiled, view_of
from paceline.kernels.ir import Kind
from paceline.kernels.layers.base import CannotFuse
from paceline.kernels.optimizers import Rule, Segment, numbers, rule_of_groups
from paceline.kernels.plan import Plan

REALS = {torch.float32: "float", torch.float64: "double"}


class Weights(Protocol):
    """A module, or several of one shape, and the optimizers of their parameters."""

    #: The module that the program is made from.
    module: nn.Module
    #: Its parameters that are trained.
    named: dict[str, nn.Parameter]
    dtype: torch.dtype
    optimizer: torch.optim.Optimizer | None

    def rule(self, plan: Plan) -> Rule:
        """The optimizer's step, for the plan's layout."""
        ...

    def settings(self, lanes: int) -> Tensor:
        """A row of numbers per parameter group, as the optimizer has them now."""
        ...

    def views(self, plan: Plan, memory: Tensor) -> list[tuple[Tensor, Tensor]]:
        """(a view of the padded memory, the module's tensor that it is a copy of), for all weights of the plan."""
        ...

    def draws(self, plan: Plan) -> dict[str, Tensor]:
        """What each lane draws by, where lanes are copies of the model: `seeds` and `rates` of a call."""
        ...

    def count_batches(self, batches: int) -> None:
        """Adds to the batches that batch-norm has tracked."""
        ...

    def twin(self) -> Weights:
        """Copies of the modules, without optimizers and without dropout."""
        ...

    def modules(self) -> list[nn.Module]:
        """Each module."""
        ...


class OneModel:
    """One module and its optimizer; None where only gradients are wanted.

    `beside` are the optimizers of other modules that the same text trains: it has the terms that any of them uses. A
    decay or a momentum of 0 changes nothing.
    """

    def __init__(
        self,
        module: nn.Module,
        make: Callable[..., torch.optim.Optimizer] | None = None,
        l1: float = 0.0,
        beside: Sequence[torch.optim.Optimizer] = (),
    ) -> None:
        self.module, self.l1, self.beside = module, l1, beside
        self.named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        dtypes = {p.dtype for p in self.named.values()}
        if len(dtypes) != 1 or not dtypes <= set(REALS):
            raise CannotFuse(
                f"parameters of type {', '.join(map(str, dtypes)) or 'none'}; one of {list(REALS)} is fused"
            )
        self.dtype = dtypes.pop()
        self.optimizer = make(list(self.named.values())) if make is not None else None

    def rule(self, plan: Plan) -> Rule:
        if self.optimizer is None:
            return Rule()
        base_rule = self._terms()
        groups = {id(p): number for number, group in enumerate(self.optimizer.param_groups) for p in group["params"]}
        segments = []
        for name, parameter in self.named.items():
            if name in plan.places and f"d_{name}" in plan.places:
                place = plan.places[name]
                segments.append(Segment(place.start, place.start + prod(place.shape), groups[id(parameter)]))
        return replace(base_rule, segments=tuple(segments))

    def _terms(self) -> Rule:
        assert self.optimizer is not None
        groups = [group for each in (self.optimizer, *self.beside) for group in each.param_groups]
        return rule_of_groups(type(self.optimizer), groups, self.l1)

    def settings(self, lanes: int) -> Tensor:
        assert self.optimizer is not None
        words = self._terms().settings
        rows = [numbers(group, words, self.l1) for group in self.optimizer.param_groups]
        return torch.tensor(rows, dtype=torch.float64)

    def views(self, plan: Plan, memory: Tensor) -> list[tuple[Tensor, Tensor]]:
        tensors = {**tensors_by_name(self.module), **plan.program.numbers}
        return [(view_of(memory, plan, name, tensors[name].shape), tensors[name]) for name in weights_of(plan)]

    def draws(self, plan: Plan) -> dict[str, Tensor]:
        return {}

    def count_batches(self, batches: int) -> None:
        for part in self.module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.num_batches_tracked is not None:
                part.num_batches_tracked += batches

    def twin(self) -> OneModel:
        return OneModel(without_dropout(copy.deepcopy(self.module)))

    def modules(self) -> list[nn.Module]:
        return [self.module]


def weights_of(plan: Plan) -> list[str]:
    """The names of all parameters and moving buffers that a plan has memory for."""
    return [b.name for b in plan.program.buffers.values() if b.kind is Kind.WEIGHT and not b.base]


def tensors_by_name(module: nn.Module) -> dict[str, Tensor]:
    """Buffers and parameters of a module."""
    return {**dict(module.named_buffers()), **dict(module.named_parameters())}


def remembered(compiled: Compiled, weights: Weights) -> list[dict[str, list[Tensor]]]:
    """Views of what the optimizer remembers of each model: by torch's name, a tensor for each of its weights."""
    count, memory = len(weights_of(compiled.plan)), compiled.memory["weights"]
    states: list[dict[str, list[Tensor]]] = [{} for _ in range(len(weights.views(compiled.plan, memory)) // count)]
    for name, part in zip(compiled.rule.states, compiled.memory["state"].split(memory.numel()), strict=False):
        views = [view for view, _ in weights.views(compiled.plan, part)]
        for model, each in enumerate(states):
            each[name] = views[model * count : (model + 1) * count]
    return states


def remember(compiled: Compiled, weights: Weights, states: Sequence[Mapping[str, Sequence[Tensor]]]) -> None:
    """Let each model go on from what others remembered; these may have made do without a momentum."""
    for mine, state in zip(remembered(compiled, weights), states, strict=False):
        for name, views in mine.items():
            for view, tensor in zip(views, state.get(name, ()), strict=False):
                view.copy_(tensor)
