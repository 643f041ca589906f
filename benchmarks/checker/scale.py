"""Speed, memory, cache and order on a million lines of installed packages.

    python benchmarks/checker/scale.py [--lines 1000000] FOLDERS...

The packages of FOLDERS (site-packages, the standard library) are copied in the order of the hashes of their names
until so many lines are together. `paceline check` reads them with one job, in processes of its own: cold, from the
cache, and without it in the opposite order. Measured are the processor seconds of a whole process, its start included,
since other programs use the machine too, and the most memory that it had.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]
from harness import write  # noqa: E402

ROUNDS = 3  # of the measurements from the cache
LARGEST = 4 << 20  # bytes of a file that is checked


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folders", type=Path, nargs="+")
    options.add_argument("--lines", type=int, default=1_000_000)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tops = gathered(given.folders, Path(folder), given.lines)
        cold = checked(tops, folder)
        warm = [checked(tops, folder) for _ in range(ROUNDS)]
        other = checked([*reversed(tops)], folder, "--no-cache")
    lines, seconds = cold["lines"], statistics.median(run["processor_seconds"] for run in warm)
    figures = {
        "files": cold["files"],
        "lines": lines,
        "findings": len(cold["findings"]),
        "failed": cold["failed"],
        "functions over their budget of steps": len(cold["over_budget"]),
        "cold": shown(cold) | {"lines per second and core": round(lines / cold["processor_seconds"])},
        "from the cache": [shown(run) for run in warm],
        "faster from the cache": round(cold["processor_seconds"] / seconds, 1),
        "in the opposite order": shown(other),
        "same findings in any order": other["findings"] == cold["findings"] == warm[0]["findings"],
    }
    print(json.dumps(figures, indent=1))
    write(figures, "scale.json")


def gathered(folders: list[Path], to: Path, lines: int) -> list[str]:
    """Copy whole packages until there are so many lines; the names of their folders."""
    packages = [p for folder in folders for p in folder.iterdir() if p.is_dir() and p.name != "site-packages"]
    packages.sort(key=lambda p: hashlib.sha256(p.name.encode()).hexdigest())
    tops = []
    for package in packages:
        for file in package.rglob("*.py"):
            if lines > 0 and file.is_file() and file.stat().st_size <= LARGEST:
                copy = to / package.name / file.relative_to(package)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
                lines -= file.read_bytes().count(b"\n")
        if (to / package.name).is_dir() and package.name not in tops:
            tops.append(package.name)
    return tops


def checked(tops: list[str], folder: str, *words: str) -> dict[str, Any]:
    """Check these folders in a process of its own, which says what it used."""
    command = [sys.executable, "-m", "paceline", "check", *tops, "--json", "--jobs", "1", *words]
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    told = process.stdout.read()
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0  # it has been waited for
    return {
        **json.loads(told),
        "processor_seconds": used.ru_utime + used.ru_stime,
        "seconds": time.perf_counter() - began,
        "peak_mib": used.ru_maxrss / 1024,
    }


def shown(run: dict[str, Any]) -> dict[str, float]:
    return {name: round(run[name], 1) for name in ("processor_seconds", "seconds", "peak_mib")}


if __name__ == "__main__":
    main()
