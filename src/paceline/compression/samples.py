"""Which samples the search sees, a part of the training data for validation, and how good a network is on them.

The test data are used once, for the network that was chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
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


# How good a network is on samples: a score for each one, whose mean is the accuracy.
#
# labels        1 for a right answer, else 0                  the share of right answers
# signs         the same for each number of a sample, where the loss is binary cross entropy, of logits or of shares
# numbers       1 - squared error / variance of the target    the share of the variance that is explained (R squared)

BATCH = 1000
#: Losses of yes or no, and the result from which on it is yes.
BINARY = (
    (nn.BCEWithLogitsLoss, functional.binary_cross_entropy_with_logits, 0.0),
    (nn.BCELoss, functional.binary_cross_entropy, 0.5),
)


@dataclass(frozen=True)
class Score:
    """A score for each sample, from a network's results and the targets."""

    #: What the mean is, with a place for the share.
    says: str
    of: Callable[[Tensor, Tensor], Tensor]

    @torch.no_grad()
    def each(self, module: nn.Module, samples: Samples) -> Tensor:
        """The score of every sample."""
        was_training = module.training
        module.eval()
        results = torch.cat([module(x) for x in samples.x.split(BATCH)])
        module.train(was_training)
        return self.of(results, samples.y).double()


def score_of(loss: object, target: Tensor) -> Score:
    """The score that fits a job's targets and its loss."""
    if not target.is_floating_point():
        return Score("answers {} of {} right", _labels)
    for kind, function, threshold in BINARY:
        if isinstance(loss, kind) or loss is function:
            return Score("answers {} of {} right", partial(_sides, threshold))
    return Score("explains {} of the variance of {}", _numbers)


def _labels(results: Tensor, y: Tensor) -> Tensor:
    return (results.argmax(1) == y).double().reshape(len(y), -1).mean(1)


def _sides(threshold: float, results: Tensor, y: Tensor) -> Tensor:
    return ((results.reshape(y.shape) > threshold) == (y > 0.5)).double().reshape(len(y), -1).mean(1)


def _numbers(results: Tensor, y: Tensor) -> Tensor:
    targets = y.double().reshape(len(y), -1)
    error = (results.double().reshape(targets.shape) - targets).square().mean(1)
    return 1 - error / targets.var(0, unbiased=False).mean().clamp_min(1e-30)


@dataclass(frozen=True)
class Loss:
    """Points of accuracy that one network loses against another one, sample by sample, and their standard error.

    Only samples on which the two differ make the error larger.
    """

    points: float
    error: float = 0.0

    def most(self, confidence: float) -> float:
        """The end of a one-sided interval: the loss on unseen data is at most this, with this confidence."""
        return self.points + NormalDist().inv_cdf(confidence) * self.error


def loss_between(trained: Tensor, candidate: Tensor) -> Loss:
    """Return what is lost between the scores of two networks on the same samples."""
    lost = 100 * (trained - candidate)
    return Loss(float(lost.mean()), float(lost.std(unbiased=False)) / math.sqrt(len(lost)))
