"""The arithmetic over slots. A function is what one rank does: it yields its call where all must have come with it.

Sums are taken in the order of the ranks, and each number of a sum by one formula, so all ranks get the same bits.
Vectors longer than a slot go in pieces, round after round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from paceline.backend.board import SLOT, Board
from paceline.backend.vectors import settle
from paceline.core.collectives import segment_cuts
from paceline.errors import UsageError

Combine = Callable[..., Tensor]
Steps = Iterator[int]

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


def in_turn(steps: Sequence[Steps], tensors: Sequence[Tensor], vectors: Sequence[Tensor]) -> Steps:
    """Several as one operation; at the end, the vectors go where they belong, into the tensors."""
    for each in steps:
        yield from each
    for tensor, vector in zip(tensors, vectors, strict=True):
        settle(tensor, vector)


def meet(call: int) -> Steps:
    yield call


def all_reduce(board: Board, call: int, vector: Tensor, reduction: int) -> Steps:
    combine, count, itemsize = COMBINE[reduction], vector.numel(), vector.element_size()
    in_segments = board.ranks > 2 and count * itemsize >= SEGMENTS_FROM
    for start, stop in pieces(count, itemsize):
        piece = vector if stop - start == count else vector[start:stop]
        if in_segments:
            yield from _by_segments(board, call, piece, combine)
        else:
            slots = board.slots(piece.dtype, stop - start)
            slots[board.rank].copy_(piece)
            yield call
            if board.ranks == 2:
                combine(piece, slots[1 - board.rank], out=piece)  # in either order the same bits
            else:
                fold(slots, combine, piece)
    average(vector, reduction, board.ranks)


def _by_segments(board: Board, call: int, piece: Tensor, combine: Combine) -> Steps:
    cuts = segment_cuts(piece.numel(), board.ranks, piece.element_size())
    spans = [slice(*pair) for pair in pairwise(cuts)]
    mine = spans[board.rank]
    slots = board.slots(piece.dtype, piece.numel())
    slots[board.rank].copy_(piece)
    yield call
    total = piece[mine]
    fold([slot[mine] for slot in slots], combine, total)
    sums = board.slots(piece.dtype, piece.numel())
    sums[board.rank][mine].copy_(total)
    yield call
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


def reduce(board: Board, call: int, vector: Tensor, reduction: int, root: int) -> Steps:
    for start, stop in pieces(vector.numel(), vector.element_size()):
        piece = vector[start:stop]
        slots = board.slots(piece.dtype, stop - start)
        slots[board.rank].copy_(piece)
        yield call
        if board.rank == root:
            fold(slots, COMBINE[reduction], piece)
    if board.rank == root:
        average(vector, reduction, board.ranks)


def broadcast(board: Board, call: int, vector: Tensor, root: int) -> Steps:
    for start, stop in pieces(vector.numel(), vector.element_size()):
        slot = board.slots(vector.dtype, stop - start)[root]
        if board.rank == root:
            slot.copy_(vector[start:stop])
        yield call
        if board.rank != root:
            vector[start:stop].copy_(slot)


def all_gather(board: Board, call: int, outputs: Sequence[Tensor], vector: Tensor) -> Steps:
    """`outputs` may be empty, for who only gives."""
    for start, stop in pieces(vector.numel(), vector.element_size()):
        slots = board.slots(vector.dtype, stop - start)
        slots[board.rank].copy_(vector[start:stop])
        yield call
        for output, slot in zip(outputs, slots, strict=False):
            output[start:stop].copy_(slot)


def scatter(board: Board, call: int, output: Tensor, inputs: Sequence[Tensor], root: int) -> Steps:
    """`inputs` are those of the root."""
    for start, stop in pieces(output.numel(), output.element_size(), board.ranks):
        length = stop - start
        slot = board.slots(output.dtype, length * board.ranks)[root]
        for rank, vector in enumerate(inputs):
            slot[rank * length : (rank + 1) * length].copy_(vector[start:stop])
        yield call
        output[start:stop].copy_(slot[board.rank * length : (board.rank + 1) * length])


def reduce_scatter(board: Board, call: int, output: Tensor, inputs: Sequence[Tensor], reduction: int) -> Steps:
    """Outputs of different lengths are allowed, as long as all ranks say the same of them."""
    for start, stop in pieces(max(len(part) for part in inputs), output.element_size(), board.ranks):
        slots = _offer(board, inputs, start, stop)
        yield call
        here = output[start:stop]
        fold([slot[: here.numel()] for slot in slots], COMBINE[reduction], here)
    average(output, reduction, board.ranks)


def all_to_all(board: Board, call: int, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Steps:
    """Nobody knows how long the others' vectors are: everybody says so first, and everybody checks all."""
    mine = torch.tensor([[len(part) for part in inputs], [len(part) for part in outputs]])
    table = torch.empty((board.ranks, *mine.shape), dtype=torch.int64)
    yield from all_gather(board, call, table.view(board.ranks, -1).unbind(), mine.view(-1))
    given, taken = table[:, 0], table[:, 1].T
    if not torch.equal(given, taken):
        giver, taker = (given != taken).nonzero()[0].tolist()
        raise UsageError(
            f"all_to_all: rank {giver} gives rank {taker} {given[giver, taker]} numbers, "
            f"which expects {taken[giver, taker]}; both must be the same"
        )
    for start, stop in pieces(int(given.max()), inputs[0].element_size(), board.ranks):
        slots = _offer(board, inputs, start, stop)
        yield call
        for output, slot in zip(outputs, slots, strict=True):
            here = output[start:stop]
            here.copy_(slot[: here.numel()])


def _offer(board: Board, inputs: Sequence[Tensor], start: int, stop: int) -> list[Tensor]:
    """Put a piece for each rank into one's slot; what everybody has for this rank. Vectors may end before the piece."""
    length = stop - start
    slots = board.slots(inputs[0].dtype, length * board.ranks)
    for rank, vector in enumerate(inputs):
        part = vector[start:stop]
        slots[board.rank][rank * length : rank * length + part.numel()].copy_(part)
    return [slot[board.rank * length : (board.rank + 1) * length] for slot in slots]
