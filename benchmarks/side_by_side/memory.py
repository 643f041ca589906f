"""The memory of a training with two workers beside DDP over gloo and beside one process.

    python benchmarks/side_by_side/memory.py [--rounds 3] [--sizes 64,2960]

What is compared is the largest sum over all processes. A page that several share counts once, divided among them (the
proportional set size, PSS), so that sums are what the machine needs. The programs are those of this folder;
torchrun's agent is a process of DDP's, as the parent and the server that forks workers are Paceline's. All run in
turn, round after round.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))

from harness import in_turn, into_page, median, spread, table, write

HERE = Path(__file__).parent
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
#: The file, how it is started, and what it is told.
PROGRAMS: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "one process": ("one_process.py", (), {"THREADS": "1"}),
    "DDP over gloo": ("ddp.py", TORCHRUN, {"BACKEND": "gloo"}),
    "`ring`, autograd": ("paceline_job.py", (), {"PLAN": "ring", "COMPUTE": "autograd"}),
    "`ring`, generated code": ("paceline_job.py", (), {"PLAN": "ring", "COMPUTE": "fused"}),
    "`downpour`, autograd": ("paceline_job.py", (), {"PLAN": "downpour", "COMPUTE": "autograd"}),
    "`downpour`, generated code": ("paceline_job.py", (), {"PLAN": "downpour", "COMPUTE": "fused"}),
}
UPDATES = {64: 300, 2960: 15}
PARAMETERS = {64: "55 thousand parameters", 2960: "11 million"}
PERIOD = 0.1  # seconds from one look to the next
MB = 1e6


def family(root: int) -> list[int]:
    """The process of this number and all that come from it."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # has ended
            continue
        children.setdefault(parent, []).append(int(name))
    members = [root]
    for each in members:
        members += children.get(each, [])
    return members


def proportional(process: int) -> float:
    """The megabytes of a process; none if it has ended."""
    try:
        lines = Path("/proc", str(process), "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")) / MB


def peak(name: str, hidden: int) -> list[float]:
    """The megabytes of each process when their sum was the largest, the largest process first."""
    file, launcher, settings = PROGRAMS[name]
    with tempfile.TemporaryDirectory() as folder:
        common = {"HIDDEN": str(hidden), "UPDATES": str(UPDATES[hidden]), "FOUND": str(Path(folder, "found.json"))}
        paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, **common, **settings, "PYTHONPATH": paths}
        command = [sys.executable, *launcher, str(HERE / file)]
        with Path(folder, "output").open("w+") as output:
            program = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=output)
            largest: list[float] = []
            while program.poll() is None:
                largest = max(largest, [proportional(each) for each in family(program.pid)], key=sum)
                time.sleep(PERIOD)
            output.seek(0)
            if program.returncode:
                raise SystemExit(f"{name} ended with {program.returncode}:\n{output.read()[-3000:]}")
    return sorted((each for each in largest if each), reverse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default=",".join(map(str, UPDATES)))
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    peaks = {
        str(size): in_turn({name: partial(peak, name, size) for name in PROGRAMS}, options.rounds) for size in sizes
    }
    write({"load": os.getloadavg(), "peaks, MB": peaks}, "memory.json")
    rows = []
    for name in PROGRAMS:
        row: list[object] = [name]
        for each in peaks.values():
            sums = [sum(processes) for processes in each[name]]
            at_median = min(each[name], key=lambda processes: abs(sum(processes) - median(sums)))
            least, most = spread(sums)
            row += [f"{median(sums):.0f} ({least:.0f}-{most:.0f})", " + ".join(f"{mb:.0f}" for mb in at_median)]
        rows.append(row)
    heads = [head for size in sizes for head in (f"MB at {PARAMETERS[size]}:", "processes:")]
    text = table(["program", *heads], rows)
    print(text)
    into_page(f"\n{text}\n", "memory")


if __name__ == "__main__":
    main()
