"""The arithmetic over slots. Every function is what one rank does; `call` is what it says in its cell.

Sums are taken in the order of the ranks, and each number of a sum by one formula, so all ranks get the same bits.
Vectors longer than a slot go in pieces, round after round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from paceline.backend.board import SLOT, Board
from paceline.core.meetings import segment_cuts

Combine = Callable[..., Tensor]

# The order of PyTorch's ReduceOp.RedOpType; an average is a sum that is divided.
COMBINE: tuple[Combine, ...] = (
    torch.add, torch.add, torch.mul, torch.minimum, torch.maximum,
    torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor,
)  # fmt: skip
AVERAGE = 1

# From here on, with more than two ranks, each adds up a segment and the others copy it; below, everybody adds up all.
SEGMENTS_FROM = 64 << 10  # bytes


def pieces(count: int, itemsize: int, parts: int = 1) -> Iterator[tuple[int, int]]:
    """Cut a vector so that `parts` of a piece fit into a slot; a vector without numbers is one piece."""
    most = SLOT // parts // 64 * 64 // itemsize
    yield from ((start, min(start + most, count)) for start in range(0, count, most)) if count else [(0, 0)]


def all_reduce(board: Board, call: int, vector: Tensor, reduction: int) -> None:
    combine, count, itemsize = COMBINE[reduction], vector.numel(), vector.element_size()
    in_segments = board.ranks > 2 and count * itemsize >= SEGMENTS_FROM
    for start, stop in pieces(count, itemsize):
        piece = vector if stop - start == count else vector[start:stop]
        if in_segments:
            _by_segments(board, call, piece, combine)
        else:
            _all_by_everybody(board, call, piece, combine)
    average(vector, reduction, board.ranks)


def _all_by_everybody(board: Board, call: int, piece: Tensor, combine: Combine) -> None:
    slots = board.slots(piece.dtype, piece.numel())
    slots[board.rank].copy_(piece)
    board.meet(call)
    if board.ranks == 2:
        combine(piece, slots[1 - board.rank], out=piece)  # in either order the same bits
    else:
        fold(slots, combine, piece)


def _by_segments(board: Board, call: int, piece: Tensor, combine: Combine) -> None:
    cuts = segment_cuts(piece.numel(), board.ranks, piece.element_size())
    spans = [slice(*pair) for pair in zip(cuts, cuts[1:], strict=False)]
    mine = spans[board.rank]
    slots = board.slots(piece.dtype, piece.numel())
    slots[board.rank].copy_(piece)
    board.meet(call)
    total = piece[mine]
    fold([slot[mine] for slot in slots], combine, total)
    sums = board.slots(piece.dtype, piece.numel())
    sums[board.rank][mine].copy_(total)
    board.meet(call)
    for rank, span in enumerate(spans):
        if rank != board.rank:
            piece[span].copy_(sums[rank][span])


def fold(parts: Sequence[Tensor], combine: Combine, out: Tensor) -> None:
    if len(parts) == 1:
        out.copy_(parts[0])
        return
    combine(parts[0], parts[1], out=out)
    for part in parts[2:]:
        combine(out, part, out=out)


def average(vector: Tensor, reduction: int, ranks: int) -> None:
    if reduction == AVERAGE:
        vector.div_(ranks, rounding_mode=None if vector.is_floating_point() or vector.is_complex() else "trunc")


def reduce(board: Board, call: int, vector: Tensor, reduction: int, root: int) -> None:
    for start, stop in pieces(vector.numel(), vector.element_size()):
        piece = vector[start:stop]
        slots = board.slots(piece.dtype, stop - start)
        slots[board.rank].copy_(piece)
        board.meet(call)
        if board.rank == root:
            fold(slots, COMBINE[reduction], piece)
    if board.rank == root:
        average(vector, reduction, board.ranks)


def broadcast(board: Board, call: int, vector: Tensor, root: int) -> None:
    for start, stop in pieces(vector.numel(), vector.element_size()):
        slot = board.slots(vector.dtype, stop - start)[root]
        if board.rank == root:
            slot.copy_(vector[start:stop])
        board.meet(call)
        if board.rank != root:
            vector[start:stop].copy_(slot)


def all_gather(board: Board, call: int, outputs: Sequence[Tensor], vector: Tensor) -> None:
    """`outputs` may be empty, for who only gives."""
    for start, stop in pieces(vector.numel(), vector.element_size()):
        slots = board.slots(vector.dtype, stop - start)
        slots[board.rank].copy_(vector[start:stop])
        board.meet(call)
        for output, slot in zip(outputs, slots, strict=False):
            output[start:stop].copy_(slot)


def scatter(board: Board, call: int, output: Tensor, inputs: Sequence[Tensor], root: int) -> None:
    """`inputs` are those of the root."""
    for start, stop in pieces(output.numel(), output.element_size(), board.ranks):
        length = stop - start
        slot = board.slots(output.dtype, length * board.ranks)[root]
        for rank, vector in enumerate(inputs):
            slot[rank * length : (rank + 1) * length].copy_(vector[start:stop])
        board.meet(call)
        output[start:stop].copy_(slot[board.rank * length : (board.rank + 1) * length])


def reduce_scatter(board: Board, call: int, output: Tensor, inputs: Sequence[Tensor], reduction: int) -> None:
    for slots, start, stop in _everybody_to_everybody(board, call, [v.numel() for v in inputs], inputs):
        here = output[start:stop]
        fold([slot[: here.numel()] for slot in slots], COMBINE[reduction], here)
    average(output, reduction, board.ranks)


def all_to_all(board: Board, call: int, outputs: Sequence[Tensor], inputs: Sequence[Tensor], longest: int) -> None:
    """`longest` is the length of the longest vector that any rank sends to any: so many rounds everybody takes part."""
    for slots, start, stop in _everybody_to_everybody(board, call, [longest] * board.ranks, inputs):
        for output, slot in zip(outputs, slots, strict=True):
            here = output[start:stop]
            here.copy_(slot[: here.numel()])


def _everybody_to_everybody(
    board: Board, call: int, lengths: Sequence[int], inputs: Sequence[Tensor]
) -> Iterator[tuple[list[Tensor], int, int]]:
    """(what everybody has for this rank, where it begins, where it ends); vectors may be shorter than that."""
    dtype = inputs[0].dtype
    for start, stop in pieces(max(lengths), dtype.itemsize, board.ranks):
        length = stop - start
        slots = board.slots(dtype, length * board.ranks)
        for rank, vector in enumerate(inputs):
            part = vector[start:stop]
            slots[board.rank][rank * length : rank * length + part.numel()].copy_(part)
        board.meet(call)
        here = slice(board.rank * length, (board.rank + 1) * length)
        yield [slot[here] for slot in slots], start, stop
