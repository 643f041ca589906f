"""How ranks that know only a store come to share a board: rank 0 makes the memory, the others open it through /proc.

    rank 0    makes a memfd                    says to the store: machine, process, descriptor
    others    open /proc/PROCESS/fd/DESCRIPTOR
    all       say whether it went well, and read what all others said; so all come to the same conclusion

The memory has no name: it ends with the last process that looks at it.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from paceline.errors import RankMissing
from paceline.links.rendezvous import machine
from paceline.links.shared_memory import Memory
from paceline.links.store_order import lacking


def unfit() -> str:
    """Why this process cannot take part, whatever the others are."""
    if sys.platform != "linux":
        return f"runs on {sys.platform}, not on Linux"
    if trouble := lacking():
        return trouble
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        return f"cannot watch processes (pidfd_open: {error})"
    return ""


def share(store: Store, rank: int, ranks: int, size: int, timeout: timedelta) -> tuple[Memory, list[int]] | str:
    """The memory and everybody's process number; or why there is none, in the same words on all ranks."""
    memory, trouble = None, unfit()
    if rank == 0:
        place: dict[str, Any] = {}
        if not trouble:
            memory = Memory(size)
            place = {"machine": machine(), "process": os.getpid(), "descriptor": memory.descriptor, "size": memory.size}
        store.set("board", json.dumps(place))
    else:
        place = _get(store, "board", rank, 0, timeout)
        if place and not trouble:
            memory, trouble = _open(place)
    store.set(f"rank {rank}", json.dumps({"process": os.getpid(), "trouble": trouble}))
    said = [_get(store, f"rank {other}", rank, other, timeout) for other in range(ranks)]
    if memory is not None:
        memory.close()
    troubles = [f"rank {other} {one['trouble']}" for other, one in enumerate(said) if one["trouble"]]
    if troubles or memory is None:
        return troubles[0]
    return memory, [one["process"] for one in said]


def forget(store: Store, ranks: int) -> None:
    for key in ("board", *(f"rank {rank}" for rank in range(ranks))):
        store.delete_key(key)


def _get(store: Store, key: str, rank: int, other: int, timeout: timedelta) -> Any:
    try:
        store.wait([key], timeout)
    except dist.DistError as error:
        raise RankMissing(
            f"rank {rank} waited in the making of a process group for rank {other}, which did not come within "
            f"{timeout.total_seconds():.1f} s. Look at what rank {other} printed last"
        ) from error
    return json.loads(store.get(key))


def _open(place: dict[str, Any]) -> tuple[Memory | None, str]:
    if place["machine"] != machine():
        return None, "is on another machine, or in another container, than rank 0"
    try:
        descriptor = os.open(f"/proc/{place['process']}/fd/{place['descriptor']}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return None, f"may not open the memory of rank 0 ({error.strerror})"
    return Memory.of(descriptor, int(place["size"])), ""
