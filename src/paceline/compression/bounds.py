"""Bounds as users write them: `5us`, `0.2ms`, `16KB`, `110k`."""

from __future__ import annotations

import re

from paceline.errors import UsageError

TIMES = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
SIZES = {"": 1, "b": 1, "kb": 1000, "kib": 1024, "mb": 10**6, "mib": 2**20}
COUNTS = {"": 1.0, "k": 1e3, "m": 1e6}


def latency(bound: str | float | None, instructions: bool = False) -> float | None:
    """Return microseconds, or the number of instructions; a plain number is one of either."""
    units = COUNTS if instructions else TIMES
    example = "110k instructions (--for cortex-m4 counts these)" if instructions else "5us or 0.2ms"
    if not isinstance(bound, str):
        return _positive(bound, "latency", example)
    return _positive(_read(bound, units, "latency", example), "latency", example)


def size(bound: str | int | None) -> int | None:
    """Return bytes."""
    if not isinstance(bound, str):
        number = _positive(bound, "size", "16KB")
    else:
        number = _positive(_read(bound, SIZES, "size", "16KB"), "size", "16KB")
    return None if number is None else int(number)


def _read(text: str, units: dict[str, float] | dict[str, int], what: str, example: str) -> float:
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zµ]*)\s*", text.lower())
    if match is None or match[2] not in units:
        raise UsageError(f"{what}={text!r} is not understood; write it as in {example}")
    return float(match[1]) * units[match[2]]


def _positive(value: float | None, what: str, example: str) -> float | None:
    if value is not None and not value > 0:
        raise UsageError(f"{what}={value} is not positive; write it as in {example}")
    return value
