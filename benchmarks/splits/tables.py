"""Random tables of ways on random networks: each equals one process, or is refused by name before anything starts."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.splits.test_splits import tried

COUNT = 300


def measure_tables() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = Counter(tried(number) for number in range(COUNT))  # raises where numbers differ
    print(dict(found))
    return {"plans": COUNT, **found}
