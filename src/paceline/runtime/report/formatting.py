"""Numbers as text, with as many digits as are useful. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

NONE = "–"
SPACE = "\u00a0"  # that does not break


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


def ratio(
    value: float | None, interval: Sequence[float] | None, percent: bool = False, range_only: bool = False
) -> str:
    """`1.57 ±3%`, or where the value alone would say too much, its interval: `1.21 to 1.87`."""
    if value is None or not interval or interval[0] == interval[1]:
        return share(value) if percent else factor(value)
    low, high = interval
    if range_only:
        return f"{low:.0%} to {high:.0%}" if percent else f"{low:.2f} to {high:.2f}"
    half = f"{SPACE}±{(high - low) / 2 / value:.0%}" if value else ""
    return (share(value) if percent else factor(value)) + half


def accuracy(value: float | None, interval: Sequence[float] | None) -> str:
    """`94.2% ±1.9`: half the interval is in points."""
    half = f"{SPACE}±{(interval[1] - interval[0]) * 50:.1f}" if value is not None and interval else ""
    return share(value, 1) + half


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


def cell(value: object) -> object:
    """A value of which no spreadsheet makes a formula: names of jobs and metrics may be anyone's."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
