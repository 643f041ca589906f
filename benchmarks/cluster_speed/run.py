"""How near to the ceiling two nodes come that meet over sockets, measured through the commands that users type.

Each member is started as a user would start it (`torchrun ... -m paceline train job.py --plan ...`), for a short and a
long training; its speed is the slope between the two, by the run's own clock. What is compared is run in turn, round
after round: each call appends one round or more to rounds.jsonl, and result.json has the medians of all of them.

The ceiling is two processes of a plain PyTorch loop that never meet (benchmarks/local_speed).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))
from local_speed.run import plain  # noqa: E402, I001
from harness import lines_of, median, write  # noqa: E402


SIZES = {"55 thousand": 64, "1 million": 660}
#: About what each worker makes in a second, to choose how long a training is.
UPDATES = {"55 thousand": 1000, "1 million": 110}
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "paceline", "train"]
ALONE = ["--plan", "downpour", "--backups", "0"]
#: What follows `paceline train job.py`, and the samples of a batch.
COMMANDS: dict[str, tuple[list[str], int]] = {
    "server": (ALONE, 100),
    "server, one backup": (["--plan", "downpour", "--backups", "1"], 100),
    "server, TLS": ([*ALONE, "--keys", "KEYS"], 100),
    "ring": (["--plan", "ring"], 200),
    "server, generated code": ([*ALONE, "--compute", "fused"], 100),
    "ring, generated code": (["--plan", "ring", "--compute", "fused"], 200),
}
PEERS = {"DDP over gloo": "ddp.py", "Ray parameter server": "ray_server.py"}


def trained(command: list[str], hidden: int, batch: int) -> Callable[[int], float]:
    """Return what trains so many updates by a command, and returns the seconds that the run says."""

    def seconds(updates: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            words = [word.replace("KEYS", f"{folder}/keys/node") for word in command]
            if words != command:
                subprocess.run(
                    [sys.executable, "-m", "paceline", "keys", f"{folder}/keys"], check=True, capture_output=True
                )
            given = [*words, "--max-updates", str(updates), "--runs", folder, "--json", "--quiet"]
            environ = os.environ | {"HIDDEN": str(hidden), "BATCH": str(batch), "OMP_NUM_THREADS": "1"}
            ran = subprocess.run(
                [*LAUNCH, str(FOLDER / "job.py"), *given], env=environ, capture_output=True, text=True, check=False
            )
            lines = [line for line in ran.stdout.splitlines() if line.startswith("{")]
            if ran.returncode or len(lines) != 1:
                raise SystemExit(ran.stderr)
            return float(json.loads(lines[0])["seconds"])

    return seconds


def speed(seconds: Callable[[int], float], short: int, long: int, samples: int) -> float:
    """Return samples per second: the slope between two trainings."""
    return (long - short) * samples / (seconds(long) - seconds(short))


def measure(member: str, size: str, length: float) -> float | None:
    """Return the speed of a member in samples per second; None for a peer that is not installed."""
    hidden, rate = SIZES[size], UPDATES[size]
    short, long = rate // 2, int(rate * length)
    if member == "ceiling":
        return 2 * speed(plain(2, 1, hidden), short, long, 100)
    if member in COMMANDS:
        command, batch = COMMANDS[member]
        each = 1 if batch == 200 else 2  # an update of ring is a batch of both workers
        return speed(trained(command, hidden, batch), each * short, each * long, batch)
    ran = subprocess.run(
        [sys.executable, str(FOLDER / PEERS[member]), str(hidden), str(length)], capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    if ran.returncode:
        print(f"{member}: {ran.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return float(ran.stdout.split()[-1])


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians, and the median of each round's share of its own ceiling."""
    found: dict[str, Any] = {}
    for size in SIZES:
        mine = [each["speeds"] for each in rounds if each["size"] == size]
        names = dict.fromkeys(name for each in mine for name, value in each.items() if value)
        found[size] = {
            name: {
                "samples_per_second": round(median(each[name] for each in mine if each.get(name))),
                "of_the_ceiling": median((each[name] / each["ceiling"] for each in mine if each.get(name)), 3),
                "rounds": sum(1 for each in mine if each.get(name)),
            }
            for name in names
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a long training")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--members", default=";".join([*COMMANDS, *PEERS]), help="separated by semicolons")
    parser.add_argument("--again", action="store_true", help="begin a new rounds.jsonl")
    options = parser.parse_args()
    kept = FOLDER / "rounds.jsonl"
    if options.again:
        kept.unlink(missing_ok=True)
    for _ in range(options.rounds):
        for size in options.sizes.split(","):
            before, speeds = kept.read_text() if kept.exists() else "", dict[str, float | None]()
            for member in ["ceiling", *options.members.split(";")]:
                speeds[member] = measure(member, size, options.seconds)
                # At once: a round that is cut short keeps what it has.
                kept.write_text(before + json.dumps({"size": size, "speeds": speeds}) + "\n")
            print(size, {name: round(value) if value else None for name, value in speeds.items()}, flush=True)
    write({"speeds": summary(lines_of(kept))})


if __name__ == "__main__":
    main()
