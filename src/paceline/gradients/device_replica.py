"""A replica whose parameters are at home in the host's memory, which workers share, and whose module computes on a
device that does not share it.

    home, in shared memory                          the device
    parameters ──▶ pinned, one run of numbers ──▶ one run, of which the module's parameters are views
                                                      │ forward, backward
    gradients  ◀── pinned, one run of numbers ◀───────┘

Servers, meetings, codecs, optimizers and checkpoints work at home and never learn of it. Several workers may compute on
one device.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paceline.core.agenda import Chunk
from paceline.gradients.replica import Replica
from paceline.jobs.job import Batch, Job
from paceline.parameters.rows import coalesced


class DeviceReplica(Replica):
    def __init__(
        self, job: Job, module: nn.Module, moving: tuple[str, ...], device: torch.device, kind: type[Replica] = Replica
    ) -> None:
        super().__init__(job, module, moving)
        self.there = kind(job, copy.deepcopy(module), moving, device)
        self._crossing = HostDeviceCopy(self.parameters, self.there.parameters)
        self._stale = True  # whether the module there has other parameters than are at home

    def backward(self, chunk: Chunk, batch: Batch, weight: float) -> float:
        if self._stale:
            self._crossing.go()
            self._stale = False
        # Buffers are few, and each chunk begins with those of home.
        for here, there in zip(self.moving, self.there.moving, strict=True):
            there.copy_(here, non_blocking=True)
        loss = self.there.backward(chunk, batch, weight)
        for here, there in zip(self.moving, self.there.moving, strict=True):
            here.copy_(there)
        return loss

    def take(self) -> list[Tensor | None]:
        self._stale = True
        return self._crossing.come_back([coalesced(g) for g in self.there.take()])


class HostDeviceCopy:
    """Between tensors at home and the same on a device, packed by their type: one copy for each."""

    def __init__(self, here: Sequence[nn.Parameter], there: Sequence[nn.Parameter]) -> None:
        self.here, self.device = here, there[0].device
        kinds = dict.fromkeys(p.dtype for p in here)
        self.packs = [Pack([(n, p) for n, p in enumerate(here) if p.dtype == kind], self.device) for kind in kinds]
        for pack in self.packs:
            for number, view in pack.landed.items():
                there[number].data = view

    def go(self) -> None:
        """Parameters, as they are at home now."""
        for pack in self.packs:
            torch._foreach_copy_(list(pack.outward.values()), [self.here[n].detach() for n in pack.outward])
            pack.landed.flat.copy_(pack.outward.flat, non_blocking=True)

    def come_back(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients, in memory that is the caller's."""
        found = [g.to("cpu") if g is not None and g.is_sparse else None for g in gradients]
        dense = {n: g for n, g in enumerate(gradients) if g is not None and not g.is_sparse}
        for pack in self.packs:
            mine = [n for n in pack.leaving if n in dense]
            if mine:
                torch._foreach_copy_([pack.leaving[n] for n in mine], [dense[n] for n in mine])
                pack.homeward.copy_(pack.leaving.flat, non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        for pack in self.packs:
            arrived = Views(pack.homeward.clone(), pack.members)
            for number in arrived.keys() & dense.keys():
                found[number] = arrived[number]
        return found


class Views(dict[int, Tensor]):
    """Tensors by number, laid over one run of numbers, each on a cache line of its own: so kernels give the same bits
    as over memory of their own.
    """

    def __init__(self, flat: Tensor, members: Sequence[tuple[int, Tensor]]) -> None:
        self.flat, start = flat, 0
        for number, like in members:
            self[number] = flat[start : start + like.numel()].view(like.shape)
            start += padded(like)


class Pack:
    """What crosses of one type: on the host in memory that a GPU may read and write by itself."""

    def __init__(self, members: list[tuple[int, Tensor]], device: torch.device) -> None:
        self.members = members
        size, kind = sum(padded(like) for _, like in members), members[0][1].dtype
        pinned = device.type == "cuda"
        self.outward = Views(torch.empty(size, dtype=kind, pin_memory=pinned), members)
        self.landed = Views(torch.empty(size, dtype=kind, device=device), members)
        self.leaving = Views(torch.empty(size, dtype=kind, device=device), members)
        self.homeward = torch.empty(size, dtype=kind, pin_memory=pinned)


def padded(tensor: Tensor) -> int:
    """Its numbers, up to the next cache line."""
    line = 64 // tensor.element_size()
    return -(-tensor.numel() // line) * line
