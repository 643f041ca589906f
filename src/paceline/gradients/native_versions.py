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

from paceline.core.rules import Rule
from paceline.core.rules.dc_asgd import EPSILON, DcAsgd
from paceline.core.rules.plain import Plain
from paceline.gradients.native_step import PLAIN, Settings, agrees, fits
from paceline.kernels.one_pass import SPAN, Pass, one_pass
from paceline.kernels.served_steps import ServedRule, ServedStep, served_step
from paceline.parameters.optimizers import has_hooks
from paceline.parameters.shard_version import ShardVersion
from paceline.parameters.store import ShardStore

#: A rule's text, and the numbers that its lines read.
Row = tuple[ServedRule, tuple[float, ...]]


def _dc_asgd(rule: DcAsgd) -> Row:
    if rule.lam == 0:
        return PLAIN, ()
    bend = ("const R square = g * g;", "R drift = (w - p) * square * lam;")
    if rule.mode == "constant":
        return ServedRule(("lam",), None, True, (*bend, "g = drift + g;")), (rule.lam,)
    settle = ("m = std::fma(square, fresh_share, m * decay);", "drift /= std::sqrt(m + epsilon);", "g = drift + g;")
    names = ("lam", "decay", "fresh_share", "epsilon")
    return ServedRule(names, "mean_square", True, (*bend, *settle)), (rule.lam, rule.decay, 1 - rule.decay, EPSILON)


RULES: dict[type, Callable[..., Row]] = {Plain: lambda rule: (PLAIN, ()), DcAsgd: _dc_asgd}


def native_versions(store: ShardStore, rule: Rule) -> NativeVersions | None:
    """Return what makes a shard's versions in one pass; None where PyTorch has to."""
    shape, optimizer = store.versions[0].shape, store.optimizer
    if type(rule) not in RULES or store.rows is not None or has_hooks(optimizer) or torch.get_num_threads() > 1:
        return None
    step, (text, constants) = served_step(optimizer), RULES[type(rule)](rule)
    if step is None or not store.parameters:
        return None
    if any(set(fields) != {step.state} - {None} for fields in shape.state):
        return None
    if any(set(fields) != {text.memory} - {None} for fields in shape.memory):
        return None
    run = one_pass(shape.dtype, step, text)
    if run is None or not agrees(optimizer, shape.dtype, step, text, rule, constants):
        return None
    return NativeVersions(store, step, text, run, Settings(optimizer, step, constants))


@dataclass(frozen=True)
class _Slot:
    """Where the numbers of a version lie: addresses, one for each parameter."""

    values: np.ndarray
    state: np.ndarray
    memory: np.ndarray
    #: Whether the optimizer remembers anything of each parameter; in the version's own memory.
    present: np.ndarray

    @staticmethod
    def of(version: ShardVersion, state: str | None, memory: str | None) -> _Slot:
        def addresses(tensors: Sequence[Tensor]) -> np.ndarray:
            return np.array([tensor.data_ptr() for tensor in tensors] or 0, np.int64)

        kept = [views[state] for views in version.state.views] if state is not None else []
        noted = [views[memory] for views in version.memory] if memory is not None else []
        return _Slot(addresses(version.parameters), addresses(kept), addresses(noted), version.state.present.numpy())


class NativeVersions:
    """Makes the versions of one shard for one worker."""

    def __init__(self, store: ShardStore, step: ServedStep, text: ServedRule, run: Pass, settings: Settings) -> None:
        self.store, self.looks_back, self._run, self._settings = store, text.looks_back, run, settings
        self._remembers, self._dtype = step.state is not None, store.versions[0].shape.dtype
        self._slots = [_Slot.of(version, step.state, text.memory) for version in store.versions]
        self._spans = np.zeros(len(store.parameters), SPAN)
        self._spans["count"] = [p.numel() for p in store.parameters]
        groups = {id(p): n for n, group in enumerate(store.optimizer.param_groups) for p in group["params"]}
        self._spans["group"] = [groups[id(p)] for p in store.parameters]

    def make(self, source: int, target: int, gradients: Sequence[Tensor | None]) -> bool:
        """Make the next version of the one in `source`, and look there; False where PyTorch has to."""
        store, spans = self.store, self._spans
        store.schedule.advance(store.updates)
        rows = self._settings.rows()
        if rows is None or not all(g is not None and fits(g, self._dtype) for g in gradients):
            return False
        old, new, spans["pulled"] = self._slots[source], self._slots[target], self._slots[store.slot].values
        spans["old"], spans["fresh"] = old.values, new.values
        spans["remembered"], spans["kept"] = old.state, new.state
        spans["noted"], spans["noting"] = old.memory, new.memory
        spans["present"] = old.present
        spans["gradient"] = [g.data_ptr() for g in gradients if g is not None]
        for mine, newest in zip(store.versions[target].buffers, store.versions[source].buffers, strict=True):
            mine.copy_(newest)
        self._run(rows, spans)
        new.present[:] = self._remembers
        store.look(target)
        return True
