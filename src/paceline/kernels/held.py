"""Parameters that a forward takes in another shape or order, or by their first rows."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, nn

from paceline.kernels.arguments import flat, without_samples
from paceline.kernels.layers.base import BATCH, CannotFuse, Held, Seen


def changed(held: Held, target: Any, args: list[Any]) -> Held | None:
    """A parameter in another shape or order, or its first rows; None where that is another function of it."""
    if target in (operator.getitem, "getitem"):
        return _cut(held, args[0] if isinstance(args[0], tuple) else (args[0],))
    if target == "expand":
        sizes = flat(args)
        whole = (*[1] * (len(sizes) - len(held.shape)), *held.shape)
        if any(size not in (-1, n) and not (size is BATCH and n == 1) for size, n in zip(sizes, whole, strict=True)):
            return None
        return held if whole == held.shape else Held(held.name, whole, held.tensor, whole) if held.whole else None
    if target in ("view", "reshape", "unsqueeze", "flatten") and held.whole:
        view = tuple(getattr(held.tensor, str(target))(*without_samples(args)).shape)
        return Held(held.name, view, held.tensor, view)
    if target in ("t", "transpose", "permute", "mT") and (held.whole or held.view is not None):
        marks = torch.empty(
            [2 + d for d in range(len(held.shape))], device="meta"
        )  # each dimension has a size of its own
        turned = marks.mT if target == "mT" else getattr(marks, str(target))(*args)
        places = [size - 2 for size in turned.shape]
        before = held.order or tuple(range(len(places)))
        shape = tuple(held.shape[p] for p in places)
        return Held(held.name, shape, held.tensor, held.view, tuple(before[p] for p in places))
    return None


def _cut(held: Held, cuts: tuple[Any, ...]) -> Held | None:
    """The first rows of a parameter, p[:, :n], or one with dimensions of one number more, p[:, None]."""
    if held.order is not None or held.view is not None:
        return None
    if all(isinstance(cut, slice) and not cut.start and cut.step in (None, 1) for cut in cuts):
        ends = [n if cut.stop is None else min(n, cut.stop) for cut, n in zip(cuts, held.shape, strict=False)]
        return Held(held.name, (*ends, *held.shape[len(ends) :]), held.tensor)
    if held.whole and all(cut is None or cut == slice(None) for cut in cuts):
        left = iter(held.shape)
        view = (*(1 if cut is None else next(left) for cut in cuts), *left)
        return Held(held.name, view, held.tensor, view)
    return None


def positions(seen: Seen, part: nn.Embedding, tokens: Tensor) -> Held:
    """The rows of an embedding that every sample gets: those of its positions."""
    count = tokens.shape[-1] if tokens.dim() else 0
    if tokens.numel() != count or not torch.equal(tokens.flatten().cpu(), torch.arange(count)):
        raise CannotFuse(f"{seen.what} gets numbers that are the same for all samples, but not 0, 1, 2, ...")
    if count > part.num_embeddings:
        raise CannotFuse(f"{seen.what} has {part.num_embeddings} rows, and gets {count} positions")
    return Held(f"{seen.path}.weight", (count, part.embedding_dim), part.weight)
