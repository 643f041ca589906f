"""The batches that a shard has applied: all below a low-water mark, and some above it."""

from __future__ import annotations

from collections.abc import Iterable


class Applied:
    """A set of batches that grows from 0 on, in about the order of the numbers.

    Above the mark lie only batches that overtook one that is still under way, so the set stays as small as the number
    of leases.
    """

    def __init__(self, mark: int = 0, above: Iterable[int] = ()) -> None:
        self.mark, self.above = mark, set(above)
        self._advance_mark()

    def add(self, batch: int) -> None:
        self.above.add(batch)
        self._advance_mark()

    def _advance_mark(self) -> None:
        while self.mark in self.above:
            self.above.remove(self.mark)
            self.mark += 1

    def __contains__(self, batch: int) -> bool:
        return batch < self.mark or batch in self.above

    @property
    def end(self) -> int:
        """One more than the highest batch."""
        return max(self.above, default=self.mark - 1) + 1

    @property
    def key(self) -> tuple[int, tuple[int, ...]]:
        """The mark and the batches above it, sorted."""
        return self.mark, tuple(sorted(self.above))


def common(sets: Iterable[Applied]) -> Applied:
    """Return the batches that are in all of these sets."""
    first, *rest = sets
    end = min(each.end for each in (first, *rest))
    mark = min(each.mark for each in (first, *rest))
    return Applied(mark, (b for b in range(mark, end) if b in first and all(b in each for each in rest)))
