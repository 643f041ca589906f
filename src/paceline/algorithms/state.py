"""The state of a machine: a flat run of integers, owned by the engine."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    State: TypeAlias = MutableSequence[int] | memoryview[int]  # an array here, shared memory there
