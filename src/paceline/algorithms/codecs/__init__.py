"""Codecs: how a gradient is written on the wire.

    gradient + owed  ->  encode  ->  fields of a message  ->  link  ->  decode, or sum and then decode
         ^                  |
         +------ owed <-----+   what a message leaves out is added to the next gradient: error feedback

A codec writes one tensor at a time. Its message consists of `fields`, runs of numbers whose lengths follow from the
tensor's shape alone; only the last field of a codec that is `variable` may be shorter. Some messages may be summed
number by number (`adds`), so that a collective takes them as it takes dense vectors; all others are gathered.

One class per published method; `catalogue` lists them by the names that plans use. They compute by methods of tensors.
`kernels.codecs` has the same loops in generated native code, which give the same bits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


OWN = "own"  # the dtype of the gradient itself

Fields = Sequence["Tensor"]  # the fields of one tensor's message, flat


class Field(NamedTuple):
    """A run of numbers in the message of one tensor."""

    #: The name of a dtype of PyTorch, or `OWN`.
    dtype: str
    length: int


class Codec(Protocol):
    """The interface of every codec, with what most of them have in common."""

    #: Messages of several workers may be added up number by number; otherwise they are gathered.
    adds: ClassVar[bool] = False
    #: The last field is as long as the gradient makes it; the first one says how long.
    variable: ClassVar[bool] = False
    #: What a message leaves out is kept and added to the next gradient.
    feedback: ClassVar[bool] = True
    #: Its messages are summed in two parts; see `TwoPartCodec`.
    in_two: ClassVar[bool] = False
    #: All workers draw the same random numbers in an update.
    shares_chance: ClassVar[bool] = False

    @abstractmethod
    def fields(self, shape: Sequence[int]) -> tuple[Field, ...]:
        """Return the fields of the message of a tensor of this shape."""

    @abstractmethod
    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        """Write the message of a gradient into `fields`, and leave in `total` what the message leaves out.

        `total` is a matrix with a row for each slice of the tensor's first dimension. `chance` seeds random numbers.
        `memory` is what is remembered, zeros before the first message; it is changed in place.
        """

    @abstractmethod
    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        """Write the gradient of a message into `out`, a matrix as it was encoded."""

    def remembers(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of what each worker keeps of a tensor besides what is owed; () for nothing."""
        return ()

    def refusal(self, fields: Fields, shape: Sequence[int]) -> str | None:
        """Return why these fields cannot be the message of a tensor of this shape, or None."""
        return None


class TwoPartCodec(Codec):
    """A codec whose messages are summed in two parts: the second is written from the sum of the first."""

    in_two: ClassVar = True

    @abstractmethod
    def begin(self, total: Tensor, fields: Fields, chance: int, memory: Tensor) -> None:
        """Write the first field; `total` stays as it is."""

    @abstractmethod
    def finish(self, total: Tensor, fields: Fields) -> None:
        """Write the other field from the sum of the first ones, and leave in `total` what this worker leaves out."""

    @abstractmethod
    def remember(self, fields: Fields, memory: Tensor) -> None:
        """Remember of the sum of all messages what the next one begins with."""


def rows_and_columns(shape: Sequence[int]) -> tuple[int, int]:
    """Return the matrix that a tensor is encoded as: a row for each slice of its first dimension."""
    rows = shape[0] if shape else 1
    return rows, prod(shape[1:])


# What several codecs need: small integers packed into bytes, sums in a fixed order, and random numbers by position.
# All of it has one result, to the last bit, here and in generated code: a run that was recorded with a compiler can be
# replayed without one.

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
