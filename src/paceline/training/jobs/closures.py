"""Optimizers that evaluate the loss themselves, several times in a step."""

from __future__ import annotations

import inspect

import torch

from paceline.errors import JobError


def refuse_closures(optimizer: torch.optim.Optimizer) -> None:
    """Raise JobError for an optimizer, or one of several, whose `step` cannot do without a closure, such as LBFGS."""
    for one in (optimizer, *getattr(optimizer, "each", ())):
        if needs_closure(one):
            raise JobError(
                f"{type(one).__name__} evaluates the loss several times in a step, by a closure, and cannot be sharded "
                "or shared: give a first-order optimizer, such as torch.optim.Adam. L-BFGS is plan sandblaster of "
                "paceline.train, which makes its steps itself and does not use the job's optimizer; give any there"
            )


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `step` has an argument without a default."""
    _, *arguments = inspect.signature(type(optimizer).step).parameters.values()
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.kind in named and each.default is inspect.Parameter.empty for each in arguments)
