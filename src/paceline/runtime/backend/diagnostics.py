"""The messages of what goes wrong between ranks."""

from __future__ import annotations

import time
from collections import Counter

from paceline.runtime.backend import calls
from paceline.runtime.backend.group_memory import ARRIVED, FAILED, LEFT, SITE, GroupMemory

NAMED = 8  # ranks that a message lists by number
SITES_SECONDS = 1.0  # for the others to arrive, and to say where they called from
ADVICE = "Look at what rank {} printed last; if it is only slow, give init_process_group a longer timeout"


def missing(memory: GroupMemory, who: str, other: int, has_left: bool, seconds: float) -> str:
    """Describe a wait for a rank that does not arrive. `who` begins it: "rank 0 waited in barrier at train.py:40"."""
    how = _how_gone(memory, other) if has_left else f"did not come within {seconds:.1f} s"
    status, arrived = memory.status_of(other), memory.cells[other][ARRIVED]
    lines = [f"{who} for rank {other}, which {how}"]
    if status:
        lines.append(f"  rank {other}: {status}")
    last = calls.describe(memory.call_of(other, arrived))
    progress = f"its round {arrived} in this group; here it is round {memory.round}"
    lines.append(f"  rank {other} was last in {last} ({progress})")
    return "\n".join(lines) + "\n" + ADVICE.format(other)


def ranks(numbers: list[int]) -> str:
    """List ranks: "rank 1, 3"."""
    if not numbers:
        return "no rank"
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return f"rank {', '.join(map(str, numbers[:NAMED]))}{more}"


def _how_gone(memory: GroupMemory, other: int) -> str:
    departure = memory.cells[other][LEFT]
    if departure == FAILED:
        return "has failed in this group before"
    if departure:
        return "has left the group (it ended, or destroyed or aborted the group)"
    return f"is gone: its process {memory.processes.pids[other]} has ended"


def difference(memory: GroupMemory, site: str) -> str:
    """Describe a round in which ranks called different operations, with the line of each.

    Each rank that has arrived notices the difference, writes where it called from and reads the others' lines; so do
    ranks that arrive late.
    """
    number = memory.round
    memory.write(memory.sites, SITE, number, site)
    memory.ring_all()
    give_up = time.perf_counter() + SITES_SECONDS
    arrived = {}
    lines = []
    for rank, cell in enumerate(memory.cells):
        while number > cell[SITE] and time.perf_counter() < give_up:
            if rank in memory.gone():
                break
            time.sleep(0.001)
        if cell[ARRIVED] < number:
            lines.append(f"  rank {rank}: has not come yet")
            continue
        arrived[rank] = memory.call_of(rank, number)
        where = memory.read(memory.sites, rank) if cell[SITE] == number else "an unknown place"
        lines.append(f"  rank {rank}: {calls.describe(arrived[rank])}, at {where}")
    return (
        f"the ranks called different operations in round {number} of this group{_minority(arrived)}:\n"
        + "\n".join(lines)
        + "\nEvery rank must call the same operations in the same order, with as many numbers of the same dtype, "
        "the same reduction and the same root"
    )


def _minority(arrived: dict[int, int]) -> str:
    """Name the ranks that differ from a call that most ranks agree on."""
    (call, votes), *rest = Counter(arrived.values()).most_common()
    if not rest or votes <= max(count for _, count in rest):
        return ""
    odd = [f"{rank}" for rank, other in arrived.items() if other != call]
    return f"; not like the others: rank {', '.join(odd)}"
