"""Collectives in shared memory as a torch.distributed backend: `init_process_group("paceline")`.

The way of an all_reduce; the numbers stand as [1] ... [6] at the lines that do each step:

    rank 0                                     the memory of the group                                     rank 1
    ------                                     -----------------------                                     ------
    1 group.allreduce flattens the tensor and makes the collective's steps, a generator                       1
    2 progress.start puts the work into the group's queue and lets it go as far as it can                     2
    3 copies its vector ------------------> slot of rank 0   slot of rank 1 <------------------ copies its vector
    4 says so, with its call -------------> cell of rank 0   cell of rank 1 <------------ says so, with its call
    5 waits until all have arrived, and checks that all came with the same call                               5
    6 adds rank 1's slot to its vector <------------------- X -------------------> adds rank 0's slot to its own

The modules:

    group           the process group: a thin method per operation of torch.distributed
    group_memory    the shared memory of a group: which rank arrived in which round with which call, and all slots; a
                    call as one integer, and where the user called it
    collectives     the arithmetic over slots, and a tensor as a vector of its numbers
    point_to_point  send and receive
    work            the handles of what is under way
    progress        all that is under way in a group; who drives it, a thread where no other waits for it; the messages
                    of what went wrong
    fallback        what gloo and NCCL do in this backend's place

Where paceline is installed, PyTorch itself calls `register` when it is imported, so a script needs no import of ours.
Where this package is imported before PyTorch, that happens in the midst of it: so `register` stands before any import.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = ["NAME", "register"]

NAME = "paceline"


def create(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    """Create a process group. The rest of the backend is imported here, since every `import torch` comes past here."""
    from paceline.runtime.backend.group import create

    return create(store, rank, size, timeout)


def register() -> None:
    """Make the name known to torch.distributed."""
    import torch.distributed as dist

    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=False, devices=["cpu"])


register()
