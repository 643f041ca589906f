"""Jobs: a model with its data, a loss and an optimizer; and the built-in ones."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Import `built_in` and `BUILT_IN` on first use, so that importing a job does not import torch's layers."""
    if name in ("built_in", "BUILT_IN"):
        return getattr(importlib.import_module("paceline.training.jobs.built_ins"), name)
    raise AttributeError(f"module 'paceline.training.jobs' has no attribute {name!r}")
