"""Copies of objects that a training calls and that may have a state, so that the caller's never change.

A loss that fades, an augmentation or a sampler with a generator of its own is then the same at the start of every
training, replay and resumed run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from paceline.training.jobs.job import Job

T = TypeVar("T")
#: Fields of a job that are called while it is trained.
CALLED = ("loss", "step", "loss_denominator", "batch_transform")


def separate(value: T, data: Iterable[Any] = ()) -> T:
    """Return a copy of an object, which shares its `data`; the object itself where it cannot be copied."""
    try:
        return copy.deepcopy(value, {id(each): each for each in data})
    except Exception:  # an open file, a lock: whatever a class refuses
        return value


def with_state_of(job: Job, users_job: Job) -> Job:
    """Return a job with copies of the functions of the user's job, in the state that they have there."""
    return job.with_(**{name: separate(getattr(users_job, name)) for name in CALLED})


def bulk(value: Any) -> Iterator[Any]:
    """Yield what an object's attributes hold of data: tensors, arrays and data sets, which have no state."""
    for attribute in vars(value).values() if hasattr(value, "__dict__") else ():
        parts = attribute.values() if isinstance(attribute, Mapping) else attribute
        for part in (attribute, *(parts if isinstance(parts, list | tuple) else ())):
            by_number = hasattr(part, "__getitem__") and hasattr(part, "__len__")
            if isinstance(part, Tensor | np.ndarray) or (by_number and not isinstance(part, list | Mapping)):
                yield part
