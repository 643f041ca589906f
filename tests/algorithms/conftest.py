"""Explorations keep every state of a small world."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _collected_afterwards() -> Iterator[None]:
    """Collections of garbage would look at all states of an exploration again and again, a third of its time."""
    gc.disable()
    yield
    gc.enable()
