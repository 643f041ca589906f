"""Measures what docs/internals/data.md claims, and writes result.json; each measure by itself.

python benchmarks/data/run.py [dirty] [bits] [peers] [memory] [reading] [kills] [deaths] [faults]
    [--peers PYTHON] [--only NAME ...] [--images FOLDER] [--rounds N] [--kills N]

PYTHON is an interpreter with pandas, polars, pyarrow, dask, daft, ray, datasets, duckdb and pyspark, of which --only
names some programs; FOLDER has Fashion-MNIST. `kills` goes on where it has stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from paceline.runtime.runs.record import this_machine
from paceline.runtime.runs.schema import to_dict

sys.path.insert(0, str(Path(__file__).parents[1]))
import bits
import deaths
import dirty
import faults
import kills
import memory
import peers
import reading
from harness import FOLDER, laid_out, read

PACKAGES = ("pandas", "polars", "pyarrow", "dask", "daft", "ray", "datasets", "duckdb", "pyspark")
VERSIONS = f"""
import importlib.metadata as m, json
there = {{each.name.lower(): each.version for each in m.distributions()}}
print(json.dumps({{name: there[name] for name in {PACKAGES} if name in there}}))
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*")
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--images", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=200)
    given = parser.parse_args()
    measures = {
        "dirty": lambda folder: dirty.measure(folder, given.peers, given.only),
        "bits": bits.measure,
        "peers": lambda folder: peers.measure(folder, sys.executable, given.peers, given.only, given.rounds),
        "memory": lambda folder: memory.measure(folder, sys.executable),
        "reading": lambda folder: reading.measure(folder, given.images),
        "kills": lambda folder: kills.measure(folder, given.kills, read().get("kills", {}), partial(_keep, "kills")),
        "deaths": deaths.measure,
        "faults": faults.measure,
    }
    versions = json.loads(subprocess.run([given.peers, "-c", VERSIONS], capture_output=True, check=True).stdout)
    for name in given.what or measures:
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as folder:
            found: dict[str, Any] = measures[name](Path(folder))
        taken = {
            "date": time.strftime("%Y-%m-%d"),
            "load before and after": [round(load, 1), round(os.getloadavg()[0], 1)],
            "machine": to_dict(this_machine()),
            "versions": versions,
        }
        _keep(name, found | {"taken": taken})
        print(json.dumps({name: found}, indent=1))


def _keep(name: str, found: dict[str, Any]) -> None:
    (FOLDER / "result.json").write_text(laid_out(read() | {name: found}) + "\n")


if __name__ == "__main__":
    main()
