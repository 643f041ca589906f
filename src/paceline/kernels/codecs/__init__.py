"""Native loops of codecs: text in C++, compiled once for this machine, and the functions that call it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from torch import Tensor

from paceline.kernels.build import CannotCompile, NoCompiler, library

# Loops of codecs in native code, compiled once for this machine.
#
# Each has the bits of its codec in `algorithms.codecs`, which is the way where there is no compiler.

#: Sums and products stay separate operations, as they are in PyTorch.
EXACT = ("-ffp-contract=off",)


@cache
def native() -> ctypes.CDLL | None:
    """The loops as one library; None where there is no compiler."""
    try:
        functions, _, _ = library((files("paceline.kernels.codecs") / "codecs.cpp").read_text(encoding="utf-8"), EXACT)
    except (NoCompiler, CannotCompile):
        return None
    for counted in (functions.half_encode, functions.threshold_encode, functions.add_owed):
        counted.restype = ctypes.c_long
    return functions


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _sizes(matrix: Tensor) -> tuple[ctypes.c_long, ctypes.c_long]:
    return ctypes.c_long(matrix.shape[0]), ctypes.c_long(matrix.shape[1])


def _count(matrix: Tensor) -> ctypes.c_long:
    return ctypes.c_long(matrix.numel())


def _halves(chance: int) -> tuple[ctypes.c_uint32, ctypes.c_uint32]:
    return ctypes.c_uint32(chance), ctypes.c_uint32(chance >> 32)  # their lowest bits


def add_owed(loops: ctypes.CDLL, owed: Tensor | None, gradient: Tensor, total: Tensor) -> bool:
    """Write a gradient and what is owed into `total`; return whether the gradient is finite."""
    owes = pointer(owed) if owed is not None else None
    return bool(loops.add_owed(owes, pointer(gradient), pointer(total), _count(total)))


# Each writes the message of a matrix, leaves in it what the message leaves out, and says whether it could.


def encode_half(loops: ctypes.CDLL, total: Tensor, fields: Sequence[Tensor]) -> bool:
    return bool(loops.half_encode(pointer(total), pointer(fields[0]), _count(total)))


def encode_bfloat16(loops: ctypes.CDLL, total: Tensor, fields: Sequence[Tensor]) -> bool:
    loops.bfloat16_encode(pointer(total), pointer(fields[0]), _count(total))
    return True


def encode_int8(loops: ctypes.CDLL, total: Tensor, fields: Sequence[Tensor], lowest: int, highest: int) -> bool:
    exponents, mantissas = fields
    loops.int8_encode(pointer(total), pointer(exponents), pointer(mantissas), *_sizes(total), lowest, highest)
    return True


def encode_onebit(loops: ctypes.CDLL, total: Tensor, fields: Sequence[Tensor]) -> bool:
    loops.onebit_encode(pointer(total), pointer(fields[0]), pointer(fields[1]), *_sizes(total))
    return True


def encode_threshold(loops: ctypes.CDLL, total: Tensor, fields: Sequence[Tensor], threshold: float) -> bool:
    count, words = fields
    count.fill_(loops.threshold_encode(pointer(total), pointer(words), _count(total), ctypes.c_float(threshold)))
    return True


def encode_topk(loops: ctypes.CDLL, total: Tensor, fields: Sequence[Tensor]) -> bool:
    places, numbers = fields
    loops.topk_encode(pointer(total), pointer(places), pointer(numbers), _count(total), ctypes.c_long(len(places)))
    return True


def encode_qsgd(loops: ctypes.CDLL, total: Tensor, fields: Sequence[Tensor], bits: int, chance: int) -> bool:
    scales, raw = fields
    loops.qsgd_encode(pointer(total), pointer(scales), pointer(raw), *_sizes(total), bits, *_halves(chance))
    return True


def encode_ternary(loops: ctypes.CDLL, total: Tensor, fields: Sequence[Tensor], chance: int) -> bool:
    scales, raw = fields
    loops.ternary_encode(pointer(total), pointer(scales), pointer(raw), *_sizes(total), *_halves(chance))
    return True


def decode_int8(loops: ctypes.CDLL, fields: Sequence[Tensor], out: Tensor) -> None:
    loops.int8_decode(pointer(fields[0]), pointer(fields[1]), pointer(out), *_sizes(out))


def decode_onebit(loops: ctypes.CDLL, fields: Sequence[Tensor], out: Tensor) -> None:
    loops.onebit_decode(pointer(fields[0]), pointer(fields[1]), pointer(out), *_sizes(out))


def decode_qsgd(loops: ctypes.CDLL, fields: Sequence[Tensor], out: Tensor, bits: int) -> None:
    loops.qsgd_decode(pointer(fields[0]), pointer(fields[1]), pointer(out), *_sizes(out), bits)


def decode_ternary(loops: ctypes.CDLL, fields: Sequence[Tensor], out: Tensor) -> None:
    loops.ternary_decode(pointer(fields[0]), pointer(fields[1]), pointer(out), *_sizes(out))
