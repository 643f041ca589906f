"""JSON as every reader takes it."""

from __future__ import annotations

import math
from typing import Any


def strict(value: Any) -> Any:
    """A number that is not finite is null."""
    if isinstance(value, dict):
        return {key: strict(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
