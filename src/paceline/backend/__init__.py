"""Our meetings as a torch.distributed backend: `import paceline.backend`, then `init_process_group("paceline")`.

    rank 0   copies its input into its slot ─┐                 ┌─ adds the others' slots to its own
    rank 1   copies its input into its slot ─┼─ all have come ─┼─ ...
    rank 2   copies its input into its slot ─┘                 └─ ...

    calls         what was called, packed into one integer; how it is told; where the user called it
    board         the shared memory of a group: who came to which round with which call, and everybody's slots
    futex         sleeping on an integer in shared memory
    collectives   the arithmetic over slots
    mail          send and receive
    rendezvous    how ranks that know only a store come to share a board
    group         the process group: a thin method per operation
"""

import torch.distributed as dist

from paceline.backend.group import create

__all__ = ["NAME"]

NAME = "paceline"

dist.Backend.register_backend(NAME, create, extended_api=False, devices=["cpu"])
