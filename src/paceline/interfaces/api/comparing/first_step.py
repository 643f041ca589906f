"""`verify_script`: the first step of a script's processes beside what one process would do with all of their samples.

Nothing in the script is changed: `gloo_shim.first_step` records one step in each process. One process that takes the
mean loss over all samples would apply the mean of the processes' own gradients, weighted by their samples; it has
one set of parameters, buffers and settings. What the processes have done otherwise is named in the order in which it
happened, with the first layer or parameter.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.errors import RunFailed, UsageError
from paceline.interfaces.api.comparing import gloo_shim
from paceline.interfaces.api.comparing.compare_scripts import Command, run_to_end, tail
from paceline.text_table import TextList

TOLERANCE = 1e-4  # of a gradient's norm: other orders of summation differ by less
Recorded = Mapping[str, Any]


@dataclass(frozen=True)
class StepDifference:
    """What the processes do otherwise than one process would."""

    #: before, output, gradient, settings or after.
    stage: str
    #: The module, parameter, buffer or setting.
    name: str
    ranks: tuple[int, ...]
    what: str


@dataclass
class StepVerification:
    """The first step of a script's processes."""

    script: str
    #: By rank.
    samples: list[int]
    differences: list[StepDifference] = field(default_factory=list)

    @property
    def same(self) -> bool:
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {**asdict(self), "same": self.same}

    def __str__(self) -> str:
        lines = {"processes": f"{len(self.samples)}, with {', '.join(map(str, self.samples))} samples"}
        if self.same:
            lines["step"] = "as one process would make it, to rounding"
        for number, each in enumerate(self.differences):
            lines[f"{'first' if not number else 'then'} {each.stage}" + " " * number] = f"{each.name}: {each.what}"
        return str(TextList("The first step", lines))


def verify_script(script: str, workers: int = 2, *, seconds: float = 120.0) -> StepVerification:
    """Run a script up to its first step, and compare its processes with each other and with one process.

    Args:
        script: A Python file and its arguments, started by torchrun; or a command that starts the processes itself.
        workers: The number of processes.
        seconds: How long the script may take.
    """
    if workers < 2:
        raise UsageError(f"workers={workers}: processes are compared with each other; give 2 or more")
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        output = _first_step(script, workers, folder, seconds)
        files = sorted(Path(folder).glob("*.pt"), key=lambda file: int(file.stem))
        if len(files) < workers:
            raise RunFailed(
                f"{script}: {len(files)} of {workers} processes made a step of a torch.optim optimizer. Its last "
                f"output:\n{tail(output)}"
            )
        ranks: list[Recorded] = [torch.load(file, map_location="cpu", weights_only=True) for file in files]
    return StepVerification(script, [rank["samples"] for rank in ranks], list(differences(ranks)))


def _first_step(script: str, workers: int, folder: str, seconds: float) -> str:
    """Run a script until every process has made a step; return what it printed. No process is left behind."""
    places = [str(Path(gloo_shim.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "PACELINE_FIRST_STEP": folder}
    _, output = run_to_end(Command.parse(script).of(workers), environment, seconds, f"{script}: no step")
    return output


def differences(ranks: Sequence[Recorded]) -> Iterator[StepDifference]:
    """Yield what the processes do otherwise than one, in the order in which it happens: the first of each stage."""
    for kind, cause in (("parameters", "another seed, or no broadcast"), ("buffers", "no broadcast")):
        if (difference := _apart(ranks, kind)) is not None:
            yield StepDifference("before", *difference, f"has other values before the step: {cause}")
    for name, kinds in ranks[0]["types"].items():
        others = tuple(n for n, rank in enumerate(ranks) if rank["types"].get(name) != kinds)
        if others:
            variants = " and ".join(dict.fromkeys(" or ".join(rank["types"].get(name, ["nothing"])) for rank in ranks))
            yield StepDifference("output", name or "the model", others, f"returns {variants}")
            break
    if (gradient := _gradient(ranks)) is not None:
        yield gradient
    for number, group in enumerate(ranks[0]["settings"]):
        for key, value in group.items():
            values = [rank["settings"][number].get(key) for rank in ranks]
            if any(each != value for each in values):
                others = tuple(n for n, each in enumerate(values) if each != value)
                yield StepDifference("settings", f"group {number}, {key}", others, " and ".join(map(str, values)))
                break
    if (difference := _apart(ranks, "after")) is not None:
        yield StepDifference("after", *difference, "has other values after the step")


def _apart(ranks: Sequence[Recorded], kind: str) -> tuple[str, tuple[int, ...]] | None:
    """Return the first tensor that has not the same bits everywhere, and the ranks that differ from the first."""
    for name, tensor in ranks[0][kind].items():
        others = tuple(n for n, rank in enumerate(ranks) if not _equal(tensor, rank[kind].get(name)))
        if others:
            return name, others
    return None


def _equal(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def _gradient(ranks: Sequence[Recorded]) -> StepDifference | None:
    """Return the first parameter whose gradient is not that of one process, and what it is instead."""
    samples = torch.tensor([float(rank["samples"]) for rank in ranks])
    count = len(ranks)
    for name in ranks[0]["gradients"]:
        applied, local_gradients = ([rank[kind].get(name) for rank in ranks] for kind in ("gradients", "local"))
        if all(each is None for each in local_gradients):
            continue  # parameters of the outermost module that are sharded, which are not watched
        if any(each is None for each in (*applied, *local_gradients)):
            missing = tuple(n for n in range(count) if applied[n] is None or local_gradients[n] is None)
            return StepDifference("gradient", name, missing, "has none, and elsewhere it has one")
        mine = torch.stack([each.double() for each in local_gradients])
        weights = (samples / samples.sum()).double().view(-1, *[1] * (mine.dim() - 1))
        weighted, plain = (mine * weights).sum(0), mine.mean(0)
        wrong = tuple(n for n, each in enumerate(applied) if not _near(each, weighted))
        if not wrong:
            continue
        first = applied[wrong[0]]
        if _near(first, plain):
            what = f"is the mean over processes, and not over samples: they have {samples.int().tolist()}"
        elif _near(first, mine[wrong[0]]):
            what = "is the process's own: it was not summed with those of the others"
        elif _near(first, mine.sum(0)):
            what = "is the sum over processes, and not the mean over samples"
        else:
            what = "is not the mean of the gradients that the processes have computed"
        return StepDifference("gradient", name, wrong, what)
    return None


def _near(one: Tensor, other: Tensor) -> bool:
    return bool((one.double() - other).norm() <= TOLERANCE * other.norm() + 1e-12)
