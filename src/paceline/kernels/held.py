"""Parameters that a forward takes in another shape or order, or by their first rows."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, nn

from paceline.kernels.arguments import flat, without_samples
from paceline.kernels.layers.base import BATCH, CallSite, CannotFuse, Held


def changed(parameter: Held, target: Any, args: list[Any]) -> Held | None:
    """A parameter in another shape or order, or its first rows; None where that is another function of it."""
    if target in (operator.getitem, "getitem"):
        return _cut(parameter, args[0] if isinstance(args[0], tuple) else (args[0],))
    if target == "expand":
        sizes = flat(args)
        padded_shape = (*[1] * (len(sizes) - len(parameter.shape)), *parameter.shape)
        if any(
            size not in (-1, n) and not (size is BATCH and n == 1) for size, n in zip(sizes, padded_shape, strict=True)
        ):
            return None
        return (
            parameter
            if padded_shape == parameter.shape
            else Held(parameter.name, padded_shape, parameter.tensor, padded_shape)
            if parameter.whole
            else None
        )
    if target in ("view", "reshape", "unsqueeze", "flatten") and parameter.whole:
        view = tuple(getattr(parameter.tensor, str(target))(*without_samples(args)).shape)
        return Held(parameter.name, view, parameter.tensor, view)
    if target in ("t", "transpose", "permute", "mT") and (parameter.whole or parameter.view is not None):
        marks = torch.empty(
            [2 + d for d in range(len(parameter.shape))], device="meta"
        )  # each dimension has a size of its own
        turned = marks.mT if target == "mT" else getattr(marks, str(target))(*args)
        places = [size - 2 for size in turned.shape]
        before = parameter.order or tuple(range(len(places)))
        shape = tuple(parameter.shape[p] for p in places)
        return Held(parameter.name, shape, parameter.tensor, parameter.view, tuple(before[p] for p in places))
    return None


def _cut(parameter: Held, cuts: tuple[Any, ...]) -> Held | None:
    """The first rows of a parameter, p[:, :n], or one with dimensions of one number more, p[:, None]."""
    if parameter.order is not None or parameter.view is not None:
        return None
    if all(isinstance(cut, slice) and not cut.start and cut.step in (None, 1) for cut in cuts):
        ends = [n if cut.stop is None else min(n, cut.stop) for cut, n in zip(cuts, parameter.shape, strict=False)]
        return Held(parameter.name, (*ends, *parameter.shape[len(ends) :]), parameter.tensor)
    if parameter.whole and all(cut is None or cut == slice(None) for cut in cuts):
        dimensions = iter(parameter.shape)
        view = (*(1 if cut is None else next(dimensions) for cut in cuts), *dimensions)
        return Held(parameter.name, view, parameter.tensor, view)
    return None


def positions(site: CallSite, part: nn.Embedding, tokens: Tensor) -> Held:
    """The rows of an embedding that every sample gets: those of its positions."""
    count = tokens.shape[-1] if tokens.dim() else 0
    if tokens.numel() != count or not torch.equal(tokens.flatten().cpu(), torch.arange(count)):
        raise CannotFuse(f"{site.what} gets numbers that are the same for all samples, but not 0, 1, 2, ...")
    if count > part.num_embeddings:
        raise CannotFuse(f"{site.what} has {part.num_embeddings} rows, and gets {count} positions")
    return Held(f"{site.path}.weight", (count, part.embedding_dim), part.weight)
