"""Reports are of the virtual engine, which starts nothing: what is left behind is looked at once per module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.leaks import module_leaves_nothing_behind


@pytest.fixture(autouse=True, scope="module")
def _leaves_nothing_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    torch.set_num_threads(1)
    with module_leaves_nothing_behind(tmp_path_factory):
        yield
