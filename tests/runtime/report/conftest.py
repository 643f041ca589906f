"""Reports are of the virtual engine, which starts nothing: what is left behind is looked at once per module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from paceline.interfaces.testing.leaks import nothing_left_behind


@pytest.fixture(autouse=True, scope="module")
def _leaves_nothing_behind(_own_temporary_folder: None) -> Iterator[None]:
    torch.set_num_threads(1)
    with nothing_left_behind():
        yield
