"""The shared memory of a group: what each rank has arrived at, packed into one integer, and the slots of all ranks.

An operation is one or more rounds. In a round a rank writes into its slot, says so in its cell, and reads what it needs
when all ranks have arrived. Every round has other slots than the one before: a rank arrives in round n + 1 only when it
is done with reading round n, so in round n + 2 no rank reads any more what n left, and no barrier is needed after an
operation.

Short slots are two for each rank, used alternately. Long ones go round an area that is larger than the processor's
cache: to write where another core has read before costs five times as much as to write where no core has it in its
cache any more. All ranks ask for slots of the same size in the same order, so they agree on the place without one.

Each rank compares the others' calls with its own before it reads, so all of them notice when one differs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import CodeType, FrameType

import torch
from torch import Tensor

from paceline.runtime.links.membership import LocalProcesses
from paceline.runtime.links.memory import PAGE, Memory
from paceline.runtime.links.waiting import Doorbell

SLOT = 4 << 20  # bytes; longer vectors take several rounds
SHORT = 16 << 10  # bytes of a short slot; below, to make views of new places costs more than they save
AREAS = 128 << 20  # bytes of all ranks' long slots together; four times a usual cache
TEXT = 1024  # bytes of a text that a rank leaves for the others' messages
VIEWS = 2048  # kept, since making views of the slots costs more than a short operation

# Places in a cell, one cache line. The call of a round lies at CALL or CALL + 1, alternately.
ARRIVED = 0  # the last round that the rank has arrived in
CALL = 1
DOORBELL = slice(3, 5)
SITE = 5  # the round whose call site can be read in the rank's text; 0 while that is written
STATUS = 6  # 0, or what kind of status can be read
LEFT = 7  # PRESENT, or how the rank has left the group
CELL = 8  # integers
PRESENT, CLOSED, FAILED = 0, 1, 2
WAITING, VICTIM = 1, 2  # what a status is about; a victim has failed because of others


def size_of(ranks: int) -> int:
    """The bytes that `GroupMemory` takes. What is never touched takes no memory."""
    return ranks * (64 + 2 * TEXT + 2 * SHORT + area_of(ranks))


def area_of(ranks: int) -> int:
    """The bytes of a rank's long slots: two at least, so that a round never overwrites the one before."""
    return max(2 * SLOT, AREAS // ranks // PAGE * PAGE)


class GroupMemory:
    """One rank's view of the memory of its group."""

    def __init__(self, memory: Memory, rank: int, pids: Sequence[int]) -> None:
        self.rank, self.ranks, self.processes = rank, len(pids), LocalProcesses(rank, pids)
        #: The last round that this rank has arrived in; the same as in its cell.
        self.round = 0
        self.cells = [memory.ints(CELL) for _ in pids]
        self.sites = [memory.take(TEXT) for _ in pids]
        self.statuses = [memory.take(TEXT) for _ in pids]
        self._short = [[memory.tensor(SHORT, torch.uint8) for _ in range(2)] for _ in pids]
        self._areas = [memory.tensor(area_of(self.ranks), torch.uint8) for _ in pids]
        #: Where the next long slot begins, in the area of each rank.
        self._next = 0
        self.mine = self.cells[rank]
        self.others = [(other, cell) for other, cell in enumerate(self.cells) if other != rank]
        self._theirs = [cell for _, cell in self.others]
        self.doorbells = [Doorbell(cell[DOORBELL]) for cell in self.cells]
        self.doorbell = self.doorbells[rank]
        self._other_doorbells = [(self.doorbells[other], self.doorbells[other].flag) for other, _ in self.others]
        self._views: dict[tuple[int, torch.dtype, int], list[Tensor]] = {}

    def slots(self, dtype: torch.dtype, count: int) -> list[Tensor]:
        """Return the slots of all ranks in the coming round."""
        size = count * dtype.itemsize
        if size <= SHORT:
            # Two short slots, alternately: a rank may be a round ahead, but not two, since every round waits for all.
            place = ~(self.round + 1 & 1)
        else:
            place = self._next if self._next + size <= len(self._areas[0]) else 0
            self._next = place + -(-size // PAGE) * PAGE
        views = self._views.get((place, dtype, count))
        return self._view(place, dtype, count) if views is None else views

    def _view(self, place: int, dtype: torch.dtype, count: int) -> list[Tensor]:
        """Make the views of slots; a negative place is that of a short one."""
        size = count * dtype.itemsize
        # A program with ever new sizes would keep a view for each.
        if len(self._views) == VIEWS:
            self._views.clear()
        with torch.inference_mode(False):  # the views outlive the mode of the first to ask
            if place < 0:
                views = [both[~place][:size].view(dtype) for both in self._short]
            else:
                views = [area[place : place + size].view(dtype) for area in self._areas]
        self._views[place, dtype, count] = views
        return views

    def arrive(self, call: int) -> None:
        """Arrive in the next round, with a call."""
        number = self.round = self.round + 1
        self.mine[CALL + (number & 1)] = call
        self.mine[ARRIVED] = number  # after the call and the slot: x86 shows stores in their order
        self.ring_all()

    def all_arrived(self) -> bool:
        """Whether all ranks have arrived in this rank's round."""
        number = self.round
        return all(cell[ARRIVED] >= number for cell in self._theirs)

    def any_differs(self) -> bool:
        """Whether a rank has arrived in the round with another call than this one."""
        number = self.round
        at = CALL + (number & 1)
        call = self.mine[at]
        return any(cell[ARRIVED] >= number and cell[at] != call for cell in self._theirs)

    def missing(self) -> list[int]:
        """The ranks that have not arrived in the round."""
        return [other for other, cell in self.others if cell[ARRIVED] < self.round]

    def call_of(self, rank: int, number: int) -> int:
        """What a rank called in one of its last two rounds."""
        return self.cells[rank][CALL + (number & 1)]

    def ring_all(self) -> None:
        """Wake the other ranks, where they sleep."""
        for doorbell, flag in self._other_doorbells:
            if flag[0]:
                doorbell.ring()

    # Texts for the others' messages

    def write(self, texts: list[memoryview], place: int, mark: int, text: str) -> None:
        """Write this rank's text; the mark in its cell makes it valid."""
        encoded, mine = text.encode()[: TEXT - 8], texts[self.rank]
        # Invalid while it is written: a reader that finds the mark again afterwards has read all of one text.
        self.mine[place] = 0
        mine[:8] = len(encoded).to_bytes(8, "little")
        mine[8 : 8 + len(encoded)] = encoded
        self.mine[place] = mark

    def read(self, texts: list[memoryview], rank: int) -> str:
        """Read the text of a rank."""
        length = int.from_bytes(texts[rank][:8], "little")
        return bytes(texts[rank][8 : 8 + length]).decode(errors="replace")

    def status_of(self, rank: int) -> str:
        """What a rank waits for or has failed with, where it has said so."""
        return self.read(self.statuses, rank) if self.cells[rank][STATUS] else ""

    # Leaving the group

    def gone(self) -> set[int]:
        """The ranks that will not arrive any more: their process has ended, or they have left the group."""
        return self.processes.gone() | {other for other, cell in self.others if cell[LEFT]}

    def culprit(self, departed: Iterable[int]) -> int:
        """The rank to name: one that ended on its own, before those that failed because of others."""
        return min(departed, key=lambda rank: (self.cells[rank][STATUS] == VICTIM, rank))

    def leave(self, how: int) -> None:
        """Leave the group. The first reason stays."""
        if self.mine[LEFT] == PRESENT:
            self.mine[LEFT] = how
        self.ring_all()
        self.doorbell.wake()  # other threads of this process

    def close(self) -> None:
        """Release everything. Afterwards no method may be called."""
        self.processes.close()
        self._views.clear()


# What a rank called, packed into one integer that is cheap to compare; its description; where the user called it.

OPERATIONS = (
    "nothing yet",
    "the making of the group",
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "send",
    "recv",
    "a change to another backend",
)
(
    NOTHING,
    SET_UP,
    ALL_REDUCE,
    BROADCAST,
    REDUCE,
    ALL_GATHER,
    GATHER,
    SCATTER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    BARRIER,
    SEND,
    RECV,
    CHANGE,
) = range(len(OPERATIONS))

# The order of PyTorch's ReduceOp.RedOpType.
REDUCTIONS = ("sum", "average", "product", "minimum", "maximum", "and", "or", "exclusive or", "scaled sum")
NO_REDUCTION = 15

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
)
DTYPE_NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES)}
ANY_DTYPE = 31

# From the lowest bit: root + 1 (9 bits), reduction (4), dtype (5), operation (5), numbers (40).
ROOT, REDUCTION, DTYPE, OPERATION, NUMBERS = 0, 9, 13, 18, 23


def pack(
    operation: int, dtype: int = ANY_DTYPE, numbers: int = 0, reduction: int = NO_REDUCTION, root: int = -1
) -> int:
    """Pack a call into one integer: ranks whose integers are equal have called the same."""
    return numbers << NUMBERS | operation << OPERATION | dtype << DTYPE | reduction << REDUCTION | root + 1 << ROOT


def describe(call: int) -> str:
    """Describe a call: `all_reduce of 100 float32 (sum)`."""
    dtype, reduction, root = call >> DTYPE & 31, call >> REDUCTION & 15, (call >> ROOT & 511) - 1
    words = [OPERATIONS[call >> OPERATION & 31]]
    if dtype != ANY_DTYPE:
        numbers = call >> NUMBERS
        size = f"{numbers} " if numbers else ""
        words.append(f"of {size}{str(DTYPES[dtype]).removeprefix('torch.')}")
    if reduction != NO_REDUCTION:
        words.append(f"({REDUCTIONS[reduction]})")
    if root >= 0:
        words.append(f"with root {root}")
    return " ".join(words)


class CallSite:
    """A line of the user's. It is noted at every call, so it is a code object and an offset until it is printed."""

    __slots__ = ("_code", "_place", "_threaded")

    def __init__(self, code: CodeType, place: int, threaded: bool) -> None:
        self._code, self._place, self._threaded = code, place, threaded

    def __str__(self) -> str:
        lines = [line for start, stop, line in self._code.co_lines() if start <= self._place < stop and line]
        where = f"{self._code.co_filename}:{lines[0] if lines else self._code.co_firstlineno}"
        return f"{where}, in another thread" if self._threaded else where


OURS = (str(Path(__file__).parent), str(Path(torch.__file__).parent), "<")
_known: dict[CodeType, bool] = {}


def call_site() -> CallSite | None:
    """Return the innermost line that is neither PyTorch's nor this package's."""
    site = _users(sys._getframe(1), threaded=False)
    if site is not None:
        return site
    # A thread of PyTorch's own has no line of the user's: show where the main thread is.
    return _users(sys._current_frames().get(threading.main_thread().ident or 0), threaded=True)


def _users(frame: FrameType | None, threaded: bool) -> CallSite | None:
    """Return the innermost line of the user's in a stack."""
    while frame is not None:
        code = frame.f_code
        ours = _known.get(code)
        if ours is None:
            ours = _known[code] = code.co_filename.startswith(OURS)
        if not ours:
            return CallSite(code, frame.f_lasti, threaded)
        frame = frame.f_back
    return None
