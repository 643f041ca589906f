"""How ranks that know only a store come to share a board: rank 0 makes the memory, the others open it through /proc.

    rank 0    makes a memfd                    says to the store: machine, process, descriptor
    others    open /proc/PROCESS/fd/DESCRIPTOR
    all       say whether it went well, and read what all others said; so all come to the same conclusion

The memory has no name: it ends with the last process that looks at it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch.distributed as dist

from paceline.engines.transports.shared_memory import Memory


def machine() -> str:
    """Processes with the same answer see each other's memory and process numbers."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def share(store: dist.Store, rank: int, ranks: int, size: int) -> tuple[Memory, list[int]] | str:
    """The memory and everybody's process number; or why there is none, in the same words on all ranks."""
    if rank == 0:
        made = Memory(size)
        place = {"machine": machine(), "process": os.getpid(), "descriptor": made.descriptor, "size": made.size}
        store.set("board", json.dumps(place))
    memory, trouble = (made, "") if rank == 0 else _open(json.loads(store.get("board")))
    store.set(f"rank {rank}", json.dumps({"process": os.getpid(), "trouble": trouble}))
    said = [json.loads(store.get(f"rank {other}")) for other in range(ranks)]
    if memory is not None:
        memory.close()
    troubles = [f"rank {other} {one['trouble']}" for other, one in enumerate(said) if one["trouble"]]
    if troubles or memory is None:
        return troubles[0]
    return memory, [one["process"] for one in said]


def forget(store: dist.Store, ranks: int) -> None:
    for key in ("board", *(f"rank {rank}" for rank in range(ranks))):
        store.delete_key(key)


def _open(place: dict[str, str | int]) -> tuple[Memory | None, str]:
    if place["machine"] != machine():
        return None, "is on another machine, or in another container, than rank 0"
    try:
        descriptor = os.open(f"/proc/{place['process']}/fd/{place['descriptor']}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return None, f"may not open the memory of rank 0 ({error.strerror})"
    return Memory.of(descriptor, int(place["size"])), ""
