"""The checker is pure: what it leaves behind is looked at once per module rather than after every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.leaks import module_leaves_nothing_behind


@pytest.fixture(autouse=True, scope="module")
def _leaves_nothing_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with module_leaves_nothing_behind(tmp_path_factory):
        yield
