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

from paceline.errors import JobError
from paceline.training.data.opening import open_source
from paceline.training.data.source import Source, TensorSource
from paceline.training.jobs.job import Job

VALIDATION = 0.1  # of the training data, where that is enough
LEAST_VALIDATION, MOST_VALIDATION = 1_000, 10_000
MOST_OF_FEW = 0.3  # of the training data that are too few
RANGES = 2_000  # samples from which ranges are taken
SCORES = "compress compares accuracies: it needs samples (x, target) of one tensor each"


@dataclass(frozen=True)
class Samples:
    """Inputs and targets."""

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
    count = validation_samples(len(source))
    if len(source) - count < 1:
        raise JobError("the job has one training sample, which cannot be divided; compress needs some for validation")
    rest = order[count:].sort().values
    ranges = samples_of(source, order[count : count + RANGES])
    return Division(samples_of(source, order[:count]), ranges, _part(source, rest))


def validation_samples(count: int) -> int:
    """A tenth of the training data, at most 10,000; of few samples more, since few say little about half a point."""
    size = max(int(count * VALIDATION), min(LEAST_VALIDATION, int(count * MOST_OF_FEW)), 1)
    return min(size, MOST_VALIDATION)


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
    if not all(isinstance(tensor, Tensor) for tensor in parts[0]):
        raise JobError(SCORES)
    return Samples(torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]))


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
