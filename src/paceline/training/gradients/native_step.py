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

from paceline.algorithms.rules import GradientUpdate, Memory, Rule
from paceline.algorithms.rules.gradients import Plain
from paceline.kernels.one_pass import Pass, one_pass, spans_for
from paceline.kernels.served_steps import ALIKE, UNKNOWN, WATCHED, ServedRule, ServedStep, form_of, served_step
from paceline.training.parameters.optimizers import Optimizer, bare_step, forget, has_hooks

PLAIN = ServedRule()
NUMBERS = 1003  # which no vector divides: the last of them are computed one by one
#: Steps that are compared: the size of their gradients, and how many steps are counted before them as if made.
TRIED = ((1.0, 0), (1.0, 0), (1.0, 0), (1e-4, 7), (1e-4, 90), (1.0, 1900), (1e-9, 30_000), (1.0, 500_000))
PARALLEL = 1 << 15  # numbers from which on PyTorch would use several threads, where it has them


class Settings:
    """The settings of an optimizer's groups, as rows for generated code."""

    def __init__(self, optimizer: Optimizer, step: ServedStep, constants: Sequence[float] = ()) -> None:
        self.optimizer, self.step, self._constants = optimizer, step, tuple(constants)
        self._watched = tuple(dict.fromkeys((*WATCHED, *ALIKE, *UNKNOWN)))
        self._form = form_of(optimizer)
        self._seen: list[Any] = []
        self._rows: np.ndarray | None = None
        #: Where the rows lie.
        self.address = 0

    def rows(self) -> np.ndarray | None:
        """Return a row for each group as the settings are now; None where they no longer fit the text."""
        groups = self.optimizer.param_groups
        settings = [list(map(group.get, self._watched)) for group in groups]
        if settings != self._seen:
            fits = form_of(self.optimizer) == self._form
            rows = [[*self.step.row(group), *self._constants] for group in groups] if fits else []
            self._seen, self._rows = settings, np.array(rows) if fits else None
            self.address = self._rows.ctypes.data if self._rows is not None else 0
        return self._rows


class NativeStep:
    """Steps an optimizer's parameters by the gradients that they have, in the optimizer's place."""

    def __init__(self, optimizer: Optimizer, step: ServedStep, run: Pass, dtype: torch.dtype) -> None:
        self.optimizer, self.step, self._run, self._dtype = optimizer, step, run, dtype
        self._settings, self._bare = Settings(optimizer, step), bare_step(optimizer)
        self._groups = [(p, number) for number, group in enumerate(optimizer.param_groups) for p in group["params"]]
        self._spans = spans_for([p.numel() for p, _ in self._groups])
        self._address = self._spans.ctypes.data

    @torch.no_grad()
    def __call__(self) -> None:
        """Make the step."""
        moved = [(p, g, number) for p, number in self._groups if (g := p.grad) is not None]
        if self._settings.rows() is None or not all(fits(p, self._dtype) and fits(g, self._dtype) for p, g, _ in moved):
            self._bare()
            return
        spans = self._spans[: len(moved)]
        spans["old"] = spans["fresh"] = [p.data_ptr() for p, _, _ in moved]
        spans["gradient"] = [g.data_ptr() for _, g, _ in moved]
        spans["width"] = spans["stride"] = [g.numel() for _, g, _ in moved]
        spans["group"] = [number for _, _, number in moved]
        if self.step.remembered and not self._recall(spans, [p for p, _, _ in moved]):
            self._bare()
            return
        self._run(self._settings.address, self._address, len(spans))

    def _recall(self, spans: np.ndarray, parameters: Sequence[nn.Parameter]) -> bool:
        """Find what the optimizer remembers; False where it has another form, as before the first step."""
        state = self.optimizer.state
        for number, name in enumerate(self.step.states):
            tensors = [state[p].get(name) if p in state else None for p in parameters]
            addresses = [tensor.data_ptr() for tensor in tensors if tensor is not None and fits(tensor, self._dtype)]
            if len(addresses) < len(tensors):
                return False
            spans["remembered"][:, number] = spans["kept"][:, number] = addresses
        if self.step.counts:
            counts = [state[p].get("step") for p in parameters]
            addresses = [c.data_ptr() for c in counts if isinstance(c, Tensor) and fits(c, torch.float32)]
            if len(addresses) < len(counts):
                return False
            spans["counted"] = spans["counting"] = addresses
        spans["present"] = 1
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
    optimizer: Optimizer,
    dtype: torch.dtype,
    step: ServedStep,
    text: ServedRule,
    rule: Rule,
    constants: tuple[float, ...] = (),
) -> bool:
    """Whether generated code makes the steps of every parameter group to the last bit as this PyTorch does here."""
    keys, kind = tuple(optimizer.defaults), cast("Any", type(optimizer))
    groups = tuple(tuple((key, group[key]) for key in keys) for group in optimizer.param_groups)
    try:
        return _agrees(kind, groups, dtype, step, text, cast("Any", rule), constants)
    except TypeError:  # settings that cannot be compared with those that were tried before
        return False


@cache
@torch.no_grad()
def _agrees(
    kind: Any,
    groups: tuple[tuple[tuple[str, Any], ...], ...],
    dtype: torch.dtype,
    step: ServedStep,
    text: ServedRule,
    rule: Any,
    constants: tuple[float, ...],
) -> bool:
    run = one_pass(dtype, step, text)
    assert run is not None
    draw = torch.Generator().manual_seed(1)
    for group in map(dict, groups):
        tried = _Tried(kind, group, torch.randn(NUMBERS, dtype=dtype, generator=draw), rule)
        mine = {"w": tried.values[0].clone(), "t": torch.zeros(())}
        mine |= {name: torch.zeros(NUMBERS, dtype=dtype) for name in step.states}
        mine["m"] = next((memory.clone() for memory in tried.memory[0].values()), torch.zeros(0))
        rows, (span,) = np.array([[*step.row(group), *constants]]), (spans := spans_for([NUMBERS]))
        span["old"] = span["fresh"] = mine["w"].data_ptr()
        span["noted"] = span["noting"] = mine["m"].data_ptr()
        span["counted"] = span["counting"] = mine["t"].data_ptr()
        for number, name in enumerate(step.states):
            span["remembered"][number] = span["kept"][number] = mine[name].data_ptr()
        for number, (size, skipped) in enumerate(TRIED):
            gradient, pulled = torch.randn(2, NUMBERS, dtype=dtype, generator=draw) * size
            span["gradient"], span["pulled"], span["present"] = gradient.data_ptr(), pulled.data_ptr(), number > 0
            if step.counts and number:
                mine["t"] += skipped
                tried.skip(skipped)
            run(rows.ctypes.data, spans.ctypes.data, len(spans))
            rule.update(tried, GradientUpdate([gradient], [pulled]))
            if not tried.equal(mine, step, text):
                return False
    return True


class _Tried:
    """A store of one parameter, stepped by PyTorch."""

    def __init__(self, kind: Any, group: dict[str, Any], value: Tensor, rule: Rule) -> None:
        self._parameter = nn.Parameter(value)
        self._optimizer = kind([self._parameter], lr=group["lr"])
        self._optimizer.param_groups[0].update(group)
        forget(self._optimizer, self._parameter)  # what some make with other settings
        self.values: list[Tensor] = [self._parameter.detach()]
        self.memory: list[Memory] = [rule.remembers(value)]

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        self._parameter.grad = gradients[0]
        bare_step(self._optimizer)()

    def skip(self, steps: int) -> None:
        """Count further steps, as if they had been made."""
        self._optimizer.state[self._parameter]["step"] += steps

    def equal(self, mine: dict[str, Tensor], step: ServedStep, text: ServedRule) -> bool:
        """Whether these are its value and all that is remembered of it, and nothing else is."""
        state = self._optimizer.state[self._parameter]
        named = {"step": mine["t"], **mine}
        same = state.keys() == step.remembered and all(torch.equal(named[name], state[name]) for name in state)
        same &= torch.equal(mine["w"], self.values[0])
        return same and (text.memory is None or torch.equal(mine["m"], self.memory[0][text.memory]))
