"""The next version of a shard in one pass: the rule, the user's optimizer, and the new values in the slot for them.

    newest version ──┐                                          PyTorch copies the version, bends the gradient
    gradient ────────┼─▶ one pass of generated code ─▶ slot     and steps, each in passes of its own
    pulled version ──┘

Values, state and the rule's memory lie in the versions as before, so one worker may make a version in this way and the
next one by PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.algorithms.rules import Rule
from paceline.algorithms.rules.gradients import EPSILON, DcAsgd, Plain
from paceline.kernels.one_pass import Pass, one_pass, spans_for
from paceline.kernels.served_steps import ServedRule, ServedStep, served_step
from paceline.training.gradients.native_step import PLAIN, Settings, agrees, fits
from paceline.training.parameters.layout import FlatViews
from paceline.training.parameters.optimizers import has_hooks
from paceline.training.parameters.shard_version import ShardVersion, StateField, VersionShape
from paceline.training.parameters.store import ShardStore

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
