"""When replicas that step on their own are exchanged: whole and at once, or in fragments, as in Streaming DiLoCo.

Douillard et al., "Streaming DiLoCo with overlapping communication: towards a distributed free lunch", 2025. The
parameters are cut into F fragments. Within each period of `every` updates every fragment is exchanged once, at offsets
that are spread evenly:

    every = 4, fragments = 2       update     0   1   2   3   4   5   6   7
                                   exchange       0       1       0       1        (after the update)

So the exchange of number k is that of fragment k mod F, and an exchange has about 1/F of the bytes. After the last
update every fragment is exchanged once more, and all replicas agree. Fragments are whole tensors, balanced by size; the
paper takes whole layers. With one fragment this is DiLoCo, or local SGD, as published.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Streaming:
    """The exchanges of a run by the updates after which they begin."""

    #: Updates between two exchanges of a fragment; 0 for a single exchange at the end.
    every: int
    fragments: int = 1

    def after(self, update: int, updates: int) -> int:
        """Return how many exchanges begin after this one of so many updates: all fragments' after the last."""
        return self.fragments if update + 1 == updates else self._due(update + 1) - self._due(update)

    def before(self, update: int, updates: int) -> int:
        """Return how many exchanges have begun before this update does."""
        if update and update == updates:
            return self._due(update - 1) + self.fragments
        return self._due(update)

    def ahead(self, updates: range) -> range:
        """Return these updates up to the one after which the next exchange begins."""
        if not self.every:
            return updates
        stop = -(-(self._due(updates[0]) + 1) * self.every // self.fragments)
        return range(updates[0], min(stop, updates.stop))

    def fragment(self, number: int) -> int:
        """Return the fragment of the exchange of this number."""
        return number % self.fragments

    def _due(self, updates: int) -> int:
        return updates * self.fragments // self.every if self.every else 0
