"""Which samples the search sees: a part of the training data for validation, the others for ranges and retraining.

The test data are used once, for the network that was chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from paceline.data.opening import open_source
from paceline.data.source import Source, TensorSource
from paceline.errors import JobError
from paceline.jobs.job import Job

VALIDATION = 0.1  # of the training data
MOST_VALIDATION = 10_000
RANGES = 2_000  # samples from which ranges are taken
SCORES = "compress compares the share of right answers: it needs samples (x, label) with one whole number per label"


@dataclass(frozen=True)
class Samples:
    """Inputs and labels."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Division:
    """The training data, divided."""

    validation: Samples
    ranges: Samples
    #: What retraining sees, in a form that a job takes as `data`.
    training: Any


def divide(job: Job, seed: int) -> Division:
    """Divide a job's training data, by a seed of its own."""
    source = open_source(job.data, job.seed)
    if source.traits.redraws or source.traits.whole:
        raise JobError("no part of the job's data can be kept apart for validation; give tensors or a Dataset")
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))
    kept = min(max(int(len(source) * VALIDATION), 1), MOST_VALIDATION)
    if len(source) - kept < 1:
        raise JobError("the job has one training sample, which cannot be divided; compress needs some for validation")
    rest = order[kept:].sort().values
    ranges = samples_of(source, order[kept : kept + RANGES])
    return Division(samples_of(source, order[:kept]), ranges, _part(source, rest))


def test_samples(job: Job) -> Samples | None:
    """Return the job's test data, if it has some."""
    if job.test is None:
        return None
    source = open_source(job.test, job.seed, "test")
    return samples_of(source, torch.arange(len(source)))


def samples_of(source: Source, numbers: Tensor) -> Samples:
    """Read samples by number."""
    parts = [source.batch(part, 0) for part in numbers.split(1000)]
    if any(not isinstance(part, tuple | list) or len(part) != 2 for part in parts):
        raise JobError(SCORES)
    x, y = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    if y.dim() != 1 or y.is_floating_point() or not x.is_floating_point():
        raise JobError(SCORES)
    return Samples(x, y)


def _part(source: Source, numbers: Tensor) -> Any:
    if isinstance(source, TensorSource):
        return tuple(tensor[numbers] for tensor in source.tensors)
    return _Part(source, numbers.tolist())


class _Part(Dataset[Any]):
    """Some samples of a source."""

    def __init__(self, source: Source, numbers: Sequence[int]) -> None:
        self.source, self.numbers = source, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        return tuple(part[0] for part in self.source.batch(torch.tensor([self.numbers[index]]), 0))
