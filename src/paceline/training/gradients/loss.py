"""The loss of a batch: by the job's `step`, by its `loss`, or the model's own.

A model has a loss of its own if it returns a tensor of one number, or what has an attribute or a key `loss`, as the
models of transformers do when a batch has `labels`. It is called with the keys of the batch that its `forward` takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from paceline.errors import JobError
from paceline.training.jobs.job import Batch, Job

_NO_LOSS = "neither loss= nor step= is given"
_REMEDY = (
    "give loss=f(output, target) or step=f(model, batch) -> loss, or let the model return its loss. A model of "
    "transformers does when batches have the key 'labels'"
)


def loss_function(job: Job) -> Callable[[nn.Module, Batch], Tensor]:
    """Return the job's `step(model, batch)`, made from `loss` or the model's own loss where the job gives none."""
    if (job_step := job.step) is not None:
        return lambda module, batch: _loss_in(job_step(module, batch))
    loss = job.loss
    if loss is None:
        return lambda module, batch: loss_of(call(module, batch), batch)

    def step(module: nn.Module, batch: Batch) -> Tensor:
        inputs, target = split_batch(batch)
        result: Tensor = loss(module(*inputs), target)
        return result

    return step


def _loss_in(returned: Any) -> Tensor:
    """Return the loss of what `step` returned: a tensor, or a dictionary with the key `loss`, as Lightning takes it."""
    if isinstance(returned, tuple | list):
        raise JobError(
            f"step= returned {len(returned)} values; return one loss, such as their sum. Where one network is trained "
            "against another, as in a GAN, detach in each loss the parameters that it is not for (docs/how-to/data.md)"
        )
    loss: Any = returned.get("loss") if isinstance(returned, Mapping) else returned
    if loss is None and returned is not None:
        raise JobError(
            f"step= returned a dictionary of {', '.join(map(str, returned))}; return one loss, such as "
            "sum(losses.values()), or a dictionary that has it as 'loss'"
        )
    return loss  # type: ignore[no-any-return]  # which is checked before the training


def split_batch(batch: Batch) -> tuple[tuple[Any, ...], Any]:
    """Return a batch's inputs and its target."""
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise JobError(
            "loss=f(output, target) needs batches (*inputs, target); for batches of another shape give "
            "step=f(model, batch) -> loss instead"
        )
    return tuple(batch[:-1]), batch[-1]


def call(module: nn.Module, batch: Batch) -> Any:
    """Call a model with a batch: a dictionary's keys are arguments, as far as the model takes them."""
    if isinstance(batch, Mapping):
        return module(**{key: value for key, value in batch.items() if _takes(module, str(key))})
    inputs = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    try:
        inspect.signature(module.forward).bind(*inputs)
    except TypeError as error:
        raise JobError(f"{_NO_LOSS}, and the model cannot be called with a whole batch: {error}; {_REMEDY}") from None
    return module(*inputs)


def loss_of(output: Any, batch: Batch) -> Tensor:
    """Return the loss that a model returned for a batch."""
    loss: Tensor | None = _part(output, "loss")
    if loss is None and isinstance(output, Tensor) and output.dim() == 0:
        loss = output
    if loss is None:
        keys = f" for a batch of {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else ""
        raise JobError(
            f"{_NO_LOSS}, and the model returned {type(output).__name__} without a loss of its own{keys}; {_REMEDY}"
        )
    return loss


def pair_of(output: Any, batch: Batch) -> tuple[Any, Any] | None:
    """Return the output and target that metrics see of a model with a loss of its own, if they have usual names."""
    logits = _part(output, "logits")
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    return None if logits is None or labels is None else (logits, labels)


def _part(output: Any, name: str) -> Any:
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def _takes(module: nn.Module, name: str) -> bool:
    """Whether the model's `forward` takes an argument of this name."""
    parameters = inspect.signature(module.forward).parameters
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
