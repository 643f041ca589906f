"""NumPy arrays and data frames as a job's data, which become tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def as_tensors(data: Any, what: str) -> tuple[Any, list[str]]:
    """Return data with tensors in place of arrays and frames, and what is wrong with one; `what` names the argument.

    Numbers of float64, NumPy's default, become tensors of PyTorch's default type, which the parameters of models have.
    """
    entries = data if isinstance(data, tuple | list) else [data]
    parts = [_array(each) for each in entries]
    arrays = [each for each in parts if isinstance(each, np.ndarray)]
    if not arrays:
        return data, []
    for original, each in zip(entries, parts, strict=True):
        if isinstance(each, np.ndarray) and each.dtype.kind not in "biuf":
            kind = "NumPy array" if each is original else type(original).__name__
            return data, [f"{what}= has a {kind} of {each.dtype}; give one of numbers, which a tensor can hold"]
    return tuple(_tensor(each) for each in parts), []


def _array(each: Any) -> Any:
    """Return the array of a frame or a series of pandas or Polars; anything else as it is."""
    return np.array(each) if type(each).__module__.partition(".")[0] in ("pandas", "polars") else each


def _tensor(each: Any) -> Any:
    if not isinstance(each, np.ndarray):
        return each
    tensor = torch.from_numpy(np.ascontiguousarray(each.astype(each.dtype.newbyteorder("="), copy=False)))
    return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor
