"""Whether replicas stay replicas: parameters that all ranks had in common at their first step, compared at the end.

Parameters that differ from the first step on are shards, stages or deliberate; those that differ only later have
diverged without a message.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import torch
from torch.optim import optimizer as optimizers

from paceline.concurrency.explore.finding import Finding
from paceline.concurrency.explore.interpose import control

_first: dict[int, str] = {}  # by rank, at its first step
_used: dict[int, list[torch.optim.Optimizer]] = {}


class Replicas(NamedTuple):
    """The parameters of all ranks, compared."""

    were_equal: bool
    are_equal: bool
    finite: bool


def compare() -> Replicas:
    """Compare the parameters that optimizers of the ranks have stepped."""
    last = {_digest(used) for used in _used.values()}
    finite = all(bool(torch.isfinite(each).all()) for used in _used.values() for each in _parameters(used))
    return Replicas(len(_first) > 1 and len(set(_first.values())) == 1, len(last) <= 1, finite)


def diverged() -> Finding | None:
    result = compare()
    if not result.were_equal or result.are_equal:
        return None
    return Finding(
        "ranks diverge",
        "the ranks had the same parameters at their first step, and have different ones at the end",
        conclusion="no rank notices: let every rank apply the same gradients, in the same number of steps",
    )


def _note(optimizer: Any, *_: Any) -> None:
    rank = control.rank()
    if rank is None:
        return
    used = _used.setdefault(rank, [])
    if not any(each is optimizer for each in used):
        used.append(optimizer)
        _first.setdefault(rank, _digest(used))


def _parameters(used: list[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Return what this rank holds: of a DTensor its own part, to compute nothing that would be a collective."""
    every = [each.detach() for optimizer in used for group in optimizer.param_groups for each in group["params"]]
    return [getattr(each, "to_local", lambda each=each: each)() for each in every]


def _digest(used: list[torch.optim.Optimizer]) -> str:
    total = hashlib.sha256()
    for each in _parameters(used):
        total.update(str(each.shape).encode() + each.cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def install() -> None:
    optimizers.register_optimizer_step_pre_hook(_note)
