"""The numbers and curves for other programs: one JSON object, or two CSV tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.runtime.report.curves import as_dict, every_curve, staleness_curve
from paceline.runtime.report.formatting import cell
from paceline.runtime.report.reading import Reading
from paceline.runtime.report.run_stats import lanes_of, run_stats
from paceline.runtime.runs.json_files import strict


def write_json(readings: Sequence[Reading], output: Path) -> list[Path]:
    """Write the statistics, the curves and the run.json of each run."""
    stats = run_stats(readings, lanes_of(readings))
    runs = [
        {
            "figures": f.as_dict(),
            "curves": _curves(reading),
            "missing": reading.missing,
            "record": reading.record.as_dict(),
        }
        for reading, f in zip(readings, stats, strict=True)
    ]
    output.write_text(json.dumps(strict({"runs": runs}), allow_nan=False) + "\n", encoding="utf-8")
    return [output]


def _curves(reading: Reading) -> dict[str, Any]:
    seconds, stale = staleness_curve(reading.trace)
    staleness = {"seconds": seconds.tolist(), "values": stale.tolist()}
    return {name: as_dict(curve) for name, curve in every_curve(reading).items()} | {"staleness": staleness}


INTERVALS = ("speedup_interval", "ceiling_share_interval", "test_accuracy_interval")
PARTS = ("shares", "stragglers", "deaths", "metrics", *INTERVALS)  # columns with several values


def write_csv(readings: Sequence[Reading], output: Path) -> list[Path]:
    """Write a row per run, and to ...-curves.csv a row per value of every curve."""
    rows = []
    for f in run_stats(readings, lanes_of(readings)):
        row = {key: value for key, value in f.as_dict().items() if key not in PARTS}
        row |= {name: value for name, value in f.metrics.items() if name not in row}
        for name in INTERVALS:
            row |= dict(zip((f"{name}_low", f"{name}_high"), getattr(f, name) or (None, None), strict=True))
        row |= {f"share_{kind}": value for kind, value in f.shares.items()}
        row |= {"stragglers": " ".join(map(str, f.stragglers)), "deaths": " ".join(map(str, f.deaths))}
        rows.append({name: cell(value) for name, value in row.items()})
    names = list(dict.fromkeys(key for row in rows for key in row))
    with output.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        table = csv.DictWriter(file, names)
        table.writerows([{name: cell(name) for name in names}, *rows])
    curves = output.with_name(f"{output.stem}-curves{output.suffix}")
    with curves.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["run", "curve", "update", "samples", "seconds", "value"])
        for reading in readings:
            for name, curve in every_curve(reading).items():
                columns = (curve.updates, curve.samples, curve.seconds, curve.values)
                first = (cell(reading.name), cell(name))
                lines.writerows([*first, *row] for row in zip(*(c.tolist() for c in columns), strict=True))
    return [output, curves]
