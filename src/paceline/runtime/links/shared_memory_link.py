"""`Link` on one machine: an offer says that a span lies ready in shared memory, and its taker reads it there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from paceline.runtime.links import TURNS, Span
from paceline.runtime.links.doorbell import Doorbell
from paceline.runtime.links.memory import Memory, lines
from paceline.runtime.links.waiting import Cancelled, Waiter

if TYPE_CHECKING:
    from paceline.runtime.links import Link


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
        self._addresses = [(to.data_ptr(), own.data_ptr()) for to, own in zip(offered, self.vectors, strict=True)]
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
        # The numbers were written before; x86 shows stores to other cores in their order (`links.store_order`).
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
        self._counts, self._taken = [offers for offers, _ in counts], [taken for _, taken in counts]

    def abort(self) -> None:
        """End every wait on this link, on all ranks: each raises `Cancelled`."""
        # Before the doorbells: a rank that is woken looks at once, and would sleep again.
        self._aborted[0] = 1
        for doorbell in self._doorbells:
            doorbell.ring()


if TYPE_CHECKING:
    _: type[Link] = SharedMemoryLink
