"""What a rank called: packed into one integer, compared at no cost; told in words; and found in the user's code."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType

import torch

OPERATIONS = (
    "nothing yet", "all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter",
    "all_to_all", "barrier", "send",
)  # fmt: skip
(
    NOTHING, ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, GATHER, SCATTER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER, SEND,
) = range(len(OPERATIONS))  # fmt: skip

# The order of PyTorch's ReduceOp.RedOpType.
REDUCTIONS = ("sum", "average", "product", "minimum", "maximum", "and", "or", "exclusive or", "scaled sum")
NO_REDUCTION = 15

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip
DTYPE_NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES)}
ANY_DTYPE = 31

# From the lowest bit: root + 1 (9 bits), reduction (4), dtype (5), operation (5), numbers (40).
ROOT, REDUCTION, DTYPE, OPERATION, NUMBERS = 0, 9, 13, 18, 23


def pack(
    operation: int, dtype: int = ANY_DTYPE, numbers: int = 0, reduction: int = NO_REDUCTION, root: int = -1
) -> int:
    return numbers << NUMBERS | operation << OPERATION | dtype << DTYPE | reduction << REDUCTION | root + 1 << ROOT


def tell(call: int) -> str:
    """all_reduce of 100 float32 (sum)"""
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


OURS = (str(Path(__file__).parent), str(Path(torch.__file__).parent), "<")


def site() -> str:
    """file:line of the user's call; called only when something is wrong."""
    found = _user_frame(sys._getframe())
    if found is not None:
        return found
    # The backward pass calls from a thread of its own, which has no line of the user's: tell where it was started.
    main = sys._current_frames().get(threading.main_thread().ident or 0)
    found = _user_frame(main)
    return f"{found}, in another thread (such as backward's)" if found is not None else "an unknown place"


def _user_frame(frame: FrameType | None) -> str | None:
    while frame is not None:
        if not frame.f_code.co_filename.startswith(OURS):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None
