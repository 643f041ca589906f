"""A table of facts that follow from each other, filled on demand until nothing changes.

`derive` says what a key means in terms of other keys, which it reads. A key that grows is derived again for all that
have read it, so circles end at their least fixed point and the order of the questions makes no difference. Only what
is needed for an answer is derived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

Key = tuple[Hashable, ...]
V = TypeVar("V", bound=Hashable)

DEEPEST = 40  # keys that are derived inside each other; what is deeper waits in the queue
MOST = 24  # values of one key: an object that is so many things is nothing that can be named


class Table(Generic[V]):
    """Key -> values, in the order in which they were found."""

    def __init__(self, derive: Callable[[Key], Iterable[V]]) -> None:
        self._derive = derive
        self._values: dict[Key, tuple[V, ...]] = {}
        self._readers: dict[Key, dict[Key, None]] = {}
        self._queue: deque[Key] = deque()
        self._queued: set[Key] = set()
        self._deriving: list[Key] = []
        self._derived: set[Key] = set()
        #: How often a key has grown that was derived before: what was read of it may be out of date.
        self.version = 0

    def get(self, key: Key) -> tuple[V, ...]:
        """The values of a key, once nothing that it depends on changes any more."""
        values = self._values.get(key)
        if values is not None and not self._queue:
            return values
        self.read(key)
        while self._queue and not self._deriving:
            following = self._queue.popleft()
            self._queued.discard(following)
            self._update(following)
        return self._values[key]

    def read(self, key: Key) -> tuple[V, ...]:
        """What is known of a key so far; whatever is being derived is derived again when the key grows."""
        if key not in self._values:
            self._values[key] = ()
            if len(self._deriving) < DEEPEST:
                self._update(key)
            else:
                self.derive_again(key)
        if self._deriving:
            self._readers.setdefault(key, {})[self._deriving[-1]] = None
        return self._values[key]

    def derive_again(self, key: Key) -> None:
        """Note that a key may have grown: something outside the table has changed."""
        if key not in self._queued:
            self._queued.add(key)
            self._queue.append(key)

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def _update(self, key: Key) -> None:
        self._deriving.append(key)
        try:
            derived = list(self._derive(key))
            before = self._values.get(key, ())
            after = tuple(dict.fromkeys((*before, *derived)))[:MOST] if derived else before
        finally:
            self._deriving.pop()
        if len(after) != len(before):
            self._values[key] = after
            self.version += key in self._derived
            for reader in self._readers.get(key, ()):
                self.derive_again(reader)
        self._derived.add(key)
