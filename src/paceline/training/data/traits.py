"""What sources are like, for what reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SourceTraits:
    """What a source is like, for what reads it."""

    #: Whether processes may read its batches ahead.
    reads_ahead: bool = False
    #: Whether a sample is a whole batch of the user's, which cannot be divided.
    whole: bool = False
    #: Whether an epoch may have other samples than the one before, in an order of the source's own.
    redraws: bool = False
    #: The size of a batch in the loader that the source was made from; None: there was none.
    batch_size: int | None = None
    #: What a process that reads ahead calls first.
    worker_init_fn: Callable[[int], Any] | None = None
