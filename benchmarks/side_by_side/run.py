"""One network, one batch and one machine: plain PyTorch, DDP, Accelerate, Lightning, Ray Train and Paceline.

    pip install -c constraints.txt '.[train]' accelerate lightning 'ray[train]'
    python benchmarks/side_by_side/run.py [--rounds 3] [--sizes 64,2960] [--only Lightning]

Every program is a file of this folder, written as its documentation shows, and is started anew in every round, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))

from record import write

HERE = Path(__file__).parent
BATCH = 100
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
#: What is measured: the file, how it is started, what it is told; and how many processes train.
ROWS: dict[str, tuple[str, tuple[str, ...], dict[str, str], int]] = {
    "one process, 1 thread": ("one_process.py", (), {"THREADS": "1"}, 1),
    "one process, 2 threads": ("one_process.py", (), {"THREADS": "2"}, 1),
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
UPDATES = {64: 1500, 2960: 25}  # of each size: seconds of training for every row
PARAMETERS = {64: "55 thousand parameters", 2960: "11 million"}
#: The pages that show the rows, between these lines.
PAGES = (HERE / "README.md", HERE.parents[1] / "docs" / "side-by-side.md")
START, END = "<!-- rows -->\n", "<!-- end of rows -->"
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
    single = [max(both) for both in zip(*(found for name, found in speeds.items() if ROWS[name][3] == 1), strict=True)]
    return {
        name: {
            "samples_per_second": round(statistics.median(found)),
            "range": [round(min(found)), round(max(found))],
            "of_best_single": round(statistics.median(a / b for a, b in zip(found, single, strict=True)), 2),
        }
        for name, found in speeds.items()
    }


def table(sizes: dict[str, dict[str, Any]]) -> str:
    """Return the rows of all programs at all sizes, as the pages show them."""
    heads = " | of one process | ".join(PARAMETERS[int(size)] for size in sizes)
    lines = [f"| samples per second | {heads} | of one process |", "|---|" + "---:|---:|" * len(sizes)]
    for name in next(iter(sizes.values())):
        cells = [
            f"{rows[name]['samples_per_second']:,} | {rows[name]['of_best_single']:.2f} x" for rows in sizes.values()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default=",".join(map(str, UPDATES)))
    parser.add_argument("--only", default="", help="rows whose name contains this, beside the single processes")
    chosen = parser.parse_args()
    sizes = [int(size) for size in chosen.sizes.split(",")]
    names = [name for name, row in ROWS.items() if row[3] == 1 or chosen.only in name]
    speeds: dict[int, dict[str, list[float]]] = {size: {name: [] for name in names} for size in sizes}
    for number in range(chosen.rounds):
        for size in sizes:
            for name in names:
                speeds[size][name].append(speed(name, size))
                print(f"round {number}, {size} {name}: {speeds[size][name][-1]:,.0f} samples/s", flush=True)
        versions = {name: version(name) for name in PEERS}
        found = {str(size): summary(speeds[size]) for size in sizes}
        write(HERE, {"versions": versions, "rounds": number + 1, "batch_per_worker": BATCH, "sizes": found})
        for page in PAGES:
            before, rest = page.read_text().split(START)
            page.write_text(f"{before}{START}\n{table(found)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
