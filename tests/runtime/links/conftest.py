"""Memory for tests, whose descriptor is closed at their end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from paceline.runtime.links.memory import Memory

MakeMemory = Callable[..., Memory]


@pytest.fixture
def make_memory() -> Iterator[MakeMemory]:
    made: list[Memory] = []

    def make(size: int = 4096) -> Memory:
        made.append(Memory(size))
        return made[-1]

    yield make
    while made:  # none is kept here: the mapping ends with the last object that looks at it
        made.pop().close()
