"""What other backends do in the place of this one: gloo what it cannot do, and NCCL what lies on a GPU."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d

from paceline.errors import UsageError

_warned: set[str] = set()


def warn_once(what: str) -> None:
    """Warn, but not twice of the same in a process."""
    if what not in _warned:
        _warned.add(what)
        warnings.warn(what, stacklevel=2)


def gloo(store: Store, rank: int, ranks: int, timeout: timedelta) -> Any:
    """Create a gloo group over the same store."""
    group = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, ranks, timeout)
    group._set_sequence_number_for_group()
    return group


def group_of_device(device: str, group: Any, timeout: timedelta) -> Any:
    """Create a group for another device, with the backend that init_process_group was given for it."""
    backends = dict(
        pair.split(":") for pair in distributed_c10d._world.pg_backend_config.get(group, "").split(",") if ":" in pair
    )
    name = backends.get(device)
    if name is None:
        raise UsageError(
            f"the paceline backend is for tensors on the CPU; this one is on {device}. "
            f'Name a backend for it too: init_process_group("cpu:paceline,{device}:nccl")'
        )
    store, rank, ranks = PrefixStore(device, group.get_group_store()), group.rank(), group.size()
    device_group: Any = dist.ProcessGroup(store, rank, ranks)
    if name == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        backend: Any = dist.ProcessGroupNCCL(store, rank, ranks, options)
        kind = dist.ProcessGroup.BackendType.NCCL
    elif name == "gloo":
        backend, kind = gloo(store, rank, ranks, timeout), dist.ProcessGroup.BackendType.GLOO
    else:
        raise UsageError(f"beside the paceline backend, {device} may have nccl or gloo, not {name}")
    device_group._register_backend(torch.device(device), kind, backend)
    device_group._set_default_backend(kind)
    return device_group


class BackendInfo:
    """What torch.distributed asks of the backend behind a group: its name and ranks. Nothing optional is supported."""

    supports_splitting = supports_coalescing = supports_time_estimate = supports_shrinking = False

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks

    def name(self) -> str:
        return "paceline"

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._ranks

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False
