"""Arguments of traced functions: names of layers, parameters, and values that do not depend on the samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paceline.kernels.ir import FORBIDDEN
from paceline.kernels.layers.base import BATCH, Held

WORDS = ("cpu", "cuda", "none", "tanh", "sum", "mean")  # among arguments, that are no layers' names


@dataclass(frozen=True)
class States:
    """The last states of a recurrent layer: one for each of its layers and directions."""

    source: str
    layers: int
    directions: int
    hidden: int


def flat(values: Any) -> list[Any]:
    """All arguments, those in lists among them."""
    if isinstance(values, dict):
        values = list(values.values())
    return [v for each in values for v in flat(each)] if isinstance(values, tuple | list) else [values]


def without_samples(values: Any) -> Any:
    """Arguments, with 1 in place of the number of samples and buffers as the tensors that they are."""
    if isinstance(values, tuple | list):
        return type(values)(map(without_samples, values))
    if isinstance(values, dict):
        return {key: without_samples(value) for key, value in values.items()}
    return 1 if values is BATCH else values.tensor if isinstance(values, Held) else values


def is_whole(args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a conversion makes whole numbers."""
    types = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.dtype)]
    return any(not t.is_floating_point for t in types)


def finite(values: Tensor) -> Tensor:
    """Numbers, a finite one in place of minus infinity: what is added to scores that do not count."""
    return torch.where(values == -torch.inf, FORBIDDEN, values)


def as_numbers(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keywords of an attention, a mask of truth values among them as what is added to scores."""
    return {
        key: torch.where(value, FORBIDDEN, 0.0) if isinstance(value, Tensor) and value.dtype == torch.bool else value
        for key, value in kwargs.items()
    }


def called(target: Any) -> str:
    """What a traced function is called."""
    return str(getattr(target, "__name__", target))


def depends(argument: Any, *besides: Any) -> bool:
    """Whether anything in these arguments depends on the samples, on how many there are, or on what is trained."""
    if isinstance(argument, tuple | list):
        return any(depends(each, *besides) for each in argument)
    if isinstance(argument, dict):
        return any(depends(each, *besides) for each in argument.values())
    if isinstance(argument, slice):
        return depends([argument.start, argument.stop, argument.step], *besides)
    if isinstance(argument, Held):
        return isinstance(argument.tensor, nn.Parameter)
    return (
        (argument is BATCH and BATCH not in besides)
        or isinstance(argument, States)
        or (isinstance(argument, str) and argument not in WORDS)
    )
