"""Vectors that bodies of frames are received in, whose views are made once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from paceline.errors import FrameError


class Received(Protocol):
    """What is received."""

    raw: Tensor
    #: All that there is room for.
    whole: memoryview

    def check(self, size: int) -> None:
        """Raise FrameError if so many bytes of it are not what they should be."""


T = TypeVar("T", bound=Received)


class VectorPool(Generic[T]):
    """Vectors to receive gradients in; one is free again when its gradient is needed no longer."""

    def __init__(self, make: Callable[[], T], most: int, least: int) -> None:
        """`most` and `least` are the bytes that a gradient may have."""
        self._make, self.size, self._least = make, most, least
        self._free: list[T] = []
        #: Vectors that are in use, by the identity of the array that holds their bytes.
        self._used: dict[int, T] = {}

    def take(self) -> T:
        """Return a free vector, which is in use from now on."""
        vector = self._free.pop() if self._free else self._make()
        self._used[id(vector.whole.obj)] = vector
        return vector

    def __len__(self) -> int:
        """The vectors that were made."""
        return len(self._free) + len(self._used)

    def of(self, body: memoryview) -> T:
        """Return the vector that a body was received in; one that was not received in any is copied into one."""
        if not self._least <= len(body) <= self.size:
            due = f"{self.size}" if self._least == self.size else f"{self._least} to {self.size}"
            raise FrameError("body", f"a gradient of {len(body)} bytes, where {due} are due")
        vector = self._used.get(id(body.obj))
        if vector is None:
            vector = self.take()
            vector.raw.numpy()[: len(body)] = body
        vector.check(len(body))
        return vector

    def keep(self, needed: Iterable[T]) -> None:
        """Let all vectors but these be used for other gradients."""
        used = {id(vector.whole.obj): vector for vector in needed}
        self._free += [vector for array, vector in self._used.items() if array not in used]
        self._used = used
