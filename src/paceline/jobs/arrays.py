"""NumPy arrays as a job's data, which become tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def as_tensors(data: Any, what: str) -> tuple[Any, list[str]]:
    """Return data with tensors in place of NumPy arrays, and what is wrong with an array; `what` names the argument.

    Arrays of float64, NumPy's default, become tensors of PyTorch's default type, which the parameters of models have.
    """
    parts = data if isinstance(data, tuple | list) else [data]
    frames = [type(each).__name__ for each in parts if type(each).__module__.partition(".")[0] in ("pandas", "polars")]
    if frames:
        return data, [f"{what}= holds a {frames[0]}; give its numbers as an array, as by frame.to_numpy()"]
    arrays = [each for each in parts if isinstance(each, np.ndarray)]
    if not arrays:
        return data, []
    odd = [str(each.dtype) for each in arrays if each.dtype.kind not in "biuf"]
    if odd:
        return data, [f"{what}= has a NumPy array of {odd[0]}; give one of numbers, which a tensor can hold"]
    return tuple(_tensor(each) for each in parts), []


def _tensor(each: Any) -> Any:
    if not isinstance(each, np.ndarray):
        return each
    tensor = torch.from_numpy(np.ascontiguousarray(each.astype(each.dtype.newbyteorder("="), copy=False)))
    return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor
