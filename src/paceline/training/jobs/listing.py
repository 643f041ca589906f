"""What messages and notebooks say of a job: its batches, its data and the settings that were given."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from functools import partial
from typing import Any

from torch import Tensor, nn

from paceline.training.jobs.loaders import LoaderData

ALWAYS = ("model", "data", "loss", "optimizer", "batch_size", "epochs")


def described(batch: Any) -> str:
    """Return a batch's structure: types and shapes of its tensors."""
    if isinstance(batch, Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')} {' x '.join(map(str, batch.shape)) or 'number'}"
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key}: {described(value)}" for key, value in batch.items()) + "}"
    if isinstance(batch, tuple | list):
        return f"({', '.join(map(described, batch[:4]))}{', ...' * (len(batch) > 4)})"
    return type(batch).__name__


def given(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, str]:
    """Return a line for each setting of a job: those that every job has, and others that are not as usual."""
    return {
        name: _worded(value)
        for name, value in settings.items()
        if value is not None and (name in ALWAYS or not _same(value, usual.get(name)))
    }


def _same(value: Any, usual: Any) -> bool:
    return isinstance(value, int | float | str | dict) and (value == usual or value == {})


def _worded(value: Any) -> str:
    """Write a setting as one would name it."""
    if isinstance(value, int | float | str):
        return f"{value:,}" if type(value) is int else str(value)
    if isinstance(value, LoaderData):
        return f"a loader of {_worded(value.dataset)}"
    if isinstance(value, partial):
        settings = (f"{name}={each!r:.40}" for name, each in value.keywords.items())
        return f"{_worded(value.func)}({', '.join([*map(_worded, value.args), *settings])})"
    if isinstance(value, Tensor) or (isinstance(value, tuple) and any(isinstance(part, Tensor) for part in value)):
        return described(value)
    if isinstance(value, dict):
        return ", ".join(map(str, value))
    if isinstance(value, Sized) and not isinstance(value, nn.Module):
        return f"{type(value).__name__}, {len(value):,} samples"
    return (
        str(getattr(value, "__qualname__", type(value).__name__))
        .rpartition("<locals>.")[2]
        .replace("<lambda>", "a lambda")
    )
