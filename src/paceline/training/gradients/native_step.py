"""Generated code steps the user's optimizer in one pass: on tensors of this process, and on versions of a shard.

The optimizer's object stays the truth: its settings are read from it in every step, and what it remembers lies where
PyTorch keeps it. Generated code is compared with PyTorch once, before it is used; a step that it has no text for (a
sparse gradient, settings that have changed their form) is PyTorch's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, takewhile
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from paceline.algorithms.rules import GradientUpdate, Memory, Rule
from paceline.algorithms.rules.gradients import EPSILON, DcAsgd, Plain
from paceline.kernels.one_pass import (
    ALIKE,
    UNKNOWN,
    WATCHED,
    Pass,
    ServedRule,
    ServedStep,
    form_of,
    one_pass,
    served_step,
    spans_for,
)
from paceline.training.parameters.layout import FlatViews
from paceline.training.parameters.optimizers import (
    LRSchedule,
    Optimizer,
    ScheduleStepper,
    bare_step,
    forget,
    has_hooks,
    optimizer_over,
)
from paceline.training.parameters.shard_version import ShardVersion, StateField, VersionShape
from paceline.training.parameters.store import ShardStore

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


# The settings of an optimizer in updates that have yet to be made, which generated code needs ahead.
#
# A schedule gives the settings of an update by the number of updates before it. At a server, workers find out that
# number only when they have a shard's lock, so a copy of the optimizer whose schedule runs ahead knows the next ones.


class ScheduledSettings:
    """Settings by the number of updates that came before, asked for in this order."""

    def __init__(
        self, optimizer: Optimizer, schedule: LRSchedule | None, step: ServedStep, constants: Sequence[float]
    ) -> None:
        optimizer_copy = optimizer_over(optimizer, {p: p for group in optimizer.param_groups for p in group["params"]})
        self._settings, self._schedule = (
            Settings(optimizer_copy, step, constants),
            ScheduleStepper(optimizer_copy, schedule),
        )
        #: Of the updates from `_first` on; None where generated code has no text for them.
        self._rows: deque[np.ndarray | None] = deque()
        self._first = 0

    @property
    def fixed(self) -> bool:
        """Whether all updates have the same settings."""
        return self._schedule.scheduler is None

    def after(self, updates: range) -> np.ndarray:
        """Return the settings after so many updates each, up to the first that generated code has no text for."""
        while self._rows and self._first < updates.start:
            self._rows.popleft()
            self._first += 1
        if not self._rows:
            self._first = updates.start
        for number in range(self._first + len(self._rows), updates.stop):
            self._schedule.advance(number)
            self._rows.append(self._settings.rows())
        rows = islice(self._rows, len(updates))
        return np.array([row for row in takewhile(lambda row: row is not None, rows) if row is not None])


# The next version of a shard in one pass: the rule, the user's optimizer, and the new values in the slot for them.
#     newest version ──┐                                          PyTorch copies the version, bends the gradient
#     gradient ────────┼─▶ one pass of generated code ─▶ slot     and steps, each in passes of its own
#     pulled version ──┘
#
# Values, state and the rule's memory lie in the versions as before, so one worker may make a version in this way and
# the next one by PyTorch.

#: A rule's text, and the numbers that its lines read.
Row = tuple[ServedRule, tuple[float, ...]]


def _dc_asgd(rule: DcAsgd) -> Row:
    if rule.lam == 0:
        return PLAIN, ()
    drift = "(w - p) * (g * g) * lam"
    if rule.mode == "constant":
        return ServedRule(("lam",), None, True, (f"g = {drift} + g;",)), (rule.lam,)
    text = ServedRule(
        ("lam", "forget", "fresh_share", "epsilon"),
        "mean_square",
        True,
        ("m = std::fma(g * g, fresh_share, m * forget);",),
        "m + epsilon",
        (f"g = {drift} / root + g;",),
    )
    return text, (rule.lam, rule.decay, 1 - rule.decay, EPSILON)


RULES: dict[type, Callable[..., Row]] = {Plain: lambda rule: (PLAIN, ()), DcAsgd: _dc_asgd}


def row_of(rule: object) -> Row | None:
    """Return a rule's row; None where it has none."""
    return RULES[type(rule)](rule) if type(rule) in RULES else None


def native_versions(store: ShardStore, rule: Rule, shared: bool) -> NativeVersions | None:
    """Return what makes a shard's versions in one pass; None where PyTorch has to.

    `shared` says whether other processes read them.
    """
    shape, optimizer = store.versions[0].shape, store.optimizer
    step, row = served_step(optimizer), row_of(rule)
    if store.rows is not None or has_hooks(optimizer) or torch.get_num_threads() > 1 or not store.parameters:
        return None
    if step is None or row is None:
        return None
    text, constants = row
    if not remembers(shape, step, text):
        return None
    run = one_pass(shape.dtype, step, text)
    if run is None or not agrees(optimizer, shape.dtype, step, text, rule, constants):
        return None
    return NativeVersions(store, step, text, run, Settings(optimizer, step, constants), shared)


def remembers(shape: VersionShape, step: ServedStep | None, text: ServedRule) -> bool:
    """Whether a shard's versions remember what generated code changes there, and nothing else.

    `step` is None where the optimizer does not step at the server.
    """
    named = step.remembered if step is not None else set()
    if any(set(fields) != {text.memory} - {None} for fields in shape.memory):
        return False
    counts = [fields["step"] for fields in shape.state if "step" in fields]
    return all(set(fields) == named for fields in shape.state) and all(map(counts_as_torch, counts))


def counts_as_torch(count: StateField) -> bool:
    """Whether a number of steps is kept as PyTorch keeps it where float32 is the default."""
    return count == StateField((), torch.float32, Tensor)


@dataclass(frozen=True)
class _Slot:
    """Where the numbers of a version lie: addresses, one for each parameter."""

    values: np.ndarray
    #: Of each of the optimizer's states, side by side.
    state: np.ndarray
    counts: np.ndarray
    memory: np.ndarray
    #: Whether the optimizer remembers anything of each parameter; in the version's own memory.
    present: np.ndarray

    @staticmethod
    def of(version: ShardVersion, step: ServedStep, memory: str | None) -> _Slot:
        def addresses(tensors: Sequence[Tensor]) -> np.ndarray:
            return np.array([tensor.data_ptr() for tensor in tensors] or 0, np.int64)

        views = version.state.views
        state = np.array([[view[name].data_ptr() for name in step.states] for view in views], np.int64)
        return _Slot(
            addresses(version.parameters),
            state,
            addresses([view["step"] for view in views] if step.counts else []),
            addresses([view[memory] for view in version.memory] if memory is not None else []),
            version.state.present.numpy(),
        )


class NativeVersions:
    """Makes the versions of one shard for one worker."""

    def __init__(
        self, store: ShardStore, step: ServedStep, text: ServedRule, run: Pass, settings: Settings, shared: bool
    ) -> None:
        self.store, self.uses_pulled, self._run, self._settings = store, text.uses_pulled, run, settings
        self._step, self._remembers, self._dtype = step, bool(step.remembered), store.versions[0].shape.dtype
        self._slots = [_Slot.of(version, step, text.memory) for version in store.versions]
        self._spans = spans_for([p.numel() for p in store.parameters])
        groups = {id(p): n for n, group in enumerate(store.optimizer.param_groups) for p in group["params"]}
        self._address, self._spans["shared"] = self._spans.ctypes.data, shared
        self._spans["group"] = [groups[id(p)] for p in store.parameters]
        #: The slots that the spans are of: where the newest version is, where the next is made, what was pulled.
        self._move = (-1, -1, -1)

    def make(self, source: int, target: int, gradients: Sequence[Tensor | None]) -> bool:
        """Make the next version of the one in `source`, and look there; False where PyTorch has to."""
        store, spans = self.store, self._spans
        store.schedule.advance(store.updates)
        rows, addresses = self._settings.rows(), self._addresses(gradients)
        if rows is None or addresses is None:
            return False
        if (move := (source, target, store.slot)) != self._move:
            self._prepare(*move)
        spans["gradient"] = addresses
        if self._remembers:
            spans["present"] = self._slots[source].present
        if source != target:
            for mine, newest in zip(store.versions[target].buffers, store.versions[source].buffers, strict=True):
                mine.copy_(newest)
        self._run(self._settings.address, self._address, len(spans))
        if self._remembers:
            self._slots[target].present[:] = True
        if target != store.slot:
            store.bind_to_slot(target)
        return True

    def _addresses(self, gradients: Sequence[Tensor | None]) -> np.ndarray | list[int] | None:
        """Return where the gradients lie; None where generated code cannot read them."""
        if isinstance(gradients, FlatViews):  # to ask each of them takes longer than to step a small model
            return gradients.addresses
        usable = [g for g in gradients if g is not None and fits(g, self._dtype)]
        return [g.data_ptr() for g in usable] if len(usable) == len(gradients) else None

    def _prepare(self, source: int, target: int, pulled: int) -> None:
        """Note where the numbers of this move lie; a server that makes every version in place does so once."""
        old, new, spans, states = self._slots[source], self._slots[target], self._spans, len(self._step.states)
        spans["old"], spans["fresh"], spans["pulled"] = old.values, new.values, self._slots[pulled].values
        spans["remembered"][:, :states], spans["kept"][:, :states] = old.state, new.state
        spans["counted"], spans["counting"] = old.counts, new.counts
        spans["noted"], spans["noting"] = old.memory, new.memory
        self._move = source, target, pulled
