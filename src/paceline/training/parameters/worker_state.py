"""The state of one worker that a checkpoint saves: its replica, its optimizer's state, and the memory of rules, codecs
and coordinators.

Tensors have names such as `values.3` or `optimizer.3.momentum_buffer`, by the parameter's number. What is not a tensor
is a fact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.algorithms.rules import Memory

ALIGN = 64
SETTING = (int, float, str, tuple, list, type(None))  # of a parameter group; anything else is code


@dataclass
class WorkerState:
    """A worker's state as named tensors and facts."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # as JSON has them

    def __or__(self, other: WorkerState) -> WorkerState:
        return WorkerState(self.tensors | other.tensors, self.facts | other.facts)

    def many(self, kind: str) -> list[Tensor]:
        """Return the tensors `kind.0`, `kind.1`, ..."""
        tensors: list[Tensor] = []
        while (tensor := self.tensors.get(f"{kind}.{len(tensors)}")) is not None:
            tensors.append(tensor)
        return tensors

    def only(self, kind: str) -> WorkerState:
        """Return the tensors of this kind alone."""
        return WorkerState({name: t for name, t in self.tensors.items() if name.partition(".")[0] == kind})

    def without(self, kind: str) -> WorkerState:
        """Return everything but the tensors of this kind."""
        return WorkerState({n: t for n, t in self.tensors.items() if n.partition(".")[0] != kind}, self.facts)

    def remembered(self, kind: str, count: int) -> list[Memory]:
        """Return the entries of this kind for each of `count` parameters."""
        memories: list[Memory] = [{} for _ in range(count)]
        for name, tensor in self.tensors.items():
            first, _, rest = name.partition(".")
            if first == kind:
                number, _, key = rest.partition(".")
                memories[int(number)][key] = tensor
        return memories


def state_of_tensors(kind: str, tensors: Sequence[Tensor]) -> WorkerState:
    return WorkerState({f"{kind}.{number}": tensor.detach() for number, tensor in enumerate(tensors)})


def state_of_memories(kind: str, memories: Sequence[Memory]) -> WorkerState:
    return WorkerState(
        {f"{kind}.{n}.{key}": value for n, memory in enumerate(memories) for key, value in memory.items()}
    )


def copy_into(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy saved tensors into the targets; floating-point values of integer tensors are rounded."""
    with torch.no_grad():
        for target, value in zip(targets, sources, strict=True):
            target.copy_(value if target.is_floating_point() or not value.is_floating_point() else value.round())


def restore_memories(memories: Sequence[Memory], worker_state: WorkerState, kind: str) -> None:
    for memory, source in zip(memories, worker_state.remembered(kind, len(memories)), strict=True):
        for key, value in memory.items():
            value.copy_(source[key])


def state_of_optimizer(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> WorkerState:
    """Return the optimizer's state, and the settings of its groups, which some optimizers change."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    elsewhere: list[str] = []  # tensors on another device than the CPU
    for number, parameter in enumerate(parameters):
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{number}.{key}"] = value
                if value.device.type != "cpu":
                    elsewhere.append(f"{number}.{key}")
            else:
                numbers.setdefault(str(number), {})[key] = value
    groups: list[dict[str, Any]] = []
    for number, group in enumerate(optimizer.param_groups):
        settings = {key: value for key, value in group.items() if key != "params"}
        tensors |= {f"setting.{number}.{key}": v for key, v in settings.items() if isinstance(v, Tensor)}
        groups.append({key: value for key, value in settings.items() if isinstance(value, SETTING)})
    return WorkerState(tensors, {"optimizer": numbers, "elsewhere": elsewhere, "settings": groups})


def restore_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], worker_state: WorkerState
) -> None:
    numbers, elsewhere = worker_state.facts["optimizer"], worker_state.facts["elsewhere"]
    for number, memory in enumerate(worker_state.remembered("optimizer", len(parameters))):
        device = parameters[number].device
        state = {
            key: value.to(device) if f"{number}.{key}" in elsewhere else value.clone() for key, value in memory.items()
        }
        if state or str(number) in numbers:
            optimizer.state[parameters[number]] = state | numbers.get(str(number), {})
    groups = optimizer.param_groups
    tensors = worker_state.remembered("setting", len(groups))
    for group, settings, changed in zip(groups, worker_state.facts["settings"], tensors, strict=True):
        group.update({key: type(group[key])(v) if isinstance(v, list) else v for key, v in settings.items()})
        for key, value in changed.items():
            group[key].copy_(value)


class TensorSlot(NamedTuple):
    """The slot of a tensor in a run of bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    def view(self, raw: Tensor) -> Tensor:
        dtype: torch.dtype = getattr(torch, self.dtype)
        size = torch.Size(self.shape).numel() * dtype.itemsize
        return raw[self.start : self.start + size].view(dtype).view(self.shape)


def tensor_slots(tensors: dict[str, Tensor]) -> tuple[list[TensorSlot], int]:
    """Return the slots of tensors that are packed one after the other, and the bytes of all."""
    slots, start = [], 0
    for name, tensor in tensors.items():
        slots.append(TensorSlot(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), start))
        start += -(-tensor.numel() * tensor.element_size() // ALIGN) * ALIGN
    return slots, start


def pack(tensors: Sequence[Tensor], where: Sequence[TensorSlot], raw: Tensor) -> None:
    """Copy tensors into their slots. NumPy does it in this thread; PyTorch would take cores from workers."""
    target = raw.numpy()
    for tensor, slot in zip(tensors, where, strict=True):
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        target[slot.start : slot.start + len(content)] = content


def copied(raw: Tensor) -> Tensor:
    """Return a copy of a run of bytes, made in one thread."""
    return torch.from_numpy(raw.numpy().copy())


def unpacked(raw: Tensor, where: Sequence[TensorSlot]) -> dict[str, Tensor]:
    """Return the tensors in these slots, as views."""
    return {slot.name: slot.view(raw) for slot in where}
