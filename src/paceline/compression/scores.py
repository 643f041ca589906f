"""How good a network is on samples: a score for each one, whose mean is the accuracy.

labels        1 for a right answer, else 0                  the share of right answers
signs         the same for each number of a sample, where the loss is binary cross entropy, of logits or of shares
numbers       1 - squared error / variance of the target    the share of the variance that is explained (R squared)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.compression.samples import Samples

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
