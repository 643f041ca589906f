"""What a rank called, packed into one integer that is cheap to compare; its description; where the user called it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

import torch

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
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
)  # fmt: skip
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
