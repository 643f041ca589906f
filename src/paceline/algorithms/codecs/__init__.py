"""Codecs: how a gradient is written on the wire.

    gradient + owed  ->  encode  ->  fields of a message  ->  link  ->  decode, or sum and then decode
         ^                  |
         +------ owed <-----+   what a message leaves out is added to the next gradient: error feedback

A codec writes one tensor at a time. Its message consists of `fields`, runs of numbers whose lengths follow from the
tensor's shape alone; only the last field of a codec that is `variable` may be shorter. Some messages may be summed
number by number (`adds`), so that a collective takes them as it takes dense vectors; all others are gathered.

One file per published method; `catalogue` lists them by the names that plans use. They compute by methods of tensors.
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
    #: A message is summed in two parts, one after the other: the second is written from the sum of the first.
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

    def begin(self, total: Tensor, fields: Fields, chance: int, memory: Tensor) -> None:
        """Write the first field of a message that is summed in two; `total` stays as it is."""
        raise NotImplementedError("its messages are summed at once")

    def finish(self, total: Tensor, fields: Fields) -> None:
        """Write the other field from the sum of the first ones, and leave in `total` what this worker leaves out."""
        raise NotImplementedError("its messages are summed at once")

    def remember(self, fields: Fields, memory: Tensor) -> None:
        """Remember of the sum of all messages what the next one begins with."""
        raise NotImplementedError("its messages are summed at once")

    def remembers(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of what each worker keeps of a tensor besides what is owed; () for nothing."""
        return ()

    def refusal(self, fields: Fields, shape: Sequence[int]) -> str | None:
        """Return why these fields cannot be the message of a tensor of this shape, or None."""
        return None


def rows_and_columns(shape: Sequence[int]) -> tuple[int, int]:
    """Return the matrix that a tensor is encoded as: a row for each slice of its first dimension."""
    rows = shape[0] if shape else 1
    return rows, prod(shape[1:])
