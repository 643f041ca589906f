"""Drills: one fault on one rank, and what the others make of it.

It *ended with a clear error* (a launcher stops the other ranks then), *continued*, *hung*, or *silently diverged*: it
ended as if nothing had happened, but the ranks' parameters differ or are not finite.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from paceline.concurrency.explore.finding import Finding
from paceline.concurrency.explore.interpose import control

KINDS = {
    "exception": "an exception in step {step} of rank {rank}",
    "short": "a loader with one batch fewer on rank {rank}",
    "nan": "an output that is NaN in step {step} of rank {rank}",
    "sigterm": "SIGTERM in step {step} of rank {rank}",
    "disk": "a full disk at checkpoint {step} of rank {rank}",
}


@dataclass(slots=True)
class Fault:
    """A fault, and whether it has come about."""

    kind: str
    rank: int
    step: int
    done: bool = False
    count: int = 0
    depth: int = 0

    def __str__(self) -> str:
        return KINDS[self.kind].format(step=self.step, rank=self.rank)

    def is_due(self) -> bool:
        """Count a step of the rank; whether it is the one."""
        self.count += self.is_here()
        is_due = self.is_here() and not self.done and self.count == self.step
        self.done |= is_due
        return is_due

    def is_here(self) -> bool:
        return control.rank() == self.rank


def fault(text: str) -> Fault:
    """Return the fault of a text.

    >>> str(fault("exception:3:1"))
    'an exception in step 3 of rank 1'
    """
    kind, step, rank = text.split(":")
    return Fault(kind, int(rank), int(step))


def outcome(fault: Fault, finding: Finding | None) -> dict[str, str]:
    row = {"drill": str(fault), "outcome": "", "message": finding.message if finding else ""}
    if not fault.done:
        row["outcome"] = "not reached"
    elif finding is None:
        finite = all(bool(torch.isfinite(each).all()) for used in _used.values() for each in _parameters(used))
        row["outcome"] = "continued" if finite and not differ() else "silently diverged"
        row["message"] = "" if finite else "parameters are not finite"
    elif finding.kind in ("exception", "exit"):
        row["outcome"] = "ended with a clear error"
    else:
        row["outcome"] = "silently diverged" if finding.kind == "ranks diverge" else "hung"
    return row


def arm(fault: Fault) -> None:
    {"nan": _in_output, "short": _in_loader, "disk": _at_save}.get(fault.kind, _at_step)(fault)


def _at_step(fault: Fault) -> None:
    def before(*_: Any) -> None:
        if fault.is_due():
            if fault.kind == "exception":
                raise RuntimeError("drill: an exception in this step")
            _terminate()

    optimizers.register_optimizer_step_pre_hook(before)


def _at_save(fault: Fault) -> None:
    save = torch.save

    def full(*arguments: Any, **settings: Any) -> None:
        if fault.is_due():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(*arguments, **settings)

    torch.save = full


def _terminate() -> None:
    """Do what SIGTERM does: call the rank's handler, or end the rank."""
    handler = control.context().handlers.get(signal.SIGTERM, signal.SIG_DFL)
    if callable(handler):
        handler(signal.SIGTERM, None)
    elif handler == signal.SIG_DFL:
        raise SystemExit(128 + signal.SIGTERM)


def _in_output(fault: Fault) -> None:
    """Make the output of the outermost module NaN."""

    def before(*_: Any) -> None:
        fault.depth += fault.is_here()

    def after(module: Any, inputs: Any, output: Any) -> Any:
        fault.depth -= fault.is_here()
        if fault.depth == 0 and module.training and fault.is_due():
            nan: Any = lambda each: each * math.nan if each.is_floating_point() else each  # noqa: E731
            return tree_map_only(torch.Tensor, nan, output)
        return None

    modules.register_module_forward_pre_hook(before)
    modules.register_module_forward_hook(after)


def _in_loader(fault: Fault) -> None:
    """Leave out the last batch of every epoch."""
    iterate = DataLoader.__iter__

    def shorter(self: Any) -> Iterator[Any]:
        batches, is_here = iterate(self), fault.is_here()
        yield from (batch for batch, _ in pairwise(batches)) if is_here else batches
        fault.done |= is_here

    DataLoader.__iter__ = shorter  # type: ignore[method-assign, assignment]


# Whether replicas stay replicas: parameters that all ranks had in common at their first step, compared at the end.
# Parameters that differ from the first step on are shards, stages or deliberate; those that differ only later have
# diverged without a message.

_first: dict[int, str] = {}  # by rank, at its first step
_used: dict[int, dict[torch.optim.Optimizer, None]] = {}


def differ() -> bool:
    """Whether parameters that the ranks had in common at their first step are different ones now."""
    last = {_digest(used) for used in _used.values()}
    return len(_first) > 1 and len(set(_first.values())) == 1 and len(last) > 1


def diverged() -> Finding | None:
    message = "the ranks had the same parameters at their first step, and have different ones at the end"
    advice = "no rank notices: let every rank apply the same gradients, in the same number of steps"
    return Finding("ranks diverge", message, conclusion=advice) if differ() else None


def _note(optimizer: Any, *_: Any) -> None:
    rank = control.rank()
    if rank is not None and optimizer not in _used.setdefault(rank, {}):
        _used[rank][optimizer] = None
        _first.setdefault(rank, _digest(_used[rank]))


def _parameters(used: Iterable[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Return what this rank holds: of a DTensor its own part, to compute nothing that would be a collective."""
    every = [each.detach() for optimizer in used for group in optimizer.param_groups for each in group["params"]]
    return [getattr(each, "to_local", lambda each=each: each)() for each in every]


def _digest(used: Iterable[torch.optim.Optimizer]) -> str:
    parts = ((str(each.shape), each.cpu().reshape(-1).view(torch.uint8)) for each in _parameters(used))
    return hashlib.sha256(b"".join(shape.encode() + data.numpy().tobytes() for shape, data in parts)).hexdigest()


def install() -> None:
    optimizers.register_optimizer_step_pre_hook(_note)
