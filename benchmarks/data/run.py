"""Measures what docs/data.md claims, and writes result.json.

python benchmarks/data/run.py [dirty] [peers] [reading] [--peers PYTHON] [--images FOLDER] [--rounds N]

PYTHON is an interpreter with pandas, polars, pyarrow, dask, daft, ray, datasets, duckdb and pyspark; FOLDER has
Fashion-MNIST.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import dirty
import peers
import reading

RESULT = Path(__file__).parent / "result.json"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*")
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--images", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    measures = {
        "dirty": lambda folder: dirty.measure(folder, given.peers),
        "peers": lambda folder: peers.measure(folder, sys.executable, given.peers, rounds=given.rounds),
        "reading": lambda folder: reading.measure(folder, given.images),
    }
    for name in given.what or measures:
        with tempfile.TemporaryDirectory() as folder:
            found: dict[str, Any] = measures[name](Path(folder))
        result = json.loads(RESULT.read_bytes()) if RESULT.exists() else {}
        RESULT.write_text(json.dumps(result | {name: found}, indent=1) + "\n")
        print(json.dumps({name: found}, indent=1))


if __name__ == "__main__":
    main()
