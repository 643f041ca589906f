"""Codecs that round every number to one of a few levels of its row: many, three or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.algorithms.codecs import (
    OWN,
    Codec,
    Field,
    Fields,
    packed,
    packed_length,
    places_of,
    row_sums,
    rows_and_columns,
    uniform,
    unpacked,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Qsgd(Codec):
    """QSGD: each number is rounded at random to one of a few levels, so that its mean is the number itself.

    Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD: communication-efficient SGD via gradient quantization and
    encoding", NeurIPS 2017, with the largest magnitude in place of the norm, as in the paper's experiments, a row of
    the tensor as the bucket, and codes of a fixed length in place of Elias codes.

        s       =  2^(bits - 1) - 1 levels              scale   =  max |row|
        level   =  floor(|number| / scale * s + u)      u uniform in [0, 1), a function of seed, update, chunk and place
        decoded =  sign * level * scale / s

    Nothing is owed: the error has mean zero and is not sent later. Fewer bits mean more noise, as a smaller batch
    would. Not to be confused with `int8`, which rounds to the nearest and owes the rest.
    """

    bits: int = 4
    feedback: ClassVar = False

    @property
    def levels(self) -> int:
        return int(2 ** (self.bits - 1) - 1)

    def fields(self, shape: Sequence[int]) -> tuple[Field, ...]:
        rows, columns = rows_and_columns(shape)
        return Field(OWN, rows), Field("uint8", rows * packed_length(columns, self.bits))

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        scales, raw = fields
        scales.copy_(total.abs().amax(1))
        over = (self.levels / scales).nan_to_num_(0.0, 0.0)[:, None]
        level = (total.abs() * over).add_(uniform(places_of(total), chance)).floor_().clamp_(0, self.levels)
        packed(level + (total < 0) * (self.levels + 1), raw.view(len(total), -1), self.bits)

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        scales, raw = fields
        codes = unpacked(raw.view(len(out), -1), out.shape[1], self.bits).to(out.dtype)
        signed = codes.where(codes <= self.levels, self.levels + 1 - codes)
        out.copy_(signed).mul_((scales / self.levels)[:, None])


@dataclass(frozen=True)
class Ternary(Codec):
    """Ternary gradients: -1, 0 or 1 times the largest magnitude of the row.

    Wen et al., "TernGrad: ternary gradients to reduce communication in distributed deep learning", NeurIPS 2017, with a
    scale for each row of a tensor instead of one for each tensor, and without the paper's clipping of outliers.

        scale    =  max |row|
        decoded  =  sign * scale  with probability |number| / scale,  else 0

    Two bits a number. The mean of what is decoded is the number, so nothing is owed; it is `qsgd` with a single level.
    A row with one large number has almost all others zero: then smaller rows, or more levels, do better.
    """

    feedback: ClassVar = False

    def fields(self, shape: Sequence[int]) -> tuple[Field, ...]:
        rows, columns = rows_and_columns(shape)
        return Field(OWN, rows), Field("uint8", rows * packed_length(columns, 2))

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        scales, raw = fields
        scales.copy_(total.abs().amax(1))
        mask = uniform(places_of(total), chance) * scales[:, None] < total.abs()
        packed(mask * (1 + (total < 0).byte()), raw.view(len(total), -1), 2)

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        scales, raw = fields
        codes = unpacked(raw.view(len(out), -1), out.shape[1], 2)
        out.copy_((codes == 1).to(out.dtype) - (codes == 2).to(out.dtype)).mul_(scales[:, None])


@dataclass(frozen=True)
class OneBit(Codec):
    """One bit per number: the sign, and for each row the mean of its positive and of its negative numbers.

    Seide, Fu, Droppo, Li and Yu, "1-bit stochastic gradient descent and its application to data-parallel distributed
    training of speech DNNs", Interspeech 2014.

        up    =  mean of the row's numbers >= 0           down  =  mean of those < 0
        bit   =  number >= 0                              decoded  =  up where the bit is set, else down
        owed  =  number - decoded

    The two values minimise the squared error, and keep the sum of each row. They belong to a row of the matrix, the
    weights of one output (a column in the paper's notation). Without error feedback it does not converge; that is the
    paper's point. Not to be confused with signSGD, which sends no means, or 1-bit Adam, which also freezes the
    variance.
    """

    def fields(self, shape: Sequence[int]) -> tuple[Field, ...]:
        rows, columns = rows_and_columns(shape)
        return Field(OWN, 2 * rows), Field("uint8", rows * packed_length(columns))

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        means, bits = fields
        positive = total >= 0
        count = positive.sum(1)
        up = row_sums(total.clamp_min(0)) / count.clamp_min(1)
        down = row_sums(total.clamp_max(0)) / (total.shape[1] - count).clamp_min(1)
        means.view(2, -1)[0].copy_(up)
        means.view(2, -1)[1].copy_(down)
        packed(positive, bits.view(len(total), -1))
        up, down = means.view(2, -1, 1)
        total.sub_(up.where(positive, down))

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        means, bits = fields
        up, down = means.view(2, -1, 1)
        out.copy_(up.where(unpacked(bits.view(len(out), -1), out.shape[1]), down))
