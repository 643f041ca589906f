"""Refusals of a model or a step that a pipeline cannot cut, each with the reason, the line and another plan."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from paceline.errors import JobError, PacelineError, users_place

UNCUT = "a plan that does not cut the model, such as ring or downpour"


class Called(Exception):
    """The model was called, so its arguments are known."""


@contextlib.contextmanager
def step_alone() -> Iterator[None]:
    """Raise what `step` raises without the whole model as an error that says so."""
    with _refused("step= fails where it has only what model(...) returns", "take no gradients in step=, or "):
        yield


@contextlib.contextmanager
def in_pieces() -> Iterator[None]:
    """Raise what a model raises whose pieces are run one by one as an error that says so."""
    with _refused("the model fails where its pieces are run one by one", ""):
        yield


@contextlib.contextmanager
def _refused(where: str, remedy: str) -> Iterator[None]:
    levels = torch._C._functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    except (PacelineError, Called):
        raise
    except Exception as fault:
        # A traced model enters and leaves torch.func's transforms as nodes of its graph, and has not left them now.
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(levels)
        reason = f"{type(fault).__name__}: {fault}".splitlines()[0].rstrip(".")
        raise JobError(f"{where}, as under a pipeline: {reason}{users_place(fault)}; {remedy}use {UNCUT}") from fault


def not_whole(name: str) -> JobError:
    return JobError(
        f"step= uses model.{name}, and under a pipeline no worker has the whole model; use only what model(...) "
        "returns, or a plan that does not cut the model"
    )


def autocast() -> list[bool]:
    """Return for which devices torch.autocast is on."""
    return [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")]


def refuse_autocast(before: list[bool]) -> None:
    """Raise if `step` has entered torch.autocast where it calls the model."""
    if autocast() != before:
        raise JobError(
            "step= calls the model under torch.autocast, which the stages of a pipeline do not see; leave it out of "
            f"step= and give precision='bf16-mixed', or use {UNCUT}"
        )


def cannot_follow(module: nn.Module, why: str, error: Exception) -> JobError:
    return JobError(
        f"the forward of {type(module).__name__} cannot be followed: {why}{users_place(error)}; move that part into a "
        f"module of its own, which then stays whole, or use {UNCUT}"
    )
