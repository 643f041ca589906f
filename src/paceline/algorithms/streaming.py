"""When replicas that step on their own are exchanged: whole and at once, or in fragments, as in Streaming DiLoCo.

Douillard et al., "Streaming DiLoCo with overlapping communication: towards a distributed free lunch", 2025. The
parameters are cut into F fragments. Within each period of `every` updates every fragment is exchanged once, at offsets
that are spread evenly:

    every = 4, fragments = 2       update     0   1   2   3   4   5   6   7
                                   exchange       0       1       0       1        (after the update)

So the exchange of number k is that of fragment k mod F, and an exchange has about 1/F of the bytes. After the last
update every fragment is exchanged once more, and all replicas agree. Fragments are whole tensors, balanced by size; the
paper takes whole layers. With one fragment this is DiLoCo, or local SGD, as published.

With `overlap` (the paper's tau; `fragment_sync_delay` in torchft) an exchange that begins after update u is made while
the next updates are computed, and its result is applied after update u + overlap, however long it has taken. By then a
replica theta has made further steps of its own, so it continues from a mixture with the shared parameters w:

    theta  <-  ALPHA theta + (1 - ALPHA) w

The exchanges after the last update do not overlap, and mix nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

ALPHA = 0.5  # as published


@dataclass(frozen=True)
class Streaming:
    """The exchanges of a run by the updates after which they begin and are applied."""

    #: Updates between two exchanges of a fragment; 0 for a single exchange at the end.
    every: int
    fragments: int = 1
    #: Updates that are made while an exchange is under way; at most as many as lie between two exchanges.
    overlap: int = 0

    def after(self, update: int, updates: int) -> int:
        """Return how many exchanges begin after this one of so many updates: all fragments' after the last."""
        return self.fragments if update + 1 == updates else self._due(update + 1) - self._due(update)

    def before(self, update: int, updates: int) -> int:
        """Return how many exchanges have begun before this update does."""
        if update and update == updates:
            return self._due(update - 1) + self.fragments
        return self._due(update)

    def overlaps(self, update: int, updates: int) -> bool:
        """Return whether exchanges that begin after this update are made while the next ones are computed."""
        return self.overlap > 0 and update + 1 != updates

    def lands(self, update: int, updates: int) -> bool:
        """Return whether the exchange that is under way is applied after this update."""
        last = update + 1 == updates
        return self.under_way(update) and (
            last or self._due(update + 1 - self.overlap) > self._due(update - self.overlap)
        )

    def under_way(self, update: int) -> bool:
        """Return whether an exchange has begun before this update, and is not applied yet."""
        return self._due(update) > self._due(update - self.overlap)

    def ahead(self, updates: range) -> range:
        """Return these updates up to the one after which the next exchange begins or is applied."""
        if not self.every:
            return updates
        first = updates[0]
        stop = self._begins(self._due(first))
        if self.under_way(first):
            stop = min(stop, self._begins(self._due(first) - 1) + self.overlap)
        return range(first, min(stop, updates.stop))

    def _begins(self, number: int) -> int:
        """Return how many updates are made before the exchange of this number."""
        return -(-(number + 1) * self.every // self.fragments)

    def _due(self, updates: int) -> int:
        return max(0, updates) * self.fragments // self.every if self.every else 0
