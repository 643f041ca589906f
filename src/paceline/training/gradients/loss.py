"""The loss of a batch and its backward pass, and what is said when the first batch fails.

A model has a loss of its own if it returns a tensor of one number, or what has an attribute or a key `loss`, as the
models of transformers do when a batch has `labels`. It is called with the keys of the batch that its `forward` takes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward as run_engine

from paceline.errors import JobError
from paceline.training.jobs.job import Batch, Job
from paceline.training.jobs.loaders import described

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


# The backward pass of PyTorch from roots whose gradients are given.
#
# `torch.autograd.backward` compares the shapes of gradients and roots by a module that imports SymPy, which takes more
# than a second in every process, and some microseconds in every pass. The engine in C++ compares them, too.


def backward(roots: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Add what roots with these gradients give to the gradients of what they were computed from."""
    if all(type(root) is Tensor for root in roots):
        run_engine(tuple(roots), tuple(gradients), False, False, (), allow_unreachable=True, accumulate_grad=True)
    else:  # a class of its own may define its backward pass
        torch.autograd.backward(roots, gradients)


def backward_from(loss: Tensor, weight: float = 1.0) -> None:
    """Add weight x gradient of a loss. Seeding the pass with the weight saves scaling the gradients afterwards."""
    if weight == 1.0:
        loss.backward()
    else:
        backward([loss], [torch.full_like(loss, weight)])


def gradients_of(
    inputs: Sequence[Tensor], roots: Sequence[Tensor], gradients: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """Return what roots with these gradients give to each wanted tensor; None for one that they do not depend on."""
    if all(type(root) is Tensor for root in roots):
        return run_engine(tuple(roots), tuple(gradients), False, False, tuple(inputs), True, accumulate_grad=False)
    return torch.autograd.grad(roots, inputs, gradients, allow_unused=True)


# What to say when the first batch fails: what the batch holds, and what to do about the commonest faults.

#: What PyTorch says, and what to do.
REMEDIES = {
    r"expected (target dtype|scalar type) (to be )?Long": (
        "a classification loss takes whole numbers as targets, as by y.long()"
    ),
    r"should be the same|same dtype|[Ee]xpected scalar type|expected m1 and m2|not match weight dtype": (
        "give the inputs the type of the model's parameters, as by x.float(), or x.float() / 255 for images in bytes"
    ),
    r"must be Tensor, not NoneType|'NoneType' object has no": "does forward() of the model end with a return?",
    r"multi-target not supported": "class numbers have one dimension, as by y.squeeze(1)",
    r"Target -?\d+ is out of bounds": (
        "class numbers are 0 to the number of the model's outputs minus 1; correct the labels, or give the model more "
        "outputs"
    ),
    r"`target` to be an int or long tensor": (
        "metrics get targets as the loss does; convert them, as by "
        "evaluate=lambda model, batch: (model(batch[0]), batch[1].long())"
    ),
    r"not (tuple|list)$|got \((tuple|list)\b|'(tuple|list)' object has no attribute": (
        "a batch of tensors is a tuple, also of one: take it apart in step=, as by `x, = batch` or `x, y = batch`"
    ),
    r"default_collate.*NoneType": (
        "let __getitem__ of the Dataset return tensors or numbers, never None, or give a DataLoader with a collate_fn"
    ),
    r"stack expects each tensor to be equal size": (
        "give a DataLoader with a collate_fn that pads the samples of a batch, as by torch.nn.utils.rnn.pad_sequence"
    ),
    r"default_collate": (
        "leave that field out of the samples, or give a DataLoader with a collate_fn that makes batches of them"
    ),
}


def hint(fault: BaseException, batch: Batch = None) -> str:
    """Return the end of a message about a fault: the remedy if one is known, and the batch if there is one."""
    hints = [remedy for pattern, remedy in REMEDIES.items() if re.search(pattern, str(fault))][:1]
    if batch is not None:
        hints.append(f"the batch is {described(batch)}")
    return "".join(f"; {each}" for each in hints)
