"""The user's optimizer: copies of it over other parameters, its step, and its learning-rate schedule."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau
from torch.optim.optimizer import _use_grad_for_differentiable

from paceline.errors import JobError, users_code

Optimizer = torch.optim.Optimizer
LRSchedule = Callable[[Optimizer], Any]


def without_the_compiler(method: Any) -> None:
    """Let a method that PyTorch keeps out of compiled code run without importing its compiler.

    The import takes a second. It is made only to switch off a compiler that is under way, and none is before something
    else has imported it. PyTorch keeps what it calls instead of the method in `__dynamo_disable`.
    """
    function = getattr(method, "__wrapped__", None)
    if function is None:  # older versions keep fewer methods out
        return

    def call(*args: Any, **keywords: Any) -> Any:
        if "torch._dynamo" in sys.modules:
            function.__dict__.pop("__dynamo_disable", None)  # which PyTorch sets again
            return method(*args, **keywords)
        return function(*args, **keywords)

    function.__dynamo_disable = call


for _method in vars(Optimizer).values():
    if getattr(getattr(_method, "__code__", None), "co_filename", "") == torch._compile.__file__:
        without_the_compiler(_method)
#: The code of the functions that switch gradients on or off around a step of PyTorch's optimizers.
_SWITCHES = _use_grad_for_differentiable(lambda: None).__code__
#: Older versions of PyTorch create Adagrad's state in its constructor, newer ones in its first step.
EAGER_ADAGRAD = bool(torch.optim.Adagrad([nn.Parameter(torch.zeros(1))]).state)


class ScheduleStepper:
    """Keeps a learning-rate schedule in step with the number of updates, whichever worker applied them."""

    def __init__(self, optimizer: Optimizer, schedule: LRSchedule | None) -> None:
        self.scheduler = schedule(optimizer) if schedule else None
        #: Steps that the scheduler has made.
        self.count = 0
        # A scheduler warns when it is stepped before its optimizer. Here another worker's optimizer may have stepped.
        if self.scheduler is not None:
            optimizer._opt_called = True  # type: ignore[attr-defined]

    def record_loss(self, *losses: float) -> None:
        """Tell the losses of updates to a schedule that follows losses."""
        if callable(record_loss := getattr(self.scheduler, "record_loss", None)):
            for loss in losses:
                record_loss(loss)

    def state(self) -> dict[str, Any] | None:
        """Return what a checkpoint keeps of a schedule besides the count; None for most."""
        state: Callable[[], dict[str, Any] | None] | None = getattr(self.scheduler, "state", None)
        return state() if state is not None else None

    def restore(self, count: int, state: dict[str, Any] | None) -> None:
        """Continue after `count` steps, with what `state` returned."""
        if state is None or self.scheduler is None:
            self.advance(count)
            return
        self.count = count
        self.scheduler.restore(state)

    def advance(self, updates: int) -> None:
        """Bring the optimizer's settings to those of the update that follows `updates` updates."""
        if self.scheduler is not None:
            # Several steps where other workers have applied updates since this worker's last one.
            while self.count < updates:
                self.scheduler.step()
                self.count += 1


def has_hooks(optimizer: Optimizer) -> bool:
    """Return whether functions were registered that run before or after the optimizer's step."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def bare_step(optimizer: Optimizer) -> Callable[[], Any]:
    """Return the optimizer's step without PyTorch's profiler label, unless hooks need the labelled one.

    The label takes as long as the arithmetic of a small network. Within it most optimizers switch gradients off by a
    function that imports the compiler of PyTorch, which takes more than a second in every process.
    """
    bare = getattr(type(optimizer).step, "__wrapped__", None)
    if bare is None or has_hooks(optimizer):
        return lambda: type(optimizer).step(optimizer)  # not one that was patched into the instance
    inner = getattr(bare, "__wrapped__", None)
    if inner is None or bare.__code__ is not _SWITCHES:
        return lambda: bare(optimizer)

    def step() -> Any:
        with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
            return inner(optimizer)

    return step


def optimizer_over(optimizer: Optimizer, parameters: dict[nn.Parameter, nn.Parameter]) -> Optimizer:
    """Return a copy of the optimizer without state, over the parameters that the mapping gives for its own."""
    copy: Optimizer = object.__new__(type(optimizer))
    copy.__dict__.update(optimizer.__dict__)  # copy.copy would keep only what an optimizer pickles
    copy.__dict__.pop("step", None)  # a scheduler's wrapper, which steps the original
    copy.state = defaultdict(dict)
    copy.param_groups = [
        {**group, "params": [parameters[p] for p in group["params"] if p in parameters]}
        for group in optimizer.param_groups
    ]
    for parameter in (p for group in copy.param_groups for p in group["params"]):
        forget(copy, parameter)
    return copy


def forget(optimizer: Optimizer, parameter: nn.Parameter) -> None:
    """Set the optimizer's state of one parameter to what it is before the first step."""
    optimizer.state.pop(parameter, None)
    if EAGER_ADAGRAD and "initial_accumulator_value" in (group := _group_of(optimizer, parameter)):
        value, fused = group["initial_accumulator_value"], group["fused"]
        optimizer.state.update(torch.optim.Adagrad([parameter], initial_accumulator_value=value, fused=fused).state)


def _group_of(optimizer: Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    groups = (group for group in optimizer.param_groups if any(p is parameter for p in group["params"]))
    return next(groups, {})  # of a parameter that the optimizer leaves alone


# A learning-rate schedule that steps once per epoch, in a training whose schedules step once per update.
#
# `ReduceLROnPlateau` is one: it steps with the mean training loss of the epoch, which every worker of a plan that adds
# gradients up knows. A replay hears the same losses and so has the same learning rates.


@dataclass(frozen=True)
class EveryEpoch:
    """Makes the user's schedule, and steps it after each epoch."""

    schedule: LRSchedule
    updates_per_epoch: int

    def __call__(self, optimizer: Optimizer) -> EpochSteps:
        return EpochSteps(optimizer, self.schedule(optimizer), self.updates_per_epoch)


class EpochSteps:
    """A schedule that passes on the last of every `updates_per_epoch` steps."""

    def __init__(self, optimizer: Optimizer, scheduler: Any, updates_per_epoch: int) -> None:
        self.optimizer, self.scheduler, self.updates_per_epoch = optimizer, scheduler, updates_per_epoch
        self._steps = 0
        #: The finite losses of this epoch so far: their sum and number.
        self._losses = (0.0, 0)

    def record_loss(self, loss: float) -> None:
        """Take the loss of an update."""
        if math.isfinite(loss):
            self._losses = self._losses[0] + loss, self._losses[1] + 1

    def step(self) -> None:
        self._steps += 1
        if self._steps % self.updates_per_epoch:
            return
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()
            return
        total, count = self._losses
        self._losses = (0.0, 0)
        if count:
            self.scheduler.step(total / count)

    def state(self) -> dict[str, Any] | None:
        """Return what a checkpoint keeps; None where the number of steps says everything."""
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            return None
        keys = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch", "_last_lr")
        return {"steps": self._steps, "losses": list(self._losses), **{key: vars(self.scheduler)[key] for key in keys}}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        attributes = dict(state)
        total, count = attributes.pop("losses")
        self._steps, self._losses = attributes.pop("steps"), (float(total), int(count))
        vars(self.scheduler).update(attributes)
        for group, rate in zip(self.optimizer.param_groups, attributes["_last_lr"], strict=True):
            group["lr"] = rate


def follows_loss(schedule: LRSchedule, optimizer: Optimizer, steps: int) -> bool:
    """Return whether a schedule follows the loss, and not the number of `steps` that a training makes with it.

    Raises:
        JobError: the function returns no schedule, or one that ends before the training.
    """
    with users_code("lr_scheduler="):
        scheduler = schedule(optimizer)
    if not callable(getattr(scheduler, "step", None)):
        raise JobError(
            f"lr_scheduler= returned {type(scheduler).__name__}, which has no step(); return a scheduler of "
            "torch.optim.lr_scheduler"
        )
    if isinstance(scheduler, OneCycleLR) and scheduler.total_steps < steps:
        raise JobError(
            f"lr_scheduler= returned a OneCycleLR of {scheduler.total_steps} steps, and the training makes {steps}; "
            "give it "
            f"total_steps={steps}"
        )
    return isinstance(scheduler, ReduceLROnPlateau)
