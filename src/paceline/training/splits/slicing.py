"""The part of a model that a worker stores: the model's own modules, with parts of tensors in place of tensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from paceline.algorithms.splits import Box, Placement
from paceline.algorithms.splits.derivation import PARAMETER, Program


def part(tensor: Tensor, placed: Placement, shape: Sequence[int], place: int) -> Tensor:
    """Return the part of a whole tensor that a worker holds, as a view; `shape` is what the placement refers to."""
    if not placed.is_split:
        return tensor
    return window(tensor.reshape(placed.extent(shape)), placed.box(shape, place))


def window(tensor: Tensor, box: Box, origin: Box | None = None) -> Tensor:
    """Return a box of a tensor; with `origin`, of a tensor that is itself this box of the whole."""
    for dim, (first, stop) in enumerate(box):
        start = first - (origin[dim][0] if origin else 0) if stop > first else 0  # an empty box may lie outside
        if start or stop - first != tensor.shape[dim]:
            tensor = tensor.narrow(dim, start, stop - first)
    return tensor


#: How a parameter or buffer is stored, and the shape that the placement refers to.
Stored = tuple[Placement, tuple[int, ...]]


def stored_by(program: Program) -> dict[str, Stored]:
    """Return how a program's workers store each parameter and buffer, by its name."""
    return {name: (placed, program.shapes[PARAMETER + name]) for name, placed in program.stored.items()}


def sliced(module: nn.Module, stored: Mapping[str, Stored], place: int) -> nn.Module:
    """Return a copy of the module in which parameters and buffers are the parts that a worker stores."""
    memo: dict[int, object] = {}
    for name, parameter in module.named_parameters():
        mine = stored_part(parameter.detach(), stored.get(name), place).clone()
        memo[id(parameter)] = nn.Parameter(mine, parameter.requires_grad)
    for name, buffer in module.named_buffers():
        memo[id(buffer)] = stored_part(buffer, stored.get(name), place).clone()
    return copy.deepcopy(module, memo)


def stored_part(tensor: Tensor, stored: Stored | None, place: int) -> Tensor:
    """Return what a worker stores of a whole tensor, as a view; None: all of it."""
    return tensor if stored is None else part(tensor, *stored, place)


def shapes_of(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the whole parameters and buffers."""
    return {name: tuple(t.shape) for name, t in (*module.named_parameters(), *module.named_buffers())}


def outline(module: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> nn.Module:
    """Return a copy of a sliced module without memory, in which everything has its whole shape.

    The model's code is traced over it, so that a size it asks for is that of the model.
    """
    memo: dict[int, object] = {}
    for name, p in module.named_parameters():
        memo[id(p)] = nn.Parameter(torch.empty(shapes[name], dtype=p.dtype, device="meta"), p.requires_grad)
    for name, b in module.named_buffers():
        memo[id(b)] = torch.empty(shapes[name], dtype=b.dtype, device="meta")
    return copy.deepcopy(module, memo)


def put(full: Tensor, mine: Tensor, stored: Stored | None, place: int) -> None:
    """Write a worker's part into a whole tensor; what all workers have, the first writes."""
    if stored is not None and stored[0].is_split:
        placed, shape = stored
        window(full.view(placed.extent(shape)), placed.box(shape, place)).copy_(mine)
    elif not place:
        full.copy_(mine)


def assembled(parts: Sequence[Tensor], stored: Stored | None, shape: Sequence[int]) -> Tensor:
    """Return the whole tensor, of this shape, from what the workers of a group store of it."""
    if stored is None or not stored[0].is_split:
        return parts[0].clone()
    full = torch.empty(tuple(shape), dtype=parts[0].dtype)
    for place, mine in enumerate(parts):
        put(full, mine, stored, place)
    return full
