"""Which rank is not in the collective that the others are in, by the Python lines that the ranks are at. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from paceline.concurrency.watcher.graph import waits_for_lock
from paceline.concurrency.watcher.history import History
from paceline.concurrency.watcher.samples import CLOSED, Frame, Process, Snapshot, Stack

_LIBRARY = (
    "/torch/",
    "/mpi4py/",
    "/accelerate/",
    "/lightning/",
    "/lightning_fabric/",
    "/lightning_utilities/",
    "/pytorch_lightning/",
    "/deepspeed/",
    "/paceline/runtime/backend/",
    "/paceline/runtime/links/",
)
_RENDEZVOUS = "/torch/distributed/rendezvous.py"
_WRAPPERS = frozenset({"wrapper", "__exit__", "decorate_context", "_call_impl", "_wrapped_call_impl", "inner"})
#: Between two ranks: different ones that never end are a circle, in which no rank is more to blame than another.
POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "sendrecv", "wait", "ssend", "probe"})
#: mpi4py is compiled, so that its functions are only seen by what the user's line calls.
_MPI = re.compile(
    r"\.(i?(?:all)?(?:gather|reduce|scatter|bcast|barrier)v?|alltoall[vw]?|i?s?send|i?recv|sendrecv|m?probe|wait(?:all|any)?"
    r"|reduce_scatter(?:_block)?|ex?scan)\(",
    re.IGNORECASE,
)
_POLLS = frozenset({"running", "clock", "lock", "unknown"})  # what a rank that asks again and again is seen at
#: A rank of which no thread uses more than this share of a core moves no data.
_IDLE = 0.02


class RankPlace(NamedTuple):
    """Where a rank is: the collective, and the user's line that called it."""

    collective: str  # "" if the rank is in none
    at: Frame


class Divergence(NamedTuple):
    """Ranks that all wait for each other in a way that none of them can ever end."""

    places: dict[int, RankPlace]  # by process
    cause: tuple[Process, ...]  # the ranks that are elsewhere than most; all if no rank is more to blame
    victims: tuple[Process, ...]

    @property
    def together(self) -> bool:
        """Whether all ranks are at one place, so that what they bring to it cannot fit."""
        return len(set(self.places.values())) == 1


def place_of(process: Process) -> RankPlace | None:
    """Return where the main thread of a rank is; None without its stack."""
    if not process.stacks or not process.stacks[0]:
        return None
    stack = process.stacks[0]
    # Where a library calls the user's functions, and not they the library, its own line is the nearest to the user.
    callers = [at for at, frame in enumerate(stack) if not (frame.standard or "/torch/" in frame.file)]
    ours = next((at for at in callers if not _is_library(stack[at])), next(iter(callers), len(stack) - 1))
    return RankPlace(_collective(stack[:ours]) or (_called(process) if ours == 0 else ""), stack[ours])


def ranks_of(snapshot: Snapshot) -> list[tuple[Process, ...]]:
    """Return the ranks of each job of which all ranks are in the snapshot.

    A data loader's worker, a helper and a shell inherit a rank's variables, and by fork its process group: the rank is
    the outermost process of that number. Several jobs of one size are distinguished by what has started their ranks.
    """
    by_pid = {p.pid: p for p in snapshot.processes if p.rank is not None and p.stacks}
    parents = {process.pid: process.parent for process in snapshot.processes}
    ranks = [each for each in by_pid.values() if not any(_same(each, above) for above in _above(each, by_pid, parents))]
    sizes = {each.parent: each.world_size for each in ranks if each.world_size}
    jobs, parts = defaultdict[int, list[Process]](list), defaultdict[tuple[int, int], list[Process]](list)
    for process in ranks:
        size = process.world_size or sizes.get(process.parent, 0)
        jobs[size].append(process)
        parts[size, process.parent].append(process)
    complete = [tuple(of) for size, of in jobs.items() if _is_complete(of, size)]
    complete_pids = {process.pid for of in complete for process in of}
    complete += [
        tuple(of) for (size, _), of in parts.items() if of[0].pid not in complete_pids and _is_complete(of, size)
    ]
    return [tuple(sorted(of, key=lambda each: each.rank or 0)) for of in complete]


def _above(process: Process, by_pid: Mapping[int, Process], parents: Mapping[int, int]) -> Iterator[Process]:
    """Iterate over the ancestors of a process that have a rank."""
    pid, passed = process.parent, set[int]()
    while pid in parents and pid not in passed:
        passed.add(pid)
        if pid in by_pid:
            yield by_pid[pid]
        pid = parents[pid]


def _same(process: Process, other: Process) -> bool:
    return (process.rank, process.world_size) == (other.rank, other.world_size)


def _is_complete(ranks: list[Process], size: int) -> bool:
    return len(ranks) >= 2 and sorted(each.rank or 0 for each in ranks) == list(range(size or len(ranks)))


def find_divergence(snapshot: Snapshot, history: History) -> Divergence | None:
    """Return ranks that wait for each other for ever; None unless every rank of their job is seen to wait for others.

    A rank that computes, sleeps or waits for the outside world may still join the others. So nothing is said of it.
    """
    divergences = (_divergence(ranks, snapshot, history) for ranks in ranks_of(snapshot))
    return next((each for each in divergences if each is not None), None)


def _divergence(ranks: tuple[Process, ...], snapshot: Snapshot, history: History) -> Divergence | None:
    places = {process.pid: place for process in ranks if (place := place_of(process)) is not None}
    if len(places) < len(ranks) or not all(_waits(p, places[p.pid], snapshot, history) for p in ranks):
        return None
    counts = Counter(places.values())
    # Paceline's own backend looks around while it waits, moves data then, and says itself whose call does not fit.
    moves = len(counts) == 1 and any(process.began for process in ranks)
    if moves or not any(place.collective for place in counts):
        return None
    if len(counts) == 1 or all(place.collective.lower() in POINT_TO_POINT for place in counts):
        return Divergence(places, ranks, ())
    # Ties: a rank outside every collective is the cause, else one that sends or receives, else that of a higher number.
    usual = max(counts, key=lambda place: (counts[place], _weight(place), -_lowest(ranks, places, place)))
    cause = tuple(process for process in ranks if places[process.pid] != usual)
    return Divergence(places, cause, tuple(process for process in ranks if process not in cause))


def _weight(place: RankPlace) -> int:
    return 0 if not place.collective else 1 if place.collective.lower() in POINT_TO_POINT else 2


def _lowest(ranks: tuple[Process, ...], places: dict[int, RankPlace], place: RankPlace) -> int:
    return min(process.rank or 0 for process in ranks if places[process.pid] == place)


def _waits(process: Process, place: RankPlace, snapshot: Snapshot, history: History) -> bool:
    """Whether a rank waits for other ranks, or for a lock: a collective's own wait has a timeout of half an hour."""
    kind = process.main.kind
    if place.collective and place.collective == _called(process):  # MPI polls: nothing but its line tells that it waits
        return kind in _POLLS and history.same_stack(process.pid)
    asks = process.began or any(frame.file.endswith(_RENDEZVOUS) for frame in process.stacks[0])  # again and again
    if not (history.still(process.pid, process.pid) or (asks and history.same_stack(process.pid))):
        return False
    if place.collective and process.began:
        return kind != "stopped"
    if place.collective:
        return kind not in ("running", "stopped", "disk") and history.cores(process.pid) < _IDLE
    # An event may be set by another thread of Python or by a handler of signals: where there is none it is as a lock.
    closed = waits_for_lock(process.stacks) or (len(process.stacks) == 1 and not process.handles_signals)
    return kind in CLOSED and closed and not _may_be_answered(process, snapshot, history)


def _may_be_answered(process: Process, snapshot: Snapshot, history: History) -> bool:
    """Whether another process that a rank waits for, as a child, still does anything or waits for what may come."""
    others = [snapshot.process(pid) for pid in process.main.by if pid != process.pid]
    return any(
        other is None
        or any(not history.still(other.pid, each.tid) or each.wait.kind not in CLOSED for each in other.threads)
        for other in others
        if other is None or other.rank is None or other.parent == process.pid
    )


def _is_library(frame: Frame) -> bool:
    return frame.standard or frame.file.startswith("<") or any(part in frame.file for part in _LIBRARY)


def _collective(frames: Stack) -> str:
    """Return the name of the library's function that the user called, if it communicates."""
    for frame in reversed(frames):
        if "/distributed/" in frame.file and frame.function not in _WRAPPERS:
            return frame.function
        if frame.file.endswith("/nn/parallel/distributed.py") and frame.function.startswith("_sync_"):
            return frame.function  # of buffers, at the beginning of a forward pass
        if frame.function in ("_engine_run_backward", "backward"):
            return "backward"
    wrapped = any(f.function == "_pre_forward" and f.file.endswith("/nn/parallel/distributed.py") for f in frames)
    return "forward" if wrapped else ""  # of DDP, which makes its buckets anew once, together


def _called(process: Process) -> str:
    """Return the function of MPI that the line of a rank calls; "" if it calls none."""
    match = _MPI.search(process.text)
    return match[1] if match else ""
