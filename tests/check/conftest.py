"""The checker is pure: it starts nothing and keeps nothing, so what it leaves behind is looked at once per module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.testing.leaks import nothing_left_behind


@pytest.fixture(autouse=True, scope="module")
def _leaves_nothing_behind() -> Iterator[None]:
    with nothing_left_behind():
        yield
