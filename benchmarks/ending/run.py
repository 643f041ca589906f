"""SIGTERM at any moment, a disk that fills up, a worker that is stopped for ever: how `paceline train` ends.

Every try is a process of its own with a folder for its temporary files. It counts as right if the exit code is the one
that is documented, run.json says how the run ended, and no process, temporary file or draft is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import write

JOB = """
import torch
from functools import partial
from torch import nn
import paceline as pl
g = torch.Generator().manual_seed(0)
x = torch.randn(2000, 30, generator=g)
y = torch.randint(5, (2000,), generator=g)
job = pl.Job(model=lambda: nn.Sequential(nn.Linear(30, 64), nn.Tanh(), nn.Linear(64, 5)), data=(x, y),
             loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.SGD, lr=0.05), batch_size=20, epochs=EPOCHS,
             test=(x, y))
"""
PLANS = ("downpour", "ring", "sequential", "hogwild", "local_sgd", "gpipe", "gossip:mode=asynchronous", "easgd")
LONG, SHORT = 100_000, 12  # epochs: never done before the fault, and done soon after it
LIMIT = 120.0  # seconds in which a try has to end
MARK = "PACELINE_ENDING_TRY"


class Try:
    """One try: its folders, its processes, and what is wrong with how they ended."""

    def __init__(self, folder: Path, epochs: int, runs: Path | None = None) -> None:
        self.folder, self.runs, self.scratch = folder, runs or folder / "runs", folder / "tmp"
        self.scratch.mkdir()
        (folder / "job.py").write_text(JOB.replace("EPOCHS", str(epochs)))
        self.mark = str(folder)

    def start(self, plan: str, *words: str, **variables: str) -> subprocess.Popen[str]:
        workers = () if plan == "sequential" or "PACELINE_NODES" in variables else ("--workers", "2")
        return subprocess.Popen(
            [sys.executable, "-m", "paceline", "train", str(self.folder / "job.py"), "--plan", plan, *workers,
             "--quiet", "--runs", str(self.runs), *words],
            env={**os.environ, "TMPDIR": str(self.scratch), MARK: self.mark, **variables}, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def left(self) -> Iterator[str]:
        """Name what is left behind, after some patience with what is about to end."""
        end = time.monotonic() + 10.0
        while (pids := self.pids()) and time.monotonic() < end:
            time.sleep(0.1)
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if pids:
            yield f"{len(pids)} processes left"
        yield from (f"temporary {path.name} left" for path in self.scratch.iterdir())
        for path in self.runs.glob("*/*"):
            if path.suffix in (".new", ".first"):
                yield f"draft {path.name} left"
        for path in self.runs.glob("*"):
            if not (path / "run.json").exists():
                yield f"a folder without run.json: {[each.name for each in path.iterdir()]}"

    def pids(self) -> list[int]:
        mark, found = f"{MARK}={self.mark}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parts[2]))
        return found

    def status(self) -> str:
        records = [json.loads(path.read_text()) for path in self.runs.glob("*/run.json")]
        return records[0]["status"] if records else "none"

    def live(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """Wait until the workers train."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end and process.poll() is None:
            for path in self.runs.glob("*/live.json"):
                with contextlib.suppress(OSError, ValueError):
                    record: dict[str, Any] = json.loads(path.read_text())
                    if record["phase"] == "training":
                        return record
            time.sleep(0.02)
        return {}


def ended(process: subprocess.Popen[str]) -> tuple[int | None, str]:
    try:
        _, said = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, said = process.communicate()
        return None, said
    return process.returncode, said


def sigterm(chance: random.Random, plan: str, folder: Path) -> list[str]:
    """SIGTERM to the parent, or to all processes, between the first moment and well into the training."""
    attempt = Try(folder, LONG)
    process = attempt.start(plan)
    if chance.random() < 0.5:
        time.sleep(chance.uniform(0.05, 5.0))
    else:
        attempt.live(process)
        time.sleep(chance.uniform(0.0, 2.0))
    for pid in attempt.pids() if chance.random() < 0.5 else [process.pid]:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)
    code, said = ended(process)
    wrong = [] if code == 143 else [f"exit code {code}: {said.strip()[-200:]}"]
    wrong += [] if attempt.status() in ("stopped", "none") else [f"run.json says {attempt.status()}"]
    return [*wrong, *attempt.left()]


def sigterm_nodes(chance: random.Random, plan: str, folder: Path) -> list[str]:
    """SIGTERM to both nodes of a cluster run at once."""
    attempt = Try(folder, LONG)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        head = f"127.0.0.1:{probe.getsockname()[1]}"
    nodes = [attempt.start(plan, PACELINE_NODES="2", PACELINE_HEAD=head, PACELINE_RANK=str(rank)) for rank in range(2)]
    attempt.live(nodes[0])
    time.sleep(chance.uniform(0.0, 2.0))
    for node in nodes[:: chance.choice((1, -1))]:
        node.send_signal(signal.SIGTERM)
    codes = [ended(node) for node in nodes]
    wrong = [
        f"exit code {code} of rank {n}: {said.strip()[-300:]}" for n, (code, said) in enumerate(codes) if code != 143
    ]
    wrong += [] if attempt.status() in ("stopped", "none") else [f"run.json says {attempt.status()}"]
    return [*wrong, *attempt.left()]


def disk(chance: random.Random, plan: str, folder: Path) -> list[str]:
    """A disk of 4 MB is full at the start, or fills up while the workers train."""
    small = folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small], check=True)
    try:
        attempt = Try(folder, LONG, small / "runs")
        room = chance.choice((0, 4096, 100_000, 400_000)) if chance.random() < 0.4 else None
        if room is not None:
            fill(small, room)
        process = attempt.start(plan, "--checkpoint-every", "20")
        if room is None:
            attempt.live(process)
            time.sleep(chance.uniform(0.0, 1.0))
            fill(small, 0)
        code, said = ended(process)
        wrong = [] if code == 1 and "make room" in said else [f"exit code {code}: {said.strip()[-200:]}"]
        wrong += [] if attempt.status() in ("failed", "none") else [f"run.json says {attempt.status()}"]
        return [*wrong, *attempt.left()]
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def fill(folder: Path, room: int) -> None:
    """Fill a disk but for some room."""
    file = folder / "fill"
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as opened:
        while opened.write(b"0" * 4096):
            pass
    os.truncate(file, max(0, file.stat().st_size - room))


def stopped(chance: random.Random, plan: str, folder: Path) -> list[str]:
    """SIGSTOP to a worker: it is named, and the run goes on or ends."""
    attempt = Try(folder, SHORT * (1 if plan == "sequential" else 3))
    process = attempt.start(plan, "--timeout", "3")
    workers = attempt.live(process).get("workers", [])
    time.sleep(chance.uniform(0.0, 0.3))
    if not workers or process.poll() is not None:
        process.kill()
        return ["the run was over before a worker was stopped"]
    victim = chance.choice(workers)
    with contextlib.suppress(OSError):
        os.kill(victim["process"]["pid"], signal.SIGSTOP)
    code, said = ended(process)
    name = f"worker {victim['number']} "
    wrong = [] if code in (0, 1) and name in said else [f"exit code {code}, without {name!r}: {said.strip()[-300:]}"]
    wrong += [] if attempt.status() in ("done", "failed") else [f"run.json says {attempt.status()}"]
    return [*wrong, *attempt.left()]


FAULTS: dict[str, Callable[[random.Random, str, Path], list[str]]] = {
    "sigterm": sigterm, "sigterm-nodes": sigterm_nodes, "disk": disk, "stopped": stopped,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=50, help="of each fault")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--plans", default=",".join(PLANS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-record", action="store_true")
    given = parser.parse_args()
    figures: dict[str, Any] = {}
    for fault in given.faults.split(","):
        wrong: Counter[str] = Counter()
        tried: Counter[str] = Counter()
        plans = ["downpour", "ring"] if fault == "sigterm-nodes" else given.plans.split(",")
        for number in range(given.tries):
            chance, plan = random.Random(f"{given.seed} {fault} {number}"), plans[number % len(plans)]
            begin = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="ending-") as folder:
                found = FAULTS[fault](chance, plan, Path(folder))
            tried[plan] += 1
            wrong[plan] += bool(found)
            print(f"{fault} {number} {plan} {time.monotonic() - begin:.1f} s: {found or 'right'}", flush=True)
        figures[fault] = {plan: f"{tried[plan] - wrong[plan]} of {tried[plan]}" for plan in plans if tried[plan]}
        print(fault, f"right in {sum(tried.values()) - sum(wrong.values())} of {sum(tried.values())}")
    if not given.no_record:
        write(Path(__file__).parent, {"right": figures})


if __name__ == "__main__":
    main()
