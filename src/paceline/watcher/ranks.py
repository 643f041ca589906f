"""Which rank is not in the collective that the others are in, by the Python lines that the ranks are at. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from paceline.watcher.graph import waits_for_lock
from paceline.watcher.samples import Frame, Look, Process, Stack

_LIBRARY = ("/torch/", "/mpi4py/", "/accelerate/", "/lightning/", "/pytorch_lightning/", "/deepspeed/")
_WRAPPERS = frozenset({"wrapper", "__exit__", "decorate_context", "_call_impl", "_wrapped_call_impl", "inner"})
#: Between two ranks: different ones that never end are a circle, in which no rank is more to blame than another.
_POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "Send", "Recv", "wait"})


class Place(NamedTuple):
    """Where a rank is: the collective, and the user's line that called it."""

    collective: str  # "" if the rank is in none
    at: Frame


class Divergence(NamedTuple):
    """Ranks that have come to different collectives, so that none of these can ever be completed."""

    places: dict[int, Place]  # by process
    cause: tuple[Process, ...]  # the ranks that are elsewhere than most
    victims: tuple[Process, ...]


def place_of(process: Process) -> Place | None:
    """Return where the main thread of a rank is; None without its stack."""
    if not process.stacks or not process.stacks[0]:
        return None
    stack = process.stacks[0]
    ours = next((at for at, frame in enumerate(stack) if not _is_library(frame)), len(stack) - 1)
    return Place(_collective(stack[:ours]), stack[ours])


def find_divergence(look: Look, still: Callable[[int, int], bool]) -> Divergence | None:
    """Return the ranks that wait in different collectives; None unless every rank is seen to wait for others.

    A rank that computes, sleeps or waits for the outside world may still join the others. So nothing is said of it.
    """
    ranks = [process for process in look.processes if process.rank is not None and process.stacks]
    # A launcher's wrapper, a data loader and a shell inherit the variables too: the rank is the outermost with a stack.
    inherited = {process.pid for process in ranks}
    ranks = [process for process in ranks if process.parent not in inherited]
    if len(ranks) < 2 or len({p.rank for p in ranks}) != len(ranks) or len(ranks) != ranks[0].world_size:
        return None
    places = {process.pid: place for process in ranks if (place := place_of(process)) is not None}
    if len(places) < len(ranks) or not all(still(p.pid, p.pid) and _waits(p, places[p.pid]) for p in ranks):
        return None
    counts = Counter(places.values())
    if len(counts) < 2 or not any(place.collective for place in counts):
        return None
    if all(place.collective in _POINT_TO_POINT for place in counts):
        return Divergence(places, tuple(ranks), ())
    # Ties: a rank outside every collective is the cause, else the rank of the higher number.
    usual = max(counts, key=lambda place: (counts[place], place.collective != "", -_lowest(ranks, places, place)))
    cause = tuple(process for process in ranks if places[process.pid] != usual)
    return Divergence(places, cause, tuple(process for process in ranks if process not in cause))


def _lowest(ranks: list[Process], places: dict[int, Place], place: Place) -> int:
    return min(process.rank or 0 for process in ranks if places[process.pid] == place)


def _waits(process: Process, place: Place) -> bool:
    """Whether a rank waits for other ranks, or for a lock: a collective's own wait has a timeout of half an hour."""
    if place.collective:
        return process.main.kind not in ("running", "stopped", "disk")
    return process.main.kind in ("lock", "pipe", "socket", "child", "shared lock", "file lock") and waits_for_lock(
        process.stacks
    )


def _is_library(frame: Frame) -> bool:
    return any(part in frame.file for part in _LIBRARY)


def _collective(frames: Stack) -> str:
    """Return the name of the library's function that the user called, if it communicates."""
    for frame in reversed(frames):
        if "/distributed/" in frame.file and frame.function not in _WRAPPERS:
            return frame.function
        if frame.function in ("_engine_run_backward", "backward"):
            return "backward"
        if "/mpi4py/" in frame.file:
            return frame.function
    return ""
