"""`Link` and `MessageChannel` on one machine: spans that lie ready in shared memory, and a ring of messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from paceline.errors import JobError
from paceline.runtime.links import TURNS, Span
from paceline.runtime.links.memory import Memory, lines
from paceline.runtime.links.ring_buffer import Ring
from paceline.runtime.links.waiting import Cancelled, Doorbell, Waiter

if TYPE_CHECKING:
    from paceline.runtime.links import Link, MessageChannel


# `MessageChannel` on one machine: a ring of messages in shared memory, from one stage of a pipeline to a neighbour.
# A message stays in its slot until it is taken, which copies it out:
#
#     how many tensors | of each: its dtype, shape and strides | the bytes of the first | of the second | ...

DIMENSIONS = 8
ENTRY = 2 + 2 * DIMENSIONS  # type, number of dimensions, sizes, strides
TYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
NOTHING = -1  # in the place of a type: there is no gradient of this one


@dataclass(frozen=True)
class MailShape:
    """What a mailbox must have room for."""

    channel: tuple[int, int]  # from which stage to which
    tensors: int  # most in a message
    bytes: int  # of the largest message
    slots: int
    line: int = 0  # which of several pipelines that lie beside each other

    @property
    def head(self) -> int:
        """The integers that describe a message."""
        return 1 + ENTRY * self.tensors

    @property
    def slot(self) -> int:
        """The bytes of a slot."""
        return lines(8 * self.head) + lines(self.bytes)

    @property
    def size(self) -> int:
        """The bytes that `MailSlots` takes of a memory."""
        return Ring.size(self.slots, self.slot)


def bytes_of(message: Sequence[Tensor | None]) -> int:
    """Return the bytes of a message's tensors."""
    return sum(tensor.nbytes for tensor in message if tensor is not None)


class MailSlots:
    """The memory of a mailbox, which both ends make over the same place."""

    def __init__(self, memory: Memory, shape: MailShape) -> None:
        self.shape = shape
        self.ring = Ring(memory.take(shape.size), shape.slots, shape.slot)
        slots = [self.ring.slot(number) for number in range(shape.slots)]
        start = lines(8 * shape.head)
        #: The integers that describe the message in each slot, and its bytes.
        self.heads = [slot[: 8 * shape.head].cast("q") for slot in slots]
        self.raws = [
            torch.frombuffer(slot[start:], dtype=torch.uint8) if shape.bytes else torch.empty(0, dtype=torch.uint8)
            for slot in slots
        ]


class Mailbox:
    """An end of a mailbox. The sending stage calls `put`, the receiving one `take`."""

    def __init__(self, slots: MailSlots, peer: int, doorbell: Doorbell, waiter: Waiter) -> None:
        """
        Args:
            slots: the memory of the mailbox.
            peer: the worker at the other end, and its `doorbell`.
            waiter: how this worker waits.
        """
        self.slots, self.waited = slots, 0
        self._ring, self._doorbell, self._waiter = slots.ring, doorbell, waiter
        self._peer = f"worker {peer}"

    @property
    def full(self) -> bool:
        """Whether `put` would wait for the receiver."""
        return self._ring.full

    @property
    def empty(self) -> bool:
        """Whether `take` would wait for the sender."""
        return self._ring.empty

    def put(self, message: Sequence[Tensor | None]) -> int:
        """Send tensors without gaps, and return their bytes. Waits while the mailbox is full."""
        if self.full:
            self.waited += self._waiter.until(lambda: not self.full, lambda: self._peer)
        number = self._ring.sent[0]
        self._write(number % self._ring.slots, message)
        # After the write: the receiver reads the slot as soon as this counter has passed it.
        self._ring.sent[0] = number + 1
        self._doorbell.ring()
        return bytes_of(message)

    def take(self) -> list[Tensor | None]:
        """Return a copy of the next message. Waits while the mailbox is empty."""
        if self.empty:
            self.waited += self._waiter.until(lambda: not self.empty, lambda: self._peer)
        number = self._ring.taken[0]
        message = self._read(number % self._ring.slots)
        # After the copy: the sender overwrites the slot as soon as this counter has passed it.
        self._ring.taken[0] = number + 1
        self._doorbell.ring()
        return message

    def _write(self, slot: int, message: Sequence[Tensor | None]) -> None:
        shape = self.slots.shape
        head, raw, start = self.slots.heads[slot], self.slots.raws[slot], 0
        head[0] = len(message)
        for number, tensor in enumerate(message):
            at = 1 + ENTRY * number
            if tensor is None:
                head[at] = NOTHING
                continue
            if start + tensor.nbytes > shape.bytes:
                raise JobError(
                    f"a message from stage {shape.channel[0]} to {shape.channel[1]} is larger than that of "
                    f"the first batch, {shape.bytes} bytes; let all samples have one size"
                )
            head[at], head[at + 1] = TYPES.index(tensor.dtype), tensor.dim()
            for place, number_of in enumerate((*tensor.shape, *tensor.stride()), start=at + 2):
                head[place] = number_of
            part = raw[start : start + tensor.nbytes].view(tensor.dtype)
            part.as_strided(tensor.shape, tensor.stride()).copy_(tensor)
            start += lines(tensor.nbytes)

    def _read(self, slot: int) -> list[Tensor | None]:
        head, raw, start = self.slots.heads[slot], self.slots.raws[slot], 0
        message: list[Tensor | None] = []
        for number in range(head[0]):
            at = 1 + ENTRY * number
            if head[at] == NOTHING:
                message.append(None)
                continue
            dtype, middle = TYPES[head[at]], at + 2 + head[at + 1]
            shape, strides = head[at + 2 : middle].tolist(), head[middle : middle + head[at + 1]].tolist()
            size = prod(shape) * dtype.itemsize
            message.append(raw[start : start + size].view(dtype).as_strided(shape, strides).clone())
            start += lines(size)
        return message


if TYPE_CHECKING:
    _channel: type[MessageChannel] = Mailbox


SPANS = 4096  # of which views are kept


class SharedVectors:
    """The memory behind a link: `TURNS` vectors of every rank, and how often each rank has offered to each other.

        counters   rank 0: to 0 | to 1 | ...     rank 1: to 0 | to 1 | ...
        vectors    rank 0: turn 0 | turn 1       rank 1: turn 0 | turn 1       ...

    Every rank of a world makes it over the same place in the same memory.
    """

    def __init__(self, memory: Memory, ranks: int, numbers: int, dtype: torch.dtype) -> None:
        self.aborted = memory.ints(1)
        #: counters[from][to] is the number of offers; only `from` writes it, and it never falls.
        self.counters = [memory.ints(ranks) for _ in range(ranks)]
        self.vectors = [[memory.tensor(numbers, dtype) for _ in range(TURNS)] for _ in range(ranks)]

    @staticmethod
    def size(ranks: int, numbers: int, dtype: torch.dtype) -> int:
        """The bytes that `SharedVectors` takes of a memory."""
        return lines(8) + ranks * (lines(8 * ranks) + TURNS * lines(numbers * dtype.itemsize))


class _Views(dict[Span, Tensor]):
    """The spans of one rank's vectors, as views that are made once: to slice costs more than a whole step."""

    def __init__(self, vectors: Sequence[Tensor]) -> None:
        self.vectors = vectors

    def __missing__(self, span: Span) -> Tensor:
        if len(self) > SPANS:  # spans that vary in length
            self.clear()
        view = self[span] = self.vectors[span.turn][span.start : span.stop]
        return view


class PeerMemory(NamedTuple):
    """What a rank and one of its peers share, for generated code that offers and takes in the place of Python."""

    #: One integer each: how often this rank has offered to the peer, and the peer to this rank.
    offered: memoryview
    awaited: memoryview
    doorbell: Doorbell
    vectors: Sequence[Tensor]


class SharedMemoryLink:
    """A rank's end of a link over `SharedVectors`.

    `offer` adds one to a counter and wakes the peer if it sleeps; `take` waits for the peer's counter and returns a
    view of its vector in shared memory. With `copy` a rank changes its vectors in memory of its own, and `offer` copies
    the span into shared memory: to change a cache line there that others have read may cost a message between cores,
    each time. A loop over the steps of a collective costs about a microsecond a step besides its arithmetic, if it
    prepares the spans and binds the methods:

        offer, take = link.offer, link.take
        for to, out, peer, into, combine in steps:  # combine: `add_` or `copy_` of a span of this rank's vector
            if out is not None:
                offer(to, out)
            if combine is not None:
                combine(take(peer, into))
    """

    def __init__(
        self,
        shared: SharedVectors,
        rank: int,
        doorbells: Sequence[Doorbell],
        waiter: Waiter,
        copy: Callable[[int, int, int], object] | None = None,
    ) -> None:
        """
        Args:
            shared: the vectors and counters of all ranks.
            rank: whose end this is.
            doorbells: one per rank. A rank's `waiter` sleeps on its own.
            waiter: how this rank waits: its deadline, and whether the run was cancelled.
            copy: copies bytes, given the addresses to and from which, and how many.
        """
        self.rank, self.waited = rank, 0
        offered = shared.vectors[rank]
        self.vectors: Sequence[Tensor] = [torch.zeros_like(vector) for vector in offered] if copy else offered
        self._copy, self._bytes = copy, offered[0].element_size()
        self._addresses = [(to.data_ptr(), source.data_ptr()) for to, source in zip(offered, self.vectors, strict=True)]
        self._doorbells, self._waiter, self._aborted = doorbells, waiter, shared.aborted
        self._flags = [doorbell.flag for doorbell in doorbells]
        self._offered = shared.counters[rank]
        # Only this rank writes its counters, so a list always says what they hold, and is read faster.
        self._counts = self._offered.tolist()
        self._offers = [row[rank : rank + 1] for row in shared.counters]
        #: How many offers of each peer were taken; none yet, also where a peer has begun before this rank.
        self._taken = [0] * len(shared.counters)
        self._views = [_Views(vectors) for vectors in shared.vectors]

    def offer(self, to: int, span: Span) -> None:
        """Let rank `to` take a span of this rank's vector. Returns without waiting for it."""
        if self._copy is not None:
            (offered, local), start = self._addresses[span.turn], span.start * self._bytes
            self._copy(offered + start, local + start, (span.stop - span.start) * self._bytes)
        # The numbers were written before; x86 shows stores to other cores in their order (`links.memory`).
        count = self._counts[to] = self._counts[to] + 1
        self._offered[to] = count
        if self._flags[to][0]:
            self._doorbells[to].ring()

    def take(self, peer: int, span: Span) -> Tensor:
        """Return a view of what rank `peer` offered, valid until this rank offers something later."""
        target = self._taken[peer] = self._taken[peer] + 1
        # Looked at here first: where the peer has already offered, a step makes no closures for a wait.
        if self._offers[peer][0] < target:
            self._wait(peer, target)
        # A view, without a copy: the peer leaves the span alone until it has taken an offer that this rank makes later
        # (`algorithms.collectives.proof` shows it of every table).
        return self._views[peer][span]

    def _wait(self, peer: int, target: int) -> None:
        """Wait until the peer has made its offer of this number."""
        offers, aborted = self._offers[peer], self._aborted
        self.waited += self._waiter.until(lambda: offers[0] >= target or aborted[0] != 0, lambda: f"worker {peer}")
        # What was offered before the link was cancelled is still taken.
        if offers[0] < target:
            raise Cancelled

    def shared_with(self, peer: int) -> PeerMemory:
        """Return what this rank shares with a peer."""
        vectors = self._views[peer].vectors
        return PeerMemory(self._offered[peer : peer + 1], self._offers[peer], self._doorbells[peer], vectors)

    @property
    def aborted(self) -> memoryview:
        """One integer: 1 from `abort` on."""
        return self._aborted

    @property
    def counts(self) -> list[tuple[int, int]]:
        """How often this rank has offered to each rank and taken from it; to be set where generated code did."""
        return list(zip(self._counts, self._taken, strict=True))

    @counts.setter
    def counts(self, counts: Sequence[tuple[int, int]]) -> None:
        self._counts, self._taken = [offers for offers, _ in counts], [takes for _, takes in counts]

    def abort(self) -> None:
        """End every wait on this link, on all ranks: each raises `Cancelled`."""
        # Before the doorbells: a rank that is woken looks at once, and would sleep again.
        self._aborted[0] = 1
        for doorbell in self._doorbells:
            doorbell.ring()


if TYPE_CHECKING:
    _: type[Link] = SharedMemoryLink
