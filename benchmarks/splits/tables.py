"""Random tables of ways on random networks, and changed derivations: what is proved or accepted is right."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from harness import rows_of

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.training.splits.test_proof import all_cases, proved
from tests.training.splits.test_splits import tried

PLANS, MUTANTS = 300, 2000


def measure_tables() -> dict[str, Any]:
    """Train 300 random tables: each equals one process, or is refused by name before anything starts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # It raises where numbers differ.
        rows = rows_of("rows_tables.jsonl", range(PLANS), lambda number: {"found": tried(number)})
    found = Counter(row["found"] for row in rows)
    print(dict(found))
    return {"plans": PLANS, **found}


def measure_mutants() -> dict[str, Any]:
    """Change 2,000 derivations: none that waits for ever or computes something else is proved."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = all_cases()
        rows = rows_of("rows_mutants.jsonl", range(MUTANTS), lambda n: {"proved": proved(cases[n % len(cases)], n)})
    kept = sum(row["proved"] for row in rows)
    print(f"{MUTANTS - kept} refused, {kept} proved, all of which are right")
    return {"mutants": MUTANTS, "refused": MUTANTS - kept, "proved and right": kept}
