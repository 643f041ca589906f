"""`verify` compares two trainings bit by bit: two recorded runs, or a recorded run and a job.

Both are made again side by side, one update at a time, and compared after each. So the first update after which they
differ is the one that made the difference, and what differs then is what it has touched. What was recorded is compared
at the end: a run whose own replay has other bits was disturbed, whatever the other one did.

    verify("runs/a", "runs/b")                        two runs
    verify("runs/a", job)                             a run, and what this job computes in the same order of updates
    verify("runs/a", job, plan="sequential:canonical=8")   the same, by another plan without a server
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.errors import JobWarning, UsageError
from paceline.errors.arguments import check_arguments
from paceline.plans.plan import Plan
from paceline.runtime.engines.outcome import load_values
from paceline.runtime.engines.replay.from_plan import Replayer, RunPart, make_replayer
from paceline.runtime.engines.replay.replay import Prepared, prepare
from paceline.runtime.engines.setup import Setup, set_up
from paceline.runtime.runs.record import RunRecord
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.trace import Trace
from paceline.text_table import Listed, TextList
from paceline.training.jobs.job import Job, threads
from paceline.training.jobs.loading import own_arguments
from paceline.training.parameters.layout import sha256

#: Settings of a record that may explain a difference.
SETTINGS = ("plan", "engine", "compute", "threads", "limit", "data_fingerprint", "initial_sha256")
JOB_SETTINGS = (
    "batch_size",
    "epochs",
    "accumulate_grad_batches",
    "seed",
    "precision",
    "device",
    "optimizer",
    "gradient_clip_norm",
    "shuffle",
    "on_nan",
    "samples",
    "parameters",
)
MACHINE = ("processor", "max_cpu_isa", "torch", "numpy", "paceline")


@dataclass(frozen=True)
class Element:
    """The first number of the first tensor that differs, in both trainings."""

    tensor: str
    index: tuple[int, ...]
    values: tuple[float, float]


@dataclass
class Verification(Listed):
    """Where two trainings differ, if they do."""

    #: Whether all that could be compared has the same bits.
    same: bool
    #: The updates that were compared.
    updates: int
    #: The update after which they first differ, counted from 0; -1: before the first; None: they do not differ.
    update: int | None = None
    first: Element | None = None
    #: Of each tensor that differs after this update: how many numbers do, and by how much at most.
    tensors: dict[str, tuple[int, float]] = field(default_factory=dict)
    #: What differs in the settings of the two.
    settings: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    #: What else was found, as sentences.
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            "same": self.same,
            "updates": self.updates,
            "update": self.update,
            "tensor": self.first and self.first.tensor,
            "index": self.first and list(self.first.index),
            "values": self.first and list(self.first.values),
            "tensors": {name: {"numbers": count, "largest": most} for name, (count, most) in self.tensors.items()},
            "settings": {name: list(pair) for name, pair in self.settings.items()},
            "notes": self.notes,
        }

    def _listed(self) -> TextList:
        lines = {"compared": f"{self.updates:,} updates"}
        if self.update is not None:
            lines["first"] = "before the first update" if self.update < 0 else f"update {self.update}"
        if self.first is not None:
            place = f"[{', '.join(map(str, self.first.index))}]" if self.first.index else ""
            one, other = self.first.values
            lines["at"] = f"{self.first.tensor}{place}: {one!r} and {other!r}"
        for name, (count, most) in self.tensors.items():
            lines[f"  {name}"] = f"{count:,} numbers differ, by at most {most:.3g}"
        for name, (left, right) in self.settings.items():
            lines[f"setting {name}"] = f"{left} and {right}"
        lines |= {f"note {number}" * (number > 0) or "note": text for number, text in enumerate(self.notes)}
        return TextList("The same bits" if self.same else "Different bits", lines)


@dataclass
class _Side:
    """One of the two trainings."""

    name: str
    setup: Setup
    replayer: Replayer
    threads: int
    record: RunRecord | None

    def steps(self) -> Iterator[None]:
        """Make one version after another."""
        versions = self.replayer.replay(None)
        while True:
            with threads(self.threads):
                if next(versions, None) is None:
                    return
            yield

    def values(self) -> dict[str, Tensor]:
        return dict(zip(self.setup.names, self.replayer.values(), strict=True))


@own_arguments()
def verify(
    run: Run | str | Path,
    other: Run | Job | str | Path,
    *,
    plan: str | Plan | None = None,
    data: Any = None,
) -> Verification:
    """Compare two trainings bit by bit, and name the first update, tensor and element at which they differ.

    Args:
        run: A recorded run, or its folder.
        other: Another one, or a job.
        plan: The plan that the job is trained by, if not by the run's own. Both have to be plans whose workers keep
            step.
        data: The data, where a folder could not keep them.
    """
    check_arguments(verify, locals())
    if plan is not None and not isinstance(other, Job):
        raise UsageError("plan= is for a job; a recorded run has its own")
    recorded = prepare(run, data)
    one = _side("the first", recorded)
    two = _trained(other, plan, recorded) if isinstance(other, Job) else _side("the second", prepare(other, data))
    verification = _compared(one, two)
    verification.settings = _settings(one, two)
    return verification


def _side(name: str, prepared: Prepared) -> _Side:
    setup, trace, lives, record = prepared
    with threads(record.threads):
        return _Side(name, setup, make_replayer(setup, trace, lives), record.threads, record)


def _trained(job: Job, plan: str | Plan | None, recorded: Prepared) -> _Side:
    """Return the training of a job in the order of updates of a recorded run."""
    before, trace, lives, record = recorded
    chosen = before.plan if plan is None else Plan.parse(plan)
    if plan is not None:
        if not (before.plan.traits.synchronous and chosen.traits.synchronous):
            raise UsageError(
                f"the order of updates of plan {before.plan} is that of its own workers, which plan {chosen} has not; "
                "leave plan= out"
            )
        trace, lives = Trace.of([]), [RunPart(chosen)]
    with threads(chosen.threads), warnings.catch_warnings():
        warnings.simplefilter("ignore", JobWarning)
        compute = record.compute if job.compute == "auto" else job.compute
        setup = set_up(job.with_(compute=compute), chosen, "replay", before.limit, bounded=True)
        return _Side("the job", setup, make_replayer(setup, trace, lives), chosen.threads, None)


def _compared(one: _Side, two: _Side) -> Verification:
    """Make both trainings again side by side, up to the first difference."""
    if one.setup.names != two.setup.names:
        only = sorted(set(one.setup.names) ^ set(two.setup.names)) or ["the order of parameters"]
        return Verification(False, 0, -1, notes=[f"they train other tensors: {', '.join(only[:8])}"])
    verification = _difference(one, two, 0, -1)
    updates = 0
    steps = zip(one.steps(), two.steps(), strict=False)
    while verification is None and next(steps, None) is not None:
        updates += 1
        verification = _difference(one, two, updates, updates - 1)
    if verification is not None:
        return verification
    result = Verification(True, updates)
    if (ends := (one.replayer.last, two.replayer.last))[0] != ends[1]:
        result.same = False
        result.notes.append(f"one training has {ends[0]} updates and the other {ends[1]}; those that both have agree")
    for side in (one, two):
        if (summary := side.record and side.record.summary) and side.replayer.done == side.replayer.last:
            again = sha256(load_values(side.setup, side.replayer.values()))
            if again != summary.parameters_sha256:
                result.same = False
                result.notes.append(
                    f"{side.name} run was recorded with parameters {summary.parameters_sha256[:16]}, and its own "
                    f"replay gives {again[:16]}: what disturbed it is not in its job; `paceline replay` says more"
                )
    return result


def _difference(one: _Side, two: _Side, updates: int, update: int) -> Verification | None:
    """Compare all tensors; None if they have the same bits."""
    theirs, first, tensors = two.values(), None, dict[str, tuple[int, float]]()
    for name, mine in one.values().items():
        other = theirs[name]
        if mine.shape != other.shape or mine.dtype != other.dtype:
            note = f"{name} is {mine.dtype} of shape {tuple(mine.shape)}, and {other.dtype} of {tuple(other.shape)}"
            return Verification(False, updates, update, notes=[note])
        apart = _apart(mine, other)
        if not bool(apart.any()):
            continue
        if first is None:
            index = tuple(int(n) for n in apart.nonzero()[0]) if apart.dim() else ()
            first = Element(name, index, (float(mine[index]), float(other[index])))
        tensors[name] = int(apart.sum()), float((mine.double() - other.double()).abs().max())
    return Verification(False, updates, update, first, tensors) if first is not None else None


def _apart(mine: Tensor, other: Tensor) -> Tensor:
    """Return which numbers have other bits; NaNs are one."""
    apart = mine != other
    if mine.is_floating_point():
        apart = apart & ~(mine.isnan() & other.isnan()) | (torch.signbit(mine) != torch.signbit(other))
    return apart


def _settings(one: _Side, two: _Side) -> dict[str, tuple[Any, Any]]:
    """Return what differs in the settings of the two trainings."""
    left, right = _described(one), _described(two)
    return {name: (value, right[name]) for name, value in left.items() if name in right and value != right[name]}


def _described(side: _Side) -> dict[str, Any]:
    setup, job, record = side.setup, side.setup.users_job, side.record
    if record is None:
        return {
            "plan": str(setup.plan),
            "data_fingerprint": setup.source.fingerprint(),
            "initial_sha256": setup.initial_sha256,
            **{name: getattr(job, name) for name in JOB_SETTINGS if name not in NOT_OF_A_JOB},
        }
    return {
        **{name: getattr(record, name) for name in SETTINGS},
        **{name: getattr(record.job, name) for name in JOB_SETTINGS},
        **{f"machine {name}": getattr(record.machine, name) for name in MACHINE},
    }


#: Settings of which a job has something else than its record, or nothing.
NOT_OF_A_JOB = ("device", "optimizer", "samples", "parameters", "epochs")
