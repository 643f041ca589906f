"""PowerSGD: a matrix is sent as the product of two thin ones, by a step of power iteration.

Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed optimization",
NeurIPS 2019; in PyTorch a hook of DDP. For a gradient M of m rows and n columns, and rank r:

    P  =  orthogonalised(M Q)         Q of the update before, random before the first
    Q  =  M' P
    message  =  P and Q, r (m + n) numbers        decoded  =  P Q'        owed  =  M - P Q'

Each worker sends its own factors, which are gathered. The paper sums M Q of all workers before P is orthogonalised,
and then Q, in two collectives one after the other; so it has one P for all, and bytes that do not grow with the number
of workers. With factors of its own each worker's error is smaller and half as many messages wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.codecs import OWN, Codec, Field, Fields, rows_and_columns
from paceline.core.codecs.bits import places_of, uniform

if TYPE_CHECKING:
    from torch import Tensor

TINY = 1e-30  # the least squared length of a column that is not taken for zero


@dataclass(frozen=True)
class PowerSgd(Codec):
    rank: int = 2

    def fields(self, shape: Sequence[int]) -> tuple[Field, ...]:
        rows, columns = rows_and_columns(shape)
        return Field(OWN, rows * self.rank), Field(OWN, columns * self.rank)

    def remembers(self, shape: Sequence[int]) -> tuple[int, ...]:
        return rows_and_columns(shape)[1], self.rank

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        assert memory is not None
        p, q = (field.view(-1, self.rank) for field in fields)
        if not memory.any():
            memory.copy_(uniform(places_of(memory), chance)).sub_(0.5)
        p.copy_(total @ memory)
        orthogonalise(p)
        q.copy_(total.T @ p)
        memory.copy_(q)
        total.sub_(p @ q.T)

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
