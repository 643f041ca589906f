"""The arithmetic over slots. A function is what one rank does: it yields its call where all must have arrived with it.

Sums are taken in the order of the ranks, and each number of a sum by one formula, so all ranks get the same bits.
Vectors longer than a slot go in pieces, round after round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from paceline.algorithms.collectives import segment_cuts
from paceline.errors import UsageError
from paceline.runtime.backend.group_memory import DTYPE_NUMBERS, SLOT, GroupMemory

Combine = Callable[..., Tensor]
Steps = Iterator[int]

# The order of PyTorch's ReduceOp.RedOpType; an average is a sum that is divided.
COMBINE: tuple[Combine, ...] = (
    torch.add,
    torch.add,
    torch.mul,
    torch.minimum,
    torch.maximum,
    torch.bitwise_and,
    torch.bitwise_or,
    torch.bitwise_xor,
)
AVERAGE = 1

# From here on, with more than two ranks, each sums a segment and the others copy it; below, each sums all.
SEGMENTS_FROM = 64 << 10  # bytes


def pieces(count: int, itemsize: int, parts: int = 1) -> Iterator[tuple[int, int]]:
    """Yield the pieces of a vector, each so short that `parts` of it fit into a slot; an empty vector is one piece."""
    most = SLOT // parts // 64 * 64 // itemsize
    yield from ((start, min(start + most, count)) for start in range(0, count, most)) if count else [(0, 0)]


def one_after_another(steps: Sequence[Steps], tensors: Sequence[Tensor], vectors: Sequence[Tensor]) -> Steps:
    """Run several collectives as one operation, and copy the vectors back into the tensors at its end."""
    for each in steps:
        yield from each
    for tensor, vector in zip(tensors, vectors, strict=True):
        copy_back(tensor, vector)


def barrier(call: int) -> Steps:
    """Wait for all ranks to arrive."""
    yield call


def all_reduce(memory: GroupMemory, call: int, vector: Tensor, reduction: int) -> Steps:
    """Combine the vectors of all ranks, on all ranks, in the vector's place."""
    combine, count, itemsize = COMBINE[reduction], vector.numel(), vector.element_size()
    in_segments = memory.ranks > 2 and count * itemsize >= SEGMENTS_FROM
    for start, stop in pieces(count, itemsize):
        piece = vector if stop - start == count else vector[start:stop]
        if in_segments:
            yield from _by_segments(memory, call, piece, combine)
        else:
            slots = memory.slots(piece.dtype, stop - start)
            slots[memory.rank].copy_(piece)  # [3] the only copy
            yield call  # [4] and [5] are the work's, which goes on here when all ranks have arrived
            if memory.ranks == 2:
                combine(piece, slots[1 - memory.rank], out=piece)  # [6] in either order the same bits
            else:
                fold(slots, combine, piece)
    average(vector, reduction, memory.ranks)


def _by_segments(memory: GroupMemory, call: int, piece: Tensor, combine: Combine) -> Steps:
    """Two rounds: each rank combines one segment of all slots, then all copy the others' segments."""
    cuts = segment_cuts(piece.numel(), memory.ranks, piece.element_size())
    spans = [slice(*pair) for pair in pairwise(cuts)]
    mine = spans[memory.rank]
    slots = memory.slots(piece.dtype, piece.numel())
    slots[memory.rank].copy_(piece)
    yield call
    total = piece[mine]
    fold([slot[mine] for slot in slots], combine, total)
    sums = memory.slots(piece.dtype, piece.numel())
    sums[memory.rank][mine].copy_(total)
    yield call
    for rank, span in enumerate(spans):
        if rank != memory.rank:
            piece[span].copy_(sums[rank][span])


def fold(parts: Sequence[Tensor], combine: Combine, out: Tensor) -> None:
    """Combine parts in the order of the ranks."""
    if len(parts) == 1:
        out.copy_(parts[0])
        return
    combine(parts[0], parts[1], out=out)
    for part in parts[2:]:
        combine(out, part, out=out)


def average(vector: Tensor, reduction: int, ranks: int) -> None:
    """Divide a sum, if the reduction is an average."""
    if reduction == AVERAGE:
        vector.div_(ranks, rounding_mode=None if vector.is_floating_point() or vector.is_complex() else "trunc")


def reduce(memory: GroupMemory, call: int, vector: Tensor, reduction: int, root: int) -> Steps:
    """Combine the vectors of all ranks in that of the root."""
    for start, stop in pieces(vector.numel(), vector.element_size()):
        piece = vector[start:stop]
        slots = memory.slots(piece.dtype, stop - start)
        slots[memory.rank].copy_(piece)
        yield call
        if memory.rank == root:
            fold(slots, COMBINE[reduction], piece)
    if memory.rank == root:
        average(vector, reduction, memory.ranks)


def broadcast(memory: GroupMemory, call: int, vector: Tensor, root: int) -> Steps:
    """Copy the root's vector into that of every other rank."""
    for start, stop in pieces(vector.numel(), vector.element_size()):
        slot = memory.slots(vector.dtype, stop - start)[root]
        if memory.rank == root:
            slot.copy_(vector[start:stop])
        yield call
        if memory.rank != root:
            vector[start:stop].copy_(slot)


def all_gather(memory: GroupMemory, call: int, outputs: Sequence[Tensor], vector: Tensor) -> Steps:
    """Copy the vectors of all ranks into the outputs, one each; a rank that only gives has none."""
    for start, stop in pieces(vector.numel(), vector.element_size()):
        slots = memory.slots(vector.dtype, stop - start)
        slots[memory.rank].copy_(vector[start:stop])
        yield call
        for output, slot in zip(outputs, slots, strict=False):
            output[start:stop].copy_(slot)


def scatter(memory: GroupMemory, call: int, output: Tensor, inputs: Sequence[Tensor], root: int) -> Steps:
    """Copy an input of the root into the output of each rank; on other ranks there are no inputs."""
    for start, stop in pieces(output.numel(), output.element_size(), memory.ranks):
        length = stop - start
        slot = memory.slots(output.dtype, length * memory.ranks)[root]
        for rank, vector in enumerate(inputs):
            slot[rank * length : (rank + 1) * length].copy_(vector[start:stop])
        yield call
        output[start:stop].copy_(slot[memory.rank * length : (memory.rank + 1) * length])


def reduce_scatter(memory: GroupMemory, call: int, output: Tensor, inputs: Sequence[Tensor], reduction: int) -> Steps:
    """Combine what all ranks have for each rank, in that rank's output.

    Outputs of different lengths are allowed, as long as all ranks say the same of them.
    """
    for start, stop in pieces(max(len(part) for part in inputs), output.element_size(), memory.ranks):
        slots = _offer(memory, inputs, start, stop)
        yield call
        target = output[start:stop]
        fold([slot[: target.numel()] for slot in slots], COMBINE[reduction], target)
    average(output, reduction, memory.ranks)


def all_to_all(memory: GroupMemory, call: int, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Steps:
    """Copy what each rank has for this one into an output each.

    No rank knows how long the others' vectors are: all say so first, and all check it all.
    """
    mine = torch.tensor([[len(part) for part in inputs], [len(part) for part in outputs]])
    table = torch.empty((memory.ranks, *mine.shape), dtype=torch.int64)
    yield from all_gather(memory, call, table.view(memory.ranks, -1).unbind(), mine.view(-1))
    sent, expected = table[:, 0], table[:, 1].T
    if not torch.equal(sent, expected):
        giver, taker = (sent != expected).nonzero()[0].tolist()
        raise UsageError(
            f"all_to_all: rank {giver} gives rank {taker} {sent[giver, taker]} numbers, "
            f"which expects {expected[giver, taker]}; both must be the same"
        )
    for start, stop in pieces(int(sent.max()), inputs[0].element_size(), memory.ranks):
        slots = _offer(memory, inputs, start, stop)
        yield call
        for output, slot in zip(outputs, slots, strict=True):
            target = output[start:stop]
            target.copy_(slot[: target.numel()])


def _offer(memory: GroupMemory, inputs: Sequence[Tensor], start: int, stop: int) -> list[Tensor]:
    """Put a piece for each rank into this rank's slot, and return what all ranks have for this one.

    Vectors may end before the piece does.
    """
    length = stop - start
    slots = memory.slots(inputs[0].dtype, length * memory.ranks)
    for rank, vector in enumerate(inputs):
        part = vector[start:stop]
        slots[memory.rank][rank * length : rank * length + part.numel()].copy_(part)
    return [slot[memory.rank * length : (memory.rank + 1) * length] for slot in slots]


# A tensor as the vector of numbers that collectives and messages work on.


class Unsupported(Exception):
    """A tensor that another backend must take; raised before anything has happened."""

    def __init__(self, device: str, what: str) -> None:
        self.device, self.what = device, what
        super().__init__(f"the paceline backend has no operations on {what}")


def flat(tensor: Tensor) -> Tensor:
    """Return a view of the tensor's numbers, or a copy if they are not contiguous; unseen by autograd, as with gloo."""
    if not tensor.is_cpu:
        raise Unsupported(tensor.device.type, f"tensors on {tensor.device.type}")
    if tensor.layout != torch.strided or tensor.dtype not in DTYPE_NUMBERS:
        what = f"{tensor.dtype} tensors" if tensor.layout == torch.strided else "sparse tensors"
        raise Unsupported("cpu", what)
    return tensor.data.view(-1) if tensor.is_contiguous() else tensor.data.contiguous().view(-1)


def copy_back(tensor: Tensor, vector: Tensor) -> None:
    """Copy a result into the tensor, if `flat` had to make a copy of it."""
    if not tensor.is_contiguous():
        tensor.data.copy_(vector.view(tensor.shape))
