"""The checker is pure: what it leaves behind is looked at once per module rather than after every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.interfaces.testing.leaks import nothing_left_behind


@pytest.fixture(autouse=True, scope="module")
def _leaves_nothing_behind(_own_temporary_folder: None) -> Iterator[None]:
    with nothing_left_behind():
        yield
