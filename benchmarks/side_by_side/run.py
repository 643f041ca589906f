"""One network, one batch and one machine: plain PyTorch, DDP, Accelerate, Lightning, Ray Train and Paceline.

    pip install -c constraints.txt '.[train]' accelerate lightning 'ray[train]'
    python benchmarks/side_by_side/run.py [--rounds 3] [--sizes 64,2960] [--more]

Every program is a file of this folder, written as its documentation shows, and is started anew in every round. `--more`
adds rounds to those of the last time. The tables of the pages below are written anew.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))

from harness import into_page, median, read, table, write

HERE = Path(__file__).parent
BATCH = 100
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
CEILING = "two independent processes (the *ceiling*)"
#: What is measured: the file, how it is started, what it is told; and how many processes train.
ROWS: dict[str, tuple[str, tuple[str, ...], dict[str, str], int]] = {
    "one process, 1 thread": ("one_process.py", (), {"THREADS": "1"}, 1),
    "one process, 2 threads": ("one_process.py", (), {"THREADS": "2"}, 1),
    CEILING: ("one_process.py", TORCHRUN, {"THREADS": "1"}, 2),
    "PyTorch DDP": ("ddp.py", TORCHRUN, {"BACKEND": "gloo"}, 2),
    "Accelerate": ("accelerate_loop.py", TORCHRUN, {"PLAN": ""}, 2),
    "Lightning": ("lightning_module.py", (), {"PLAN": ""}, 2),
    "Ray Train": ("ray_train.py", (), {}, 2),
    "the DDP script over Paceline's backend": ("ddp.py", TORCHRUN, {"BACKEND": "paceline"}, 2),
    "Accelerate under `ring`": ("accelerate_loop.py", TORCHRUN, {"PLAN": "ring"}, 2),
    "Lightning under `ring`": ("lightning_module.py", (), {"PLAN": "ring"}, 2),
    "Paceline, `ring`": ("paceline_job.py", (), {"PLAN": "ring"}, 2),
    "Paceline, `downpour`": ("paceline_job.py", (), {"PLAN": "downpour"}, 2),
}
UPDATES = {64: 1500, 2960: 30}  # of each size: seconds of training for every row
PARAMETERS = {64: "55 thousand parameters", 2960: "11 million"}
SINGLE = ("one process, 1 thread", "one process, 2 threads")
#: The pages that show the rows, between these lines; and which rows they show.
PAGES: dict[Path, tuple[str, ...]] = {
    HERE / "README.md": tuple(name for name in ROWS if name not in SINGLE),
    HERE.parents[1] / "docs" / "reproductions" / "side-by-side.md": tuple(name for name in ROWS if name not in SINGLE),
}
PEERS = ("torch", "accelerate", "lightning", "ray")


def speed(name: str, hidden: int) -> float:
    """Return the samples per second of one program."""
    file, launcher, told, processes = ROWS[name]
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found.json")
        settings = {"HIDDEN": str(hidden), "UPDATES": str(UPDATES[hidden]), "FOUND": str(found)}
        paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, *launcher, str(HERE / file)],
            env={**os.environ, **settings, **told, "PYTHONPATH": paths},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode or not found.exists():
            raise SystemExit(f"{name}: {done.stderr[-3000:]}")
        return processes * BATCH / float(json.loads(found.read_text()))


def summary(speeds: dict[str, list[float]]) -> dict[str, Any]:
    """Return the median speed of each program, and its ratio to the best single process of the same round."""
    single = [max(both) for both in zip(*(speeds[name] for name in SINGLE), strict=True)]
    return {
        name: {
            "samples_per_second": round(median(found)),
            "rounds": [round(each) for each in found],
            "of_best_single": median((a / b for a, b in zip(found, single, strict=True)), 2),
        }
        for name, found in speeds.items()
    }


def rows_of(sizes: dict[str, dict[str, Any]], names: tuple[str, ...]) -> str:
    """Return the rows of some programs at all sizes, as the pages show them; first, the best single process."""
    heads = [head for size in sizes for head in (f"{PARAMETERS[int(size)]}:", ":")]
    lines = []
    for name in ("one process", *names):
        cells = []
        for rows in sizes.values():
            row = max((rows[each] for each in SINGLE), key=lambda row: row["samples_per_second"])
            row = rows.get(name, row | {"of_best_single": 1.0})
            cells += [f"{row['samples_per_second']:,}", f"{row['of_best_single']:.2f} x"]
        lines.append([name, *cells])
    return table(["samples per second, and of the best single process", *heads], lines)


def earlier() -> dict[int, dict[str, list[float]]]:
    """Return the speeds that were measured the last time."""
    sizes = read()["sizes"]
    return {int(size): {name: row["rounds"] for name, row in rows.items()} for size, rows in sizes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default=",".join(map(str, UPDATES)))
    parser.add_argument("--more", action="store_true", help="add rounds to those of the last time")
    chosen = parser.parse_args()
    speeds = earlier() if chosen.more else {}
    for _ in range(chosen.rounds):
        for size in map(int, chosen.sizes.split(",")):
            for name in ROWS:
                found = speed(name, size)
                speeds.setdefault(size, {}).setdefault(name, []).append(found)
                print(f"{size} {name}: {found:,.0f} samples/s", flush=True)
        sizes = {str(size): summary(found) for size, found in sorted(speeds.items())}
        write({"versions": {name: version(name) for name in PEERS}, "batch_per_worker": BATCH, "sizes": sizes})
        for page, names in PAGES.items():
            into_page(f"\n{rows_of(sizes, names)}\n", "rows", page)


if __name__ == "__main__":
    main()
