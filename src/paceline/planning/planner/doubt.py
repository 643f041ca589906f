"""How far predictions of each family of plans were off, by which intervals are at least as wide.

The figures are 90% quantiles of the fitted jobs of `benchmarks/prediction`. A machine with a table of validations
of its own follows that instead (`history`).
"""

from __future__ import annotations

#: Half of a 90% interval, as a logarithm, by level and family.
OFF: dict[str, dict[str, float]] = {
    "calibrated": {
        "alone": 0.28,
        "meeting": 0.39,
        "push": 0.38,
        "ddp": 0.65,
        "stages": 0.38,
        "parts": 0.43,
        "gathers": 0.43,
    },
    "profiled": {
        "alone": 0.22,
        "meeting": 0.22,
        "push": 0.18,
        "ddp": 0.26,
        "stages": 0.28,
        "parts": 0.55,
        "gathers": 0.43,
    },
}
CROWDED = 1.3  # times as far off with more workers than cores


def min_error(level: str, family: str, crowded: bool) -> float:
    """Return the least error of a prediction; 0 at levels that have an error of their own."""
    return OFF.get(level, {}).get(family, 0.0) * (CROWDED if crowded else 1.0)
