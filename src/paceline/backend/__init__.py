"""Our meetings as a torch.distributed backend: `init_process_group("paceline")`.

    rank 0   copies its input into its slot ─┐                 ┌─ adds the others' slots to its own
    rank 1   copies its input into its slot ─┼─ all have come ─┼─ ...
    rank 2   copies its input into its slot ─┘                 └─ ...

    group         the process group: a thin method per operation
    calls         what was called, packed into one integer; how it is told; where the user called it
    vectors       a tensor as a row of numbers
    board         the shared memory of a group: who came to which round with which call, and everybody's slots
    futex         sleeping on an integer in shared memory
    collectives   the arithmetic over slots
    mail          send and receive
    works         the handles: what is under way
    traffic       all that is under way in a group, and who drives it
    mover         a thread for what nobody waits for
    troubles      what is told when ranks do not come together
    rendezvous    how ranks that know only a store come to share a board
    elsewhere     what gloo and NCCL do in our place

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
    """Imports the rest when a group is made, since every `import torch` comes past here where paceline is installed."""
    from paceline.backend.group import create

    return create(store, rank, size, timeout)


def register() -> None:
    import torch.distributed as dist

    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=False, devices=["cpu"])


register()
