"""The user's optimizer on tensors of this process, stepped by generated code in one pass.

The optimizer's object stays the truth: its settings are read from it in every step, and what it remembers lies where
PyTorch keeps it. Generated code is compared with PyTorch once, before it is used; a step that it has no text for (a
sparse gradient, settings that have changed their form) is PyTorch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from paceline.core.rules import Arrival, Memory, Rule
from paceline.core.rules.plain import Plain
from paceline.kernels.one_pass import SPAN, Pass, one_pass
from paceline.kernels.served_steps import ALIKE, UNKNOWN, ServedRule, ServedStep, served_step
from paceline.parameters.optimizers import Optimizer, bare_step, has_hooks

PLAIN = ServedRule()
NUMBERS = 1003  # which no vector divides: the last of them are computed one by one
PARALLEL = 1 << 15  # numbers from which on PyTorch would use several threads, where it has them


class Settings:
    """The settings of an optimizer's groups, as rows for generated code."""

    def __init__(self, optimizer: Optimizer, step: ServedStep, constants: Sequence[float] = ()) -> None:
        self.optimizer, self.step, self._constants = optimizer, step, tuple(constants)
        self._watched = tuple(dict.fromkeys((*step.settings, *ALIKE, *UNKNOWN)))
        self._seen: list[Any] = []
        self._rows: np.ndarray | None = None

    def rows(self) -> np.ndarray | None:
        """Return a row for each group as the settings are now; None where they no longer fit the text."""
        groups = self.optimizer.param_groups
        seen = [group.get(name) for group in groups for name in self._watched]
        if seen != self._seen:
            fits = served_step(self.optimizer) == self.step
            rows = [[*self.step.row(group), *self._constants] for group in groups] if fits else []
            self._seen, self._rows = seen, np.array(rows) if fits else None
        return self._rows


class NativeStep:
    """Steps an optimizer's parameters by the gradients that they have, in the optimizer's place."""

    def __init__(self, optimizer: Optimizer, step: ServedStep, run: Pass, dtype: torch.dtype) -> None:
        self.optimizer, self.step, self._run, self._dtype = optimizer, step, run, dtype
        self._settings, self._bare = Settings(optimizer, step), bare_step(optimizer)
        self._groups = [(p, number) for number, group in enumerate(optimizer.param_groups) for p in group["params"]]
        self._spans = np.zeros(len(self._groups), SPAN)

    @torch.no_grad()
    def __call__(self) -> None:
        """Make the step."""
        moved = [(p, g, number) for p, number in self._groups if (g := p.grad) is not None]
        rows = self._settings.rows()
        if rows is None or not all(fits(p, self._dtype) and fits(g, self._dtype) for p, g, _ in moved):
            self._bare()
            return
        spans = self._spans[: len(moved)]
        spans["old"] = spans["fresh"] = [p.data_ptr() for p, _, _ in moved]
        spans["gradient"] = [g.data_ptr() for _, g, _ in moved]
        spans["count"] = [g.numel() for _, g, _ in moved]
        spans["group"] = [number for _, _, number in moved]
        if self.step.state is not None and not self._remember(spans, [p for p, _, _ in moved]):
            self._bare()
            return
        self._run(rows, spans)

    def _remember(self, spans: np.ndarray, parameters: Sequence[nn.Parameter]) -> bool:
        """Find what the optimizer remembers, or begin it; False where it has another form."""
        state, name = self.optimizer.state, self.step.state
        known = [state[p].get(name) if p in state else None for p in parameters]
        if not all(tensor is None or fits(tensor, self._dtype) for tensor in known):
            return False
        spans["present"] = [tensor is not None for tensor in known]
        kept = [torch.empty_like(p) if tensor is None else tensor for p, tensor in zip(parameters, known, strict=True)]
        for parameter, tensor, before in zip(parameters, kept, known, strict=True):
            if before is None:
                state[parameter][name] = tensor
        spans["remembered"] = spans["kept"] = [tensor.data_ptr() for tensor in kept]
        return True


def fits(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether generated code can read a tensor's numbers one after another."""
    return tensor.dtype is dtype and tensor.layout is torch.strided and tensor.is_contiguous() and tensor.is_cpu


def native_step(optimizer: Optimizer) -> NativeStep | None:
    """Return what steps in the optimizer's place; None where PyTorch has to, or is not slower."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not parameters or (torch.get_num_threads() > 1 and max(p.numel() for p in parameters) >= PARALLEL):
        return None
    dtype = parameters[0].dtype
    step = served_step(optimizer) if not has_hooks(optimizer) else None
    if step is None or not all(fits(p, dtype) for p in parameters):
        return None
    run = one_pass(dtype, step, PLAIN)
    return NativeStep(optimizer, step, run, dtype) if run and agrees(optimizer, dtype, step, PLAIN, Plain()) else None


def agrees(
    optimizer: Optimizer, dtype: torch.dtype, step: ServedStep, text: ServedRule, rule: Rule,
    constants: tuple[float, ...] = (),
) -> bool:  # fmt: skip
    """Whether generated code makes the steps of every parameter group to the last bit as this PyTorch does here."""
    known, kind = tuple(optimizer.defaults), cast("Any", type(optimizer))
    groups = tuple(tuple((key, group[key]) for key in known) for group in optimizer.param_groups)
    try:
        return _agrees(kind, groups, dtype, step, text, cast("Any", rule), constants)
    except TypeError:  # settings that cannot be compared with those that were tried before
        return False


@cache
@torch.no_grad()
def _agrees(
    kind: Any, groups: tuple[tuple[tuple[str, Any], ...], ...], dtype: torch.dtype, step: ServedStep,
    text: ServedRule, rule: Any, constants: tuple[float, ...],
) -> bool:  # fmt: skip
    run = one_pass(dtype, step, text)
    assert run is not None
    draw = torch.Generator().manual_seed(1)
    for group in map(dict, groups):
        tried = _Tried(kind, group, torch.randn(NUMBERS, dtype=dtype, generator=draw), rule)
        mine = {"w": tried.values[0].clone(), "s": torch.zeros(NUMBERS, dtype=dtype)}
        mine["m"] = next((memory.clone() for memory in tried.memory[0].values()), torch.zeros(0))
        rows = np.array([[*step.row(group), *constants]])
        for number in range(3):
            gradient, pulled = torch.randn(2, NUMBERS, dtype=dtype, generator=draw)
            at = {name: tensor.data_ptr() for name, tensor in mine.items()}
            span = (
                at["w"], at["w"], at["s"], at["s"], at["m"], at["m"], gradient.data_ptr(), pulled.data_ptr(), NUMBERS,
                0, number > 0,
            )  # fmt: skip
            run(rows, np.array([span], SPAN))
            rule.update(tried, Arrival([gradient], [pulled]))
            if not tried.equal(mine["w"], mine["s"], mine["m"], step, text):
                return False
    return True


class _Tried:
    """A store of one parameter, stepped by PyTorch."""

    def __init__(self, kind: Any, group: dict[str, Any], value: Tensor, rule: Rule) -> None:
        self._parameter = nn.Parameter(value)
        self._optimizer = kind([self._parameter], **group)
        self.values: list[Tensor] = [self._parameter.detach()]
        self.memory: list[Memory] = [rule.remembers(value)]

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        self._parameter.grad = gradients[0]
        self._optimizer.step()

    def equal(self, value: Tensor, kept: Tensor, noted: Tensor, step: ServedStep, text: ServedRule) -> bool:
        """Whether these are its value and what is remembered of it."""
        same = torch.equal(value, self.values[0])
        if step.state is not None:
            same &= torch.equal(kept, self._optimizer.state[self._parameter][step.state])
        return same and (text.memory is None or torch.equal(noted, self.memory[0][text.memory]))
