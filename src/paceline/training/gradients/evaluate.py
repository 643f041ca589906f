"""Evaluation of a module on the test data."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from paceline.errors import JobError, RunFailed, users_code
from paceline.training.data.source import Source
from paceline.training.gradients.loss import call, hint, loss_function, loss_of, pair_of, split_batch
from paceline.training.gradients.replica import CPU, to_device
from paceline.training.jobs.job import Batch, Job, seeded_elsewhere
from paceline.training.jobs.metrics import goes_by_batches, numbers

BATCH = 1000
FEW = 16  # samples of a batch in a rehearsal
Pair = tuple[Any, Any]  # (output, target)


@torch.no_grad()
def evaluate(
    job: Job, module: nn.Module, source: Source, device: torch.device = CPU, batches: Sequence[Tensor] | None = None
) -> dict[str, float]:
    """Return test_loss, test_accuracy where the output is one score per class, and the job's own metrics.

    `batches` are the numbers of the samples; by default of all. RunFailed says what the user's own code raises.
    """
    if device != CPU:
        module = copy.deepcopy(module).to(device)
    was_training = module.training
    module.eval()
    metrics, sums, weights = _Metrics(job.metrics, device), dict[str, float](), dict[str, float]()
    size = source.traits.batch_size or BATCH
    for indices in torch.arange(len(source)).split(size) if batches is None else batches:
        with users_code("reading test=", RunFailed):
            batch = to_device(source.batch(indices, 0), device)
        with users_code("the evaluation on test=", RunFailed, hint=partial(_hint, job, batch)):
            samples = _samples(batch) if source.traits.whole else len(indices)
            loss, pair = _loss_and_pair(job, module, batch)
            denominator = samples if job.loss_denominator is None else float(job.loss_denominator(batch))
        scores = {} if loss is None else {"test_loss": (loss, denominator)}
        if pair is not None:
            scores.update({name: (value, samples) for name, value in _accuracy(*pair).items()})
            metrics.update(pair)
        for name, (value, weight) in scores.items():
            sums[name] = sums.get(name, 0.0) + value * weight
            weights[name] = weights.get(name, 0.0) + weight
    custom_metrics = metrics.compute()
    module.train(was_training)
    return {**{name: value / weights[name] for name, value in sums.items()}, **custom_metrics}


def rehearse(job: Job, module: nn.Module, source: Source, device: torch.device = CPU) -> tuple[str, ...]:
    """Evaluate a copy of the module on two small batches; return the names of the figures, or raise JobError.

    What fails on these is tried on the whole test set, as a metric may need more samples, or samples of each class.
    """
    copied = copy.deepcopy(module)
    with torch.random.fork_rng(devices=[]), seeded_elsewhere(job.seed):
        with contextlib.suppress(RunFailed):
            return tuple(evaluate(job, copied, source, device, _few(source)))
        try:
            return tuple(evaluate(job, copied, source, device))
        except RunFailed as error:
            raise JobError(f"before the training, {error}") from error.__cause__


def _few(source: Source) -> Sequence[Tensor]:
    """Return the numbers of a few samples: from all over the test set, which may be sorted, where any can be read."""
    traits = source.traits
    size = (traits.batch_size or BATCH) if traits.whole else FEW
    count = min(len(source), 2 * size)
    numbers = torch.arange(count)
    if not source.arranged:
        numbers = numbers * len(source) // count
    batches: Sequence[Tensor] = numbers.split(size)
    return batches


def _samples(batch: Batch) -> int:
    """Return the number of samples in a batch of the user's own: the first size of its first tensor."""
    return next((len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim()), 1)


def _hint(job: Job, batch: Batch, fault: BaseException) -> str:
    mode = "; the model is in evaluation mode here: if it has no loss then, let step= return None, and give evaluate="
    return hint(fault, batch) + mode * (job.step is not None)


def _loss_and_pair(job: Job, module: nn.Module, batch: Batch) -> tuple[float | None, Pair | None]:
    """Return the loss of a batch, if it has one in evaluation; and its output and target, if the job defines them."""
    if job.evaluate is not None:
        pair = job.evaluate(module, batch)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"evaluate= returned a {type(pair).__name__}, which is not (output, target)")
        loss: Tensor | None = loss_function(job)(module, batch)
        return None if loss is None else float(loss), (pair[0], pair[1])
    if job.step is not None:
        return float(loss_function(job)(module, batch)), None
    if job.loss is None:
        result = call(module, batch)
        return float(loss_of(result, batch)), pair_of(result, batch)
    inputs, target = split_batch(batch)
    output = module(*inputs)
    return float(job.loss(output, target)), (output, target)


class _Metrics:
    """The job's own metrics in one evaluation: functions get the whole test set, objects each batch."""

    def __init__(self, metrics: Mapping[str, Any], device: torch.device) -> None:
        self._metrics = metrics
        self._updated = {name: metric for name, metric in metrics.items() if goes_by_batches(metric)}
        self._keeps = len(self._updated) < len(metrics)
        self._kept: list[Pair] = []
        for name, metric in self._updated.items():
            if isinstance(metric, nn.Module):
                metric.to(device)
            with users_code(f"the metric {name!r}", RunFailed, hint=hint):
                metric.reset()

    def update(self, pair: Pair) -> None:
        for name, metric in self._updated.items():
            with users_code(f"the metric {name!r}", RunFailed, hint=hint):
                metric.update(*pair)
        if self._keeps:
            self._kept.append(pair)

    def compute(self) -> dict[str, float]:
        with users_code("the evaluation on test=", RunFailed):
            pair = _joined(self._kept) if self._kept else (None, None)
        values, samples = dict[str, float](), _samples(pair)
        for name, metric in self._metrics.items():
            with users_code(f"the metric {name!r}", RunFailed, hint=hint):
                value = metric.compute() if goes_by_batches(metric) else metric(*pair)
                if isinstance(value, Tensor) and value.dim() and value.shape[:1] == (samples,):
                    raise TypeError(f"it returned {samples} numbers, one for each sample; let it return their mean")
                values |= numbers(name, value)
        return values


def _joined(parts: list[Any]) -> Any:
    """Return the outputs of several batches as one batch would have given them."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Mapping):
        return {key: _joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(_joined(list(each)) for each in zip(*parts, strict=True))
    shapes = {tuple(part.shape[1:]) if isinstance(part, Tensor) and part.dim() else None for part in parts}
    if len(shapes) > 1 or None in shapes:
        what = f"a {type(first).__name__}" if not isinstance(first, Tensor) else "tensors that differ in shape"
        raise TypeError(
            "a metric that is a function is called with the outputs and targets of all test batches as one, and "
            f"{what} cannot be joined; give an object with update(output, target), compute() and reset() instead"
        )
    return torch.cat(parts)


def _accuracy(output: Any, target: Any) -> dict[str, float]:
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return {}
    if output.dim() != 2 or target.dim() != 1 or target.is_floating_point():
        return {}
    return {"test_accuracy": float((output.argmax(1) == target).float().mean())}
