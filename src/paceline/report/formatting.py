"""Numbers as text, with as many digits as are useful. Pure."""

from __future__ import annotations

import math

NONE = "–"


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits: `1,234`, `12.3`, `0.0123`."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0 or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    if abs(value) < 1e-4:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def count(value: int | None) -> str:
    """`1,234`"""
    return NONE if value is None else f"{value:,}"


def share(value: float | None, digits: int = 0) -> str:
    """`57%`; small shares get a digit more."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:.1%}" if 0 < value < 0.0095 and not digits else f"{value:.{digits}%}"


def factor(value: float | None) -> str:
    """`1.57`"""
    return NONE if value is None else f"{value:.2f}"


def duration(seconds: float | None) -> str:
    """`12.3 ms`, `1.50 s`, `2 min 5 s`."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 1e-3:
        return f"{number(seconds * 1e6)} µs"
    if seconds < 1:
        return f"{number(seconds * 1e3)} ms"
    if seconds < 120:
        return f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def size(number_of_bytes: float | None) -> str:
    """`12.3 MB`"""
    if number_of_bytes is None:
        return NONE
    for unit in ("bytes", "KB", "MB", "GB"):
        if number_of_bytes < 1000:
            return f"{number(number_of_bytes)} {unit}"
        number_of_bytes /= 1000
    return f"{number(number_of_bytes)} TB"
