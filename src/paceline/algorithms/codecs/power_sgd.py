"""PowerSGD: a matrix is sent as the product of two thin ones, by a step of power iteration.

Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed optimization",
NeurIPS 2019; in PyTorch a hook of DDP. For a gradient M of m rows and n columns, and rank r:

    P  =  sum of M Q over the workers          Q of the update before, random before the first
    P  =  orthogonalised P                     the same for all workers
    Q  =  sum of M' P over the workers
    decoded  =  P Q'                           owed  =  M - P (M' P)', of each worker's own M

Both sums are all-reduces of r m and r n numbers, one after the other, by any table; so bytes do not grow with the
number of workers, and what workers owe together is what the sum of their gradients lacks. A worker of a server has no
one to sum with: it writes both factors itself, in one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.algorithms.codecs import OWN, Field, Fields, TwoPartCodec, places_of, rows_and_columns, uniform

if TYPE_CHECKING:
    from torch import Tensor

TINY = 1e-30  # the least squared length of a column that is not taken for zero


@dataclass(frozen=True)
class PowerSgd(TwoPartCodec):
    rank: int = 2
    adds: ClassVar = True
    shares_chance: ClassVar = True

    def fields(self, shape: Sequence[int]) -> tuple[Field, ...]:
        rows, columns = rows_and_columns(shape)
        return Field(OWN, rows * self.rank), Field(OWN, columns * self.rank)

    def remembers(self, shape: Sequence[int]) -> tuple[int, ...]:
        return rows_and_columns(shape)[1], self.rank

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        assert memory is not None
        self.begin(total, fields, chance, memory)
        self.finish(total, fields)
        self.remember(fields, memory)

    def begin(self, total: Tensor, fields: Fields, chance: int, memory: Tensor) -> None:
        if not memory.any():
            memory.copy_(uniform(places_of(memory), chance)).sub_(0.5)
        fields[0].view(-1, self.rank).copy_(total @ memory)

    def finish(self, total: Tensor, fields: Fields) -> None:
        p, q = (field.view(-1, self.rank) for field in fields)
        orthogonalise(p)
        q.copy_(total.T @ p)
        total.sub_(p @ q.T)

    def remember(self, fields: Fields, memory: Tensor) -> None:
        memory.copy_(fields[1].view(-1, self.rank))

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        p, q = (field.view(-1, self.rank) for field in fields)
        out.copy_(p @ q.T)


def orthogonalise(matrix: Tensor) -> None:
    """Make the columns orthonormal by Gram and Schmidt's method; a column that depends on others becomes zero."""
    for column in range(matrix.shape[1]):
        this = matrix[:, column]
        before = float(this @ this)
        for earlier in range(column):
            other = matrix[:, earlier]
            this -= (other @ this) * other
        length = float(this @ this)
        this.mul_(length**-0.5 if length > max(TINY, 1e-12 * before) else 0.0)
