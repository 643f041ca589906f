"""What is told when ranks do not come together."""

from __future__ import annotations

import time
from collections import Counter

from paceline.backend import calls
from paceline.backend.board import CAME, FAILED, LEFT, SITE, Board

TOLD = 8  # ranks by number
SITES_SECONDS = 1.0  # for the others to come, and to say where they called from
ADVICE = "Look at what rank {} printed last; if it is only slow, give init_process_group a longer timeout"


def missing(board: Board, who: str, other: int, gone: bool, seconds: float) -> str:
    """`who` is the one who tells it: "rank 0 waited in barrier at train.py:40"."""
    how = _how_gone(board, other) if gone else f"did not come within {seconds:.1f} s"
    said, came = board.words_of(other), board.cells[other][CAME]
    lines = [f"{who} for rank {other}, which {how}"]
    if said:
        lines.append(f"  rank {other}: {said}")
    last = calls.tell(board.call_of(other, came))
    lines.append(f"  rank {other} was last in {last} (its round {came} in this group; here it is round {board.round})")
    return "\n".join(lines) + "\n" + ADVICE.format(other)


def ranks(numbers: list[int]) -> str:
    """rank 1, 3"""
    if not numbers:
        return "nobody"
    more = f" and {len(numbers) - TOLD} more" if len(numbers) > TOLD else ""
    return f"rank {', '.join(map(str, numbers[:TOLD]))}{more}"


def _how_gone(board: Board, other: int) -> str:
    left = board.cells[other][LEFT]
    if left == FAILED:
        return "has failed in this group before"
    if left:
        return "has left the group (it ended, or destroyed or aborted the group)"
    return f"is gone: its process {board.pids[other]} has ended"


def difference(board: Board, site: str) -> str:
    """Everybody who has come notices, writes where it called from, and reads the others'; so do those who come late."""
    number = board.round
    board.write(board.sites, SITE, number, site)
    board.ring_all()
    give_up = time.perf_counter() + SITES_SECONDS
    came = {}
    lines = []
    for rank, cell in enumerate(board.cells):
        while number > cell[SITE] and time.perf_counter() < give_up:
            if rank in board.gone():
                break
            time.sleep(0.001)
        if cell[CAME] < number:
            lines.append(f"  rank {rank}: has not come yet")
            continue
        came[rank] = board.call_of(rank, number)
        where = board.read(board.sites, rank) if cell[SITE] == number else "a place it has not told"
        lines.append(f"  rank {rank}: {calls.tell(came[rank])}, at {where}")
    return (
        f"the ranks called different operations in round {number} of this group{_who_differs(came)}:\n"
        + "\n".join(lines)
        + "\nEvery rank must call the same operations in the same order, with as many numbers of the same dtype, "
        "the same reduction and the same root"
    )


def _who_differs(came: dict[int, int]) -> str:
    """Where most ranks agree, the others are named."""
    (call, votes), *rest = Counter(came.values()).most_common()
    if not rest or votes <= max(count for _, count in rest):
        return ""
    odd = [f"{rank}" for rank, other in came.items() if other != call]
    return f"; not like the others: rank {', '.join(odd)}"
