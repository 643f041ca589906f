"""Gradients computed on a device that does not share the host memory where workers share parameters.

    parameters, in shared memory                    the device
    parameters ──▶ pinned, one run of numbers ──▶ one run, of which the module's parameters are views
                                                      │ forward, backward
    gradients  ◀── pinned, one run of numbers ◀───────┘

Servers, collectives, codecs, optimizers and checkpoints work in host memory and do not know of the device. Several
workers may compute on one device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paceline.algorithms.agenda import Chunk
from paceline.training.data.source import Reader
from paceline.training.gradients.loss import backward_from
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Batch
from paceline.training.parameters.optimizers import Optimizer
from paceline.training.parameters.rows import coalesced

# Gradients in float16: the loss is scaled up so that small gradients do not vanish, and they are scaled down again.
# A scale that is too large makes gradients infinite. The chunk is then computed again with a smaller one, from the same
# chance and buffers. So no update is left out, and a chunk's gradient depends on the chunk alone: a replay gives the
# same bits. PyTorch's GradScaler instead leaves the update out, and remembers its scale.

SCALES = (2.0**16, 2.0**12, 2.0**8, 2.0**4, 1.0)  # powers of two: scaling back is exact


class ScaledAutograd:
    """Computes gradients by PyTorch's autograd, with a scaled loss."""

    calls_modules = True

    def __init__(self) -> None:
        #: The gradients of the chunks so far; None for parameters that got none.
        self._sums: list[Tensor | None] | None = None

    def batch(self, replica: Replica, reader: Reader, chunk: Chunk) -> Batch:
        return reader.batch(chunk)

    def stepper(self, replica: Replica, optimizer: Optimizer) -> None:
        return None

    def backward(self, replica: Replica, chunk: Chunk, batch: Batch, weight: float) -> float:
        if not weight:
            return 0.0  # the loss would be divided by 0
        before = [buffer.clone() for buffer in replica.moving]
        for scale in SCALES:
            for buffer, previous in zip(replica.moving, before, strict=True):
                buffer.copy_(previous)
            loss = replica.forward(replica.module, chunk, batch)
            backward_from(loss, weight * scale)
            gradients = [_taken(parameter) for parameter in replica.parameters]
            if scale == 1.0 or not bool(loss.isfinite()) or _finite(gradients):
                break
        scaled = [None if g is None else g / scale for g in gradients]
        sums = self._sums or [None] * len(scaled)
        self._sums = [_sum(one, other) for one, other in zip(sums, scaled, strict=True)]
        return float(loss.detach())

    def take(self, replica: Replica) -> list[Tensor | None]:
        sums, self._sums = self._sums, None
        return sums or [None] * len(replica.parameters)


def _taken(parameter: Tensor) -> Tensor | None:
    gradient, parameter.grad = parameter.grad, None
    return gradient.coalesce() if gradient is not None and gradient.is_sparse else gradient


def _finite(gradients: list[Tensor | None]) -> bool:
    values = [g.values() if g.is_sparse else g for g in gradients if g is not None]
    return not values or bool(torch.stack([v.isfinite().all() for v in values]).all())


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return one if other is None else other
    return (one + other).coalesce() if other.is_sparse else one + other


class DeviceGradients:
    """Computes the gradients of host parameters by a replica on a device, which is a copy of the same module."""

    calls_modules = True

    def __init__(self, host: Sequence[nn.Parameter], on_device: Replica) -> None:
        self.on_device = on_device
        self._copy = HostDeviceCopy(host, on_device.parameters)
        #: Whether the host's parameters may have changed since they were copied to the device.
        self._stale = True

    def batch(self, replica: Replica, reader: Reader, chunk: Chunk) -> Batch:
        return reader.batch(chunk)

    def backward(self, replica: Replica, chunk: Chunk, batch: Batch, weight: float) -> float:
        if self._stale:
            self._copy.to_device()
            self._stale = False
        # Buffers are few, and each chunk begins with those of the host.
        for host, device in zip(replica.moving, self.on_device.moving, strict=True):
            device.copy_(host, non_blocking=True)
        loss = self.on_device.backward(chunk, batch, weight)
        for host, device in zip(replica.moving, self.on_device.moving, strict=True):
            host.copy_(device)
        return loss

    def take(self, replica: Replica) -> list[Tensor | None]:
        self._stale = True
        return self._copy.to_host([coalesced(g) for g in self.on_device.take()])

    def stepper(self, replica: Replica, optimizer: Optimizer) -> None:
        return None


class HostDeviceCopy:
    """Copies parameters to a device and gradients back, packed by their type: one copy for each."""

    def __init__(self, host: Sequence[nn.Parameter], on_device: Sequence[nn.Parameter]) -> None:
        self.host, self.device = host, on_device[0].device
        kinds = dict.fromkeys(p.dtype for p in host)
        self.packs = [Pack([(n, p) for n, p in enumerate(host) if p.dtype == kind], self.device) for kind in kinds]
        for pack in self.packs:
            for number, view in pack.landed.items():
                on_device[number].data = view

    def to_device(self) -> None:
        """Copy the parameters as they are on the host now."""
        for pack in self.packs:
            torch._foreach_copy_(list(pack.outward.values()), [self.host[n].detach() for n in pack.outward])
            pack.landed.flat.copy_(pack.outward.flat, non_blocking=True)

    def to_host(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients in host memory that belongs to the caller."""
        copies = [g.to("cpu") if g is not None and g.is_sparse else None for g in gradients]
        dense = {n: g for n, g in enumerate(gradients) if g is not None and not g.is_sparse}
        for pack in self.packs:
            mine = [n for n in pack.leaving if n in dense]
            if mine:
                torch._foreach_copy_([pack.leaving[n] for n in mine], [dense[n] for n in mine])
                pack.arriving.copy_(pack.leaving.flat, non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        for pack in self.packs:
            arrived = Views(pack.arriving.clone(), pack.members)
            for number in arrived.keys() & dense.keys():
                copies[number] = arrived[number]
        return copies


class Views(dict[int, Tensor]):
    """Tensors by number as views of one run of memory.

    Each starts on a cache line of its own, so that kernels give the same bits as over separate memory.
    """

    def __init__(self, flat: Tensor, members: Sequence[tuple[int, Tensor]]) -> None:
        self.flat, start = flat, 0
        for number, like in members:
            self[number] = flat[start : start + like.numel()].view(like.shape)
            start += padded(like)


class Pack:
    """The buffers for all tensors of one type; on the host they are pinned, for a GPU to read and write."""

    def __init__(self, members: list[tuple[int, Tensor]], device: torch.device) -> None:
        self.members = members
        size, kind = sum(padded(like) for _, like in members), members[0][1].dtype
        pinned = device.type == "cuda"
        self.outward = Views(torch.empty(size, dtype=kind, pin_memory=pinned), members)
        self.landed = Views(torch.empty(size, dtype=kind, device=device), members)
        self.leaving = Views(torch.empty(size, dtype=kind, device=device), members)
        self.arriving = torch.empty(size, dtype=kind, pin_memory=pinned)


def padded(tensor: Tensor) -> int:
    """Return a tensor's number of elements, rounded up to a whole cache line."""
    line = 64 // tensor.element_size()
    return -(-tensor.numel() // line) * line
