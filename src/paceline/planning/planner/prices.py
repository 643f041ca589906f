"""Prices of machines, with their dates and sources.

Prices change: each has a date, and a run keeps the one that was used. `--prices FILE` reads a table of your own, in the
columns of the common open catalogue: InstanceType, vCPUs, MemoryGiB, AcceleratorName, Price, Region.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UsageError, suggest


@dataclass(frozen=True)
class Price:
    """The price of one machine."""

    sku: str
    #: An hour.
    dollars: float
    cores: int
    memory_gib: float
    region: str
    source: str


DATE = "2024-01"
SOURCE = f"on-demand price of about {DATE}, written down from memory and not checked against a catalogue"
#: A few machines that are often rented, without discounts and traffic. The figures are examples.
TABLE: Mapping[str, Price] = {
    row[0]: Price(row[0], row[1], row[2], row[3], row[4], SOURCE)
    for row in (
        ("c5.large", 0.085, 2, 4, "us-east-1"),
        ("c5.xlarge", 0.17, 4, 8, "us-east-1"),
        ("c5.2xlarge", 0.34, 8, 16, "us-east-1"),
        ("c5.4xlarge", 0.68, 16, 32, "us-east-1"),
        ("m5.xlarge", 0.192, 4, 16, "us-east-1"),
        ("m5.4xlarge", 0.768, 16, 64, "us-east-1"),
        ("p3.2xlarge", 3.06, 8, 61, "us-east-1"),
        ("p3.16xlarge", 24.48, 64, 488, "us-east-1"),
        ("n1-standard-4", 0.19, 4, 15, "us-central1"),
        ("n1-standard-16", 0.76, 16, 60, "us-central1"),
    )
}
COLUMNS = ("InstanceType", "vCPUs", "MemoryGiB", "Price", "Region")


def price(sku: str, table: Mapping[str, Price]) -> Price:
    """Look a machine up. UsageError with the nearest name if there is none."""
    if sku not in table:
        raise UsageError(f"there is no price of {sku!r}; {suggest(sku, table)}; or give price= in dollars an hour")
    return table[sku]


def read(file: Path) -> dict[str, Price]:
    """Read a table of prices; of several regions, the cheapest counts."""
    try:
        with file.open(newline="", encoding="utf-8") as opened:
            rows = list(csv.DictReader(opened))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the prices {file} cannot be read: {error}") from None
    missing = [name for name in COLUMNS if not rows or name not in rows[0]]
    if missing:
        raise UsageError(f"the prices {file} lack the columns {', '.join(missing)}; they need {', '.join(COLUMNS)}")
    prices: dict[str, Price] = {}
    for number, row in enumerate(rows, 2):
        try:
            dollars = float(row["Price"] or "nan")
            one = Price(
                row["InstanceType"],
                dollars,
                int(float(row["vCPUs"] or 0)),
                float(row["MemoryGiB"] or 0),
                row["Region"],
                str(file),
            )
        except ValueError as error:
            raise UsageError(f"the prices {file}, line {number}: {error}") from None
        if math.isfinite(dollars) and (one.sku not in prices or dollars < prices[one.sku].dollars):
            prices[one.sku] = one
    return prices
