"""What several codecs need: small integers packed into bytes, sums in a fixed order, and random numbers by position.

All of it has one result, to the last bit, here and in generated code: a run that was recorded with a compiler can be
replayed without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LANES = 16  # partial sums of a row; number i of a row is added to sum i mod LANES
MASK = 0xFFFFFFFF


def packed_length(columns: int, bits: int = 1) -> int:
    """Return the bytes of a row of so many integers of `bits` bits (1, 2, 4 or 8); every row begins with a byte."""
    return -(-columns * bits // 8)


def packed(values: Tensor, into: Tensor, bits: int = 1) -> None:
    """Pack each row of small integers into a row of bytes, the first integer in the lowest bits."""
    rows, columns = values.shape
    each = 8 // bits
    padded = values.new_zeros(rows, into.shape[1] * each).byte()
    padded[:, :columns] = values
    for place in range(1, each):
        padded[:, place::each] <<= place * bits
    into.zero_()
    for place in range(each):
        into |= padded[:, place::each]


def unpacked(raw: Tensor, columns: int, bits: int = 1) -> Tensor:
    """Return the integers that `packed` has packed; of one bit as booleans."""
    each = 8 // bits
    values = raw.new_empty(len(raw), raw.shape[1] * each)
    for place in range(each):
        values[:, place::each] = (raw >> (place * bits)) & ((1 << bits) - 1)
    values = values[:, :columns]
    return values.bool() if bits == 1 else values


def row_sums(values: Tensor) -> Tensor:
    """Return the sum of each row in double precision, summed in the order that `LANES` says."""
    rows, columns = values.shape
    padded = values.new_zeros(rows, -(-columns // LANES) * LANES).double()
    padded[:, :columns] = values
    # NumPy adds along an axis that is not the last one from its first to its last entry; PyTorch does not promise it.
    lanes = padded.new_tensor(padded.view(rows, -1, LANES).numpy().sum(axis=1))
    total = lanes[:, 0].clone()
    for lane in range(1, LANES):
        total += lanes[:, lane]
    return total


def uniform(places: Tensor, chance: int) -> Tensor:
    """Return a number in [0, 1) for each place (integers of 64 bits): a hash of the place and `chance`.

    The hash is "lowbias32" of Wellons, of whose 32 bits the upper 24 are used, so that floats hold them exactly.
    """
    return (hashed(places, chance) >> 8).float() * 2.0**-24


def hashed(places: Tensor, chance: int) -> Tensor:
    """Return 32 random bits for each place."""
    x = ((places + (chance & MASK)) & MASK) ^ (chance >> 32 & MASK)
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK
    return x ^ (x >> 16)


def places_of(matrix: Tensor) -> Tensor:
    """Return the number of each place of a matrix, row by row."""
    return matrix.new_ones(matrix.numel()).long().cumsum(0).sub_(1).view(matrix.shape)
