"""Drills: one fault on one rank, and what the others make of it.

It *ended with a clear error* (a launcher stops the other ranks then), *continued*, *hung*, or *silently diverged*: it
ended as if nothing had happened, but the ranks' parameters differ or are not finite.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader

from paceline.concurrency.explore.finding import Finding
from paceline.concurrency.explore.interpose import control
from paceline.concurrency.explore.ranks import replicas

KINDS = {
    "exception": "an exception in step {step} of rank {rank}",
    "short": "a loader with one batch fewer on rank {rank}",
    "nan": "an output that is NaN in step {step} of rank {rank}",
    "sigterm": "SIGTERM in step {step} of rank {rank}",
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
        if self.done or not self._is_here():
            return False
        self.count += 1
        self.done = self.count == self.step
        return self.done

    def _is_here(self) -> bool:
        return control.rank() == self.rank


def fault(text: str, ranks: int) -> Fault:
    """Return the fault of KIND, KIND:STEP or KIND:STEP:RANK: in the second step, on the last rank by default.

    >>> str(fault("exception:3", 2))
    'an exception in step 3 of rank 1'
    """
    kind, *numbers = text.split(":")
    step, rank = (*map(int, numbers), *(2, max(0, ranks - 1))[len(numbers) :])
    return Fault(kind, rank, step)


def outcome(fault: Fault, finding: Finding | None) -> dict[str, str]:
    row = {"drill": str(fault), "outcome": "", "message": finding.message if finding else ""}
    if not fault.done:
        row["outcome"] = "not reached"
    elif finding is None:
        compared = replicas.compare()
        same = compared.finite and (compared.are_equal or not compared.were_equal)
        row["outcome"] = "continued" if same else "silently diverged"
        row["message"] = "" if compared.finite else "parameters are not finite"
    elif finding.kind in ("exception", "exit"):
        row["outcome"] = "ended with a clear error"
    else:
        row["outcome"] = "silently diverged" if finding.kind == "ranks diverge" else "hung"
    return row


def arm(fault: Fault) -> None:
    {"exception": _at_step, "sigterm": _at_step, "nan": _in_output, "short": _in_loader}[fault.kind](fault)


def _at_step(fault: Fault) -> None:
    def before(*_: Any) -> None:
        if fault.is_due():
            if fault.kind == "exception":
                raise RuntimeError("drill: an exception in this step")
            _terminate()

    optimizers.register_optimizer_step_pre_hook(before)


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
        fault.depth += fault._is_here()

    def after(module: Any, inputs: Any, output: Any) -> Any:
        fault.depth -= fault._is_here()
        if isinstance(output, torch.Tensor) and fault.depth == 0 and module.training and fault.is_due():
            return output * float("nan")
        return None

    modules.register_module_forward_pre_hook(before)
    modules.register_module_forward_hook(after)


def _in_loader(fault: Fault) -> None:
    """Leave out the last batch of an epoch."""
    iterate = DataLoader.__iter__

    def shorter(self: Any) -> Iterator[Any]:
        batches = iterate(self)
        if not fault.is_due():
            yield from batches
            return
        following = next(batches, None)
        for batch in batches:
            yield following
            following = batch

    fault.step = 1
    DataLoader.__iter__ = shorter  # type: ignore[method-assign, assignment]
