"""The part of a model that a worker stores: the model's own modules, with parts of tensors in place of tensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from paceline.core.splits import Box, Placement
from paceline.core.splits.derivation import PARAMETER, Program


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


def sliced(module: nn.Module, program: Program, place: int) -> nn.Module:
    """Return a copy of the module in which parameters and buffers are the parts that a worker stores."""
    memo: dict[int, object] = {}
    for name, parameter in module.named_parameters():
        mine = _stored(name, parameter.detach(), program, place)
        memo[id(parameter)] = nn.Parameter(mine, parameter.requires_grad)
    for name, buffer in module.named_buffers():
        memo[id(buffer)] = _stored(name, buffer, program, place)
    return copy.deepcopy(module, memo)


def _stored(name: str, tensor: Tensor, program: Program, place: int) -> Tensor:
    placed = program.stored.get(name)
    return tensor.clone() if placed is None else part(tensor, placed, program.shapes[PARAMETER + name], place).clone()


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


def assembled(parts: Sequence[Tensor], placed: Placement, shape: Sequence[int], whole: Sequence[int]) -> Tensor:
    """Return the whole tensor of the parts of all workers of a group."""
    if not placed.is_split:
        return parts[0].clone()
    found = torch.empty(placed.extent(shape), dtype=parts[0].dtype)
    for place, mine in enumerate(parts):
        window(found, placed.box(shape, place)).copy_(mine)
    return found.reshape(tuple(whole))
