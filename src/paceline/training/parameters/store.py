"""Stores: where parameters live and the user's own optimizer changes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paceline.algorithms.rules import Averaging, Memory, Rule
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
from paceline.training.parameters.shard_version import RowCopier, ShardVersion
from paceline.training.parameters.worker_state import (
    WorkerState,
    restore_memories,
    restore_optimizer,
    state_of_memories,
    state_of_optimizer,
)

# --- A shard that is stepped as one tensor, which takes as few calls as one parameter does ----------------------------


class WholeStep:
    """Steps all parameters of a shard together, as the user's optimizer would step each of them.

    This is for optimizers that do the same to every number and remember nothing: all numbers then have the bits that
    a step of one parameter after another gives them.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        #: The group whose settings a schedule changes.
        (self._group,) = [group for group in optimizer.param_groups if group["params"]]
        first = self._group["params"][0]
        self._whole = nn.Parameter(torch.zeros(1, dtype=first.dtype))
        self._optimizer = optimizer_over(optimizer, {first: self._whole})
        (self._mine,) = [group for group in self._optimizer.param_groups if group["params"]]
        self._step = bare_step(self._optimizer)

    @staticmethod
    def of(optimizer: Optimizer) -> WholeStep | None:
        """Return what steps a shard with this optimizer; None where parameters have to be stepped one by one."""
        groups = [group for group in optimizer.param_groups if group["params"]]
        # Steps element by element alone are the same on one vector; a subclass or a hook may look at parameters.
        if type(optimizer) is not torch.optim.SGD or len(groups) != 1 or has_hooks(optimizer):
            return None
        # Momentum is state of each parameter, which lies with the version.
        return WholeStep(optimizer) if not groups[0]["momentum"] else None

    def step(self, parameters: Tensor, gradients: Tensor) -> None:
        """Step the parameters that lie in one vector, by gradients that lie alike in another."""
        self._mine.update(self._group, params=[self._whole])
        self._whole.data, self._whole.grad = parameters, gradients
        self._step()
        self._whole.grad = None


class LocalStore:
    """A worker's own copy of all parameters, stepped by the user's optimizer."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        optimizer: Optimizer,
        schedule: LRSchedule | None,
        rule: Rule | Averaging,
        step: Callable[[], object] | None = None,
    ) -> None:
        """`step` makes the optimizer's step in place of the optimizer itself."""
        self.parameters, self.optimizer = parameters, optimizer
        self.memory = [rule.remembers(p.detach()) for p in parameters]
        self.schedule = ScheduleStepper(optimizer, schedule)
        #: Updates that were applied before the next one; what a schedule follows.
        self.updates = 0
        #: What steps in place of the optimizer; None where that steps itself.
        self.stepper = step
        self._step = step or bare_step(optimizer)

    @property
    def values(self) -> list[Tensor]:
        return [p.detach() for p in self.parameters]

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Let the optimizer apply these gradients."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.schedule.advance(self.updates)
        self._step()
        self.updates += 1
        # The gradients may be views of memory that other workers read. Autograd would add the next ones to them.
        for parameter in self.parameters:
            parameter.grad = None


def state_of_store(store: LocalStore) -> WorkerState:
    """Return the state of a store besides its parameters: of its rule, its optimizer and its schedule."""
    return (
        state_of_memories("rule", store.memory)
        | state_of_optimizer(store.optimizer, store.parameters)
        | WorkerState(facts={"pace": store.schedule.count, "updates": store.updates} | _state_of_schedule(store))
    )


def _state_of_schedule(store: LocalStore) -> dict[str, Any]:
    """Return the state of a schedule that follows losses; most have none but the count."""
    state = store.schedule.state()
    return {} if state is None else {"schedule": state}


def restore_store(store: LocalStore, worker_state: WorkerState) -> None:
    """Restore what `state_of_store` returned."""
    restore_memories(store.memory, worker_state, "rule")
    store.schedule.restore(worker_state.facts["pace"], worker_state.facts.get("schedule"))
    restore_optimizer(store.optimizer, store.parameters, worker_state)
    store.updates = worker_state.facts["updates"]


class ShardStore:
    """One shard of a server as one worker sees it: any process that maps the same memory can make the next version.

    `algorithms.server.version_slots` says in which slot a worker makes it. The worker then computes with that version.
    `rows` copies versions by rows where the shard has embedding tables.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        optimizer: Optimizer,
        schedule: LRSchedule | None,
        versions: list[ShardVersion],
        rows: RowCopier | None = None,
        copy: Callable[[Tensor, Tensor], object] = Tensor.copy_,
    ) -> None:
        self.parameters, self.optimizer, self.versions, self.rows = parameters, optimizer, versions, rows
        self._copy = copy
        self.schedule = ScheduleStepper(optimizer, schedule)
        #: Updates that were applied to the version in `move`'s source slot.
        self.updates = 0
        self._step = bare_step(optimizer)
        self._remembers = versions[0].shape.remembers
        #: Steps gradients that lie in one vector.
        self._whole = WholeStep.of(optimizer) if not self._remembers else None
        #: Bytes that the last push and pull carried.
        self.bytes = 2 * versions[0].values.nbytes

    @property
    def values(self) -> list[Tensor]:
        return self.version.parameters

    @property
    def memory(self) -> list[Memory]:
        return self.version.memory

    def bind_to_slot(self, slot: int) -> None:
        """Let the module compute with the version in this slot."""
        self.slot, self.version = slot, self.versions[slot]
        # The module's parameters become views of the slot, so that a pull of the newest version copies nothing.
        for parameter, view in zip(self.parameters, self.version.parameters, strict=True):
            parameter.data = view

    def pulled(self, rule: Rule) -> list[Tensor]:
        """Return what the worker computed from, for a rule that looks back. Call it before `move`."""
        return [v.clone() for v in self.version.parameters] if rule.uses_pulled else []

    def move(self, source: int, target: int) -> None:
        """Copy the newest version to the slot where the next one will be made, and look there."""
        # A copy first: other workers may compute with the newest version, and it must survive this worker's death.
        if self.rows is None:
            self._copy(self.versions[target].raw, self.versions[source].raw)
        else:
            self.bytes = self.rows.copy(self.updates + 1, source, target)
        self.bind_to_slot(target)

    def fetch(self, source: int, target: int) -> None:
        """Look at the newest version, copied to the worker's own slot."""
        if source != target:
            self._copy(self.versions[target].raw, self.versions[source].raw)
        self.bind_to_slot(target)

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Let the optimizer apply these gradients here; `updates` came before."""
        if self.rows is not None:
            self.bytes += self.rows.note(self.updates + 1, self.version, gradients)
        self.schedule.advance(self.updates)
        if self._whole is not None and isinstance(gradients, FlatViews):
            self._whole.step(self.version.parameters.flat, gradients.flat)
            return
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        if self._remembers:
            self._step_with_memory()
        else:
            self._step()
        for parameter in self.parameters:
            parameter.grad = None

    def _step_with_memory(self) -> None:
        # The state belongs to the version, since another worker may make the next one; the optimizer is lent it.
        state, memory = self.optimizer.state, self.version.state
        present = memory.present.tolist()
        for number, parameter in enumerate(self.parameters):
            if present[number]:
                state[parameter] = memory.recall(number)
            else:
                # This worker's optimizer may remember a version that was never committed.
                forget(self.optimizer, parameter)
        self._step()
        for number, parameter in enumerate(self.parameters):
            if state.get(parameter):
                memory.keep(number, state[parameter])
