"""SIGTERM and Ctrl-C at any moment, a disk that fills up, a worker that is stopped for ever: how `paceline train` ends.

Every try is a process of its own with a folder for its temporary files. It counts as right if the exit code is the one
that is documented, run.json says how the run ended, no process, temporary file or draft is left, and a run that has a
checkpoint trains on from it.
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import write

from paceline.plans.plan import Plan

JOB = """
import torch
from functools import partial
from torch import nn
import paceline as pl
g = torch.Generator().manual_seed(0)
x = torch.randn(2000, 30, generator=g)
y = torch.randint(5, (2000,), generator=g)
sizes = 30, 64, 32, 16, 5
layers = [each for a, b in zip(sizes, sizes[1:]) for each in (nn.Tanh, partial(nn.Linear, a, b))][1:]
job = pl.Job(model=lambda: nn.Sequential(*(layer() for layer in layers)), data=(x, y), test=(x, y),
             loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
             batch_size=20, epochs=EPOCHS)
"""
PLANS = (
    "downpour", "ring", "sequential", "hogwild", "local_sgd", "gpipe", "gossip:mode=asynchronous", "easgd", "tree",
    "halving_doubling", "hierarchical", "central", "backup", "ssp", "dc_asgd", "parallel_sgd",
    "parallel_sgd:mode=map_reduce", "easgd:mode=asynchronous", "diloco", "diloco:mode=asynchronous", "gossip",
    "sandblaster", "layers", "one_f_one_b", "interleaved", "zero_bubble", "pipedream", "spectrain", "tensor",
    "redundant", "zero", "ampnet", "distbelief", "ddp",
)  # fmt: skip
ON_NODES = ("downpour", "ring", "ssp", "local_sgd", "backup", "gossip", "easgd:mode=asynchronous", "central", "dc_asgd")
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
        alone = plan == "sequential" or "PACELINE_NODES" in variables
        workers = () if alone else ("--workers", "4" if plan == "distbelief" else "2")
        job = str(self.folder / "job.py")
        return self._start(job, "--plan", plan, *workers, "--runs", str(self.runs), *words, **variables)

    def _start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "paceline", "train", *words, "--quiet"],
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
        cache = "torchinductor_"  # of PyTorch, which keeps it
        yield from (f"temporary {p.name} left" for p in self.scratch.iterdir() if not p.name.startswith(cache))
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

    def resumes(self) -> Iterator[str]:
        """Name what is wrong with training on from the last checkpoint, until the workers are past it."""
        kept = [int(path.name) for path in self.runs.glob("*/checkpoints/*") if path.name.isdigit()]
        if not kept:
            return
        (run,) = self.runs.glob("*")
        (run / "live.json").unlink(missing_ok=True)
        process = self._start("--resume", str(run))
        end = time.monotonic() + LIMIT
        while (live := self.live(process)) and time.monotonic() < end:
            if live["updates"] > max(kept):
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        code, said = ended(process)
        if not live or code != 143:
            yield f"resumed at {max(kept)}: exit code {code}: {said.strip()[-300:]}"
        yield from (f"resumed: {each}" for each in self.left())

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


def sleep_until_somewhere(chance: random.Random, attempt: Try, process: subprocess.Popen[str]) -> None:
    """Sleep until some moment between the first of the command, when it handles signals, and well into the training."""
    if chance.random() < 0.5:
        time.sleep(chance.uniform(0.05, 5.0))
    else:
        attempt.live(process)
        time.sleep(chance.uniform(0.0, 2.0))
    wait_until_begun(process)


def wait_until_begun(process: subprocess.Popen[str]) -> None:
    """Wait until a process handles SIGTERM: before that it is Python that starts."""
    caught = 0
    while not caught >> (signal.SIGTERM - 1) & 1 and process.poll() is None:
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            caught = int(next(line for line in lines if line.startswith("SigCgt")).split()[1], 16)
        time.sleep(0.005)


def asked(chance: random.Random, plan: str, folder: Path) -> list[str]:
    """SIGTERM or SIGINT to the parent, or to all processes."""
    attempt = Try(folder, LONG)
    process = attempt.start(plan, *(("--checkpoint-every", "50") if chance.random() < 0.5 and keeps(plan) else ()))
    sleep_until_somewhere(chance, attempt, process)
    number = chance.choice((signal.SIGTERM, signal.SIGTERM, signal.SIGINT))
    for pid in attempt.pids() if chance.random() < 0.5 else [process.pid]:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
    code, said = ended(process)
    wrong = [] if code == 128 + number else [f"{number.name}: exit code {code}: {said.strip()[-300:]}"]
    wrong += [] if attempt.status() in ("stopped", "none") else [f"run.json says {attempt.status()}"]
    return [*wrong, *attempt.left(), *attempt.resumes()]


def keeps(plan: str) -> bool:
    """Whether a plan keeps checkpoints."""
    return not Plan.parse(plan, 4 if plan == "distbelief" else None).traits.no_checkpoints


def nodes_asked(chance: random.Random, plan: str, folder: Path) -> list[str]:
    """SIGTERM or SIGINT to both nodes of a cluster run at once, or nearly."""
    attempt = Try(folder, LONG)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        head = f"127.0.0.1:{probe.getsockname()[1]}"
    nodes = [attempt.start(plan, PACELINE_NODES="2", PACELINE_HEAD=head, PACELINE_RANK=str(rank)) for rank in range(2)]
    sleep_until_somewhere(chance, attempt, nodes[0])
    wait_until_begun(nodes[1])
    number, apart = chance.choice((signal.SIGTERM, signal.SIGTERM, signal.SIGINT)), chance.choice((0.0, 0.0, 0.02, 0.2))
    for node in nodes[:: chance.choice((1, -1))]:
        node.send_signal(number)
        time.sleep(apart)
    codes = [ended(node) for node in nodes]
    wrong = [
        f"{number.name}, {apart} s apart: exit code {code} of rank {n}: {said.strip()[-300:]}"
        for n, (code, said) in enumerate(codes)
        if code != 128 + number
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
        process = attempt.start(plan, *(("--checkpoint-every", "20") if keeps(plan) else ()))
        if room is None:
            attempt.live(process)
            time.sleep(chance.uniform(0.0, 1.0))
            fill(small, 0)
        code, said = ended(process)
        wrong = [] if code == 1 and "make room" in said else [f"exit code {code}: {said.strip()[-200:]}"]
        wrong += [] if attempt.status() in ("failed", "none") else [f"run.json says {attempt.status()}"]
        wrong += attempt.left()
        (small / "fill").unlink(missing_ok=True)
        return [*wrong, *attempt.resumes()]
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
    "asked": asked, "nodes-asked": nodes_asked, "disk": disk, "stopped": stopped,
}  # fmt: skip


def one(seed: int, fault: str, plans: Sequence[str], number: int) -> list[str]:
    """Make one try; return what was wrong."""
    chance, plan, begin = random.Random(f"{seed} {fault} {number}"), plans[number % len(plans)], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ending-") as folder:
        found = FAULTS[fault](chance, plan, Path(folder))
    print(f"{fault} {number} {plan} {time.monotonic() - begin:.1f} s: {found or 'right'}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=50, help="of each fault")
    parser.add_argument("--at-once", type=int, default=1, help="tries")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--plans", default=",".join(PLANS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-record", action="store_true")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background, and so would tries
    figures: dict[str, Any] = {}
    for fault in given.faults.split(","):
        wrong: Counter[str] = Counter()
        tried: Counter[str] = Counter()
        plans = ON_NODES if fault == "nodes-asked" else given.plans.split(",")
        with ThreadPoolExecutor(given.at_once) as pool:
            for number, found in enumerate(pool.map(partial(one, given.seed, fault, plans), range(given.tries))):
                plan = plans[number % len(plans)]
                tried[plan] += 1
                wrong[plan] += bool(found)
        figures[fault] = {plan: f"{tried[plan] - wrong[plan]} of {tried[plan]}" for plan in plans if tried[plan]}
        print(fault, f"right in {sum(tried.values()) - sum(wrong.values())} of {sum(tried.values())}")
    if not given.no_record:
        write({"right": figures})


if __name__ == "__main__":
    main()
