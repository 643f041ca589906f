"""Trains a job in this process, some updates at a time; the state between two of them can be saved.

It has the numbers of `paceline train` with the plan sequential, and with compute="fused" those of generated code.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from torch import nn

from paceline.algorithms.cluster.shares import Epochs
from paceline.errors import JobWarning, NotFinite
from paceline.plans.methods.all_reduce import Alone
from paceline.plans.plan import Plan
from paceline.runtime.engines.arithmetic.synchronous import SharedParameters, Team
from paceline.runtime.engines.setup import Setup, set_up
from paceline.training.gradients.evaluate import evaluate
from paceline.training.gradients.fused_replica import by_one
from paceline.training.jobs.job import Job
from paceline.training.parameters.store import restore_store, state_of_store
from paceline.training.parameters.worker_state import WorkerState, copy_into, state_of_tensors


class SteppedTraining:
    """A job under way."""

    def __init__(self, job: Job) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JobWarning)
            self.setup = set_up(job, Plan.parse("sequential"), "virtual")
        self.job, self.agenda = self.setup.job, self.setup.agenda
        self.arithmetic = Generated(self.setup) if self.job.compute == "fused" else ByAutograd(self.setup)
        #: Updates made so far.
        self.updates = 0

    @property
    def module(self) -> nn.Module:
        return self.arithmetic.module

    def advance(self, updates: int) -> float:
        """Train until so many updates are made; return the mean loss of the new ones."""
        total, count = 0.0, 0
        while self.updates < updates:
            stop = min(updates, self.updates + self.arithmetic.at_once(self.updates))
            loss = self.arithmetic.train(self.updates, stop)
            if self.job.on_nan == "stop" and not math.isfinite(loss):
                raise NotFinite(loss, self.updates, [])
            total, count = total + loss * (stop - self.updates), count + stop - self.updates
            self.updates = stop
        return total / max(count, 1)

    def evaluate(self) -> dict[str, float]:
        """Return the figures of an evaluation on the test data; empty without test data."""
        if self.setup.test is None:
            return {}
        return evaluate(self.job, self.module, self.setup.test, self.setup.placement.devices[0])

    def state(self) -> dict[str, Any]:
        """Return what the training goes on from."""
        worker_state = self.arithmetic.state()
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in worker_state.tensors.items()}
        return {"updates": self.updates, "tensors": tensors, "facts": worker_state.facts}

    def restore(self, state: dict[str, Any], settings: bool = True) -> None:
        """Go on from a state. Without `settings`, learning rate and the like stay those of this job."""
        self.updates = state["updates"]
        self.arithmetic.restore(WorkerState(state["tensors"], state["facts"]), settings)


class ByAutograd:
    """One update after another, by PyTorch."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.shared = setup, SharedParameters(setup, Alone(), Epochs(1))
        self.module = self.shared.learner.replica.module

    def at_once(self, update: int) -> int:
        return 1

    def train(self, first: int, last: int) -> float:
        (gradient,) = gradients = self.shared.gradient(first, first, whole=True)
        self.shared.step(first, first + 1, gradients)
        return gradient.mean

    def state(self) -> WorkerState:
        return self.shared.learner.replica.worker_state() | state_of_store(self.shared.replica.store)

    def restore(self, state: WorkerState, settings: bool) -> None:
        self.shared.learner.replica.restore(state)
        groups = self.shared.replica.store.optimizer.param_groups
        mine = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        restore_store(self.shared.replica.store, state)
        if not settings:
            for group, saved_settings in zip(groups, mine, strict=True):
                group.update(saved_settings)


class Generated:
    """Makes all updates that are left of a pass at once, in generated code."""

    def __init__(self, setup: Setup) -> None:
        self.team = Team(setup, by_one)
        self.module, self.agenda = self.team.module, setup.agenda

    def at_once(self, update: int) -> int:
        """Return the updates that lie within one pass; a schedule changes the settings after each of them."""
        per_epoch = self.agenda.updates_per_epoch
        return 1 if self.team.schedule is not None else per_epoch - update % per_epoch

    def train(self, first: int, last: int) -> float:
        return self.team.train(first, last)

    def state(self) -> WorkerState:
        fused = self.team.fused
        remembered = fused.compiled(self.team.x).memory["state"]
        worker_state = state_of_tensors("values", self.team.tensors) | state_of_tensors("state", [remembered])
        return worker_state | WorkerState(facts={"updates": fused.updates})

    def restore(self, state: WorkerState, settings: bool) -> None:
        copy_into(self.team.tensors, state.many("values"))
        copy_into([self.team.fused.compiled(self.team.x).memory["state"]], state.many("state"))
        self.team.fused.updates = state.facts["updates"]
        for _ in range(self.team.fused.updates if self.team.schedule is not None else 0):
            assert self.team.schedule is not None
            self.team.schedule.step()
