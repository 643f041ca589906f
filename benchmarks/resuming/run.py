"""SIGKILL to the whole process tree at random moments, and the run goes on each time: synchronous plans end with the
bits of the undisturbed run, the others with a history that a replay reproduces. Nothing is left in /dev/shm and /tmp.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from paceline.testing.conformance import each_sample_once, no_update_lost, replays, staleness_identity
from paceline.testing.killing import kill_tree

import paceline as pl
from paceline.runtime.runs.record import read_record
from paceline.training.jobs.loading import load_job

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import read, write

JOB = str(Path(__file__).parent / "small.py")
KEEPS_STEP = (
    "sequential", "ring:workers=2", "tree:workers=3", "easgd:workers=2,every=7", "diloco:workers=2,every=30",
    "gossip:workers=3", "sandblaster:workers=2,memory=3", "backup:workers=2,backups=0", "ddp:workers=2",
)  # fmt: skip
WITH_A_SERVER = (
    "downpour:workers=3,shards=2", "ssp:workers=2", "backup:workers=3", "easgd:mode=asynchronous,workers=2,every=5",
    "gossip:mode=asynchronous,workers=3", "hogwild:workers=2",
)  # fmt: skip
FAMILIES = {"keeps_step": KEEPS_STEP, "with_a_server": WITH_A_SERVER}
MOST_WORKERS = 4
MOMENT = 6.0  # seconds: starting takes about half of them


@dataclass
class Told:
    kills: int = 0
    in_start: int = 0  # before the first update
    while_writing: int = 0  # a checkpoint
    other_workers: int = 0  # went on with another number of them
    runs: dict[str, int] = field(default_factory=dict)  # kills of each
    lost_updates: list[int] = field(default_factory=list)


def start(base: Path, *arguments: object) -> subprocess.Popen[str]:
    """A training whose /tmp is a folder of its own, so that one sees what it leaves there."""
    command = [sys.executable, "-W", "ignore", "-m", "paceline", "train", *map(str, arguments), "--json"]
    temporary = base / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(temporary.absolute())}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def killed(process: subprocess.Popen[str], chance: random.Random, seconds: float) -> bool:
    """SIGKILL at a random moment of the first so many seconds; False where it was over before."""
    try:
        process.wait(chance.uniform(0.5, seconds))
    except subprocess.TimeoutExpired:
        kill_tree(psutil.Process(process.pid))
    _, said = process.communicate()
    if process.returncode not in (0, -signal.SIGKILL):
        raise AssertionError(f"exit code {process.returncode}: {said}")
    return process.returncode != 0


def note(folder: Path, told: Told) -> None:
    told.kills += 1
    names = [p.name for p in (folder / "checkpoints").glob("*")] if folder.exists() else []
    told.while_writing += any(name.endswith(".new") for name in names)
    trace = folder / "trace.arrow"
    seen = (
        pl.trace.Trace.open(trace).of_kind(pl.trace.Kind.APPLY)["update"]
        if trace.exists() and trace.stat().st_size
        else []
    )
    if not len(seen):
        told.in_start += 1
        return
    kept = max((int(name) for name in names if name.isdigit()), default=0)
    told.lost_updates.append(max(0, int(max(seen)) + 1 - kept))


def disturbed(plan: str, kills: int, every: int, chance: random.Random, seconds: float, told: Told, base: Path) -> Path:
    """The folder of a run that was killed so often, unless it was over before."""
    runs = base / f"run-{len(list(base.iterdir()))}"
    process = start(base, JOB, "--plan", plan, "--runs", runs, "--checkpoint-every", every)
    for _ in range(kills):
        if not killed(process, chance, seconds):
            break
        folder = next(runs.iterdir(), None) if runs.exists() else None
        if folder is not None and is_done(folder):
            return folder  # the kill came when all was written
        told.runs[plan] = told.runs.get(plan, 0) + 1
        if folder is None or not (folder / "run.json").exists():  # it had not begun: there is nothing to go on with
            told.kills, told.in_start = told.kills + 1, told.in_start + 1
            runs = base / f"run-{len(list(base.iterdir()))}"
            process = start(base, JOB, "--plan", plan, "--runs", runs, "--checkpoint-every", every)
            continue
        note(folder, told)
        other = plan in WITH_A_SERVER and not plan.startswith("backup") and chance.random() < 0.5
        told.other_workers += other
        process = start(base, "--resume", folder, *(["-w", chance.randint(1, MOST_WORKERS)] if other else []))
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    (folder,) = runs.iterdir()
    return folder


def is_probe(file: Path) -> bool:
    """Python's own, by which `tempfile` finds a folder that it can write to; a kill may come just then."""
    return file.is_file() and file.read_bytes() in (b"", b"blat")


def is_done(folder: Path) -> bool:
    record = folder / "run.json"
    return record.exists() and json.loads(record.read_text())["status"] == "done"


def opened(folder: Path) -> pl.Run:
    import torch

    job, record = load_job(JOB), read_record(folder)
    model = job.make_model()
    model.load_state_dict(torch.load(folder / "model.pt"))
    trace = pl.trace.Trace.open(folder / "trace.arrow")
    return pl.Run(folder, trace, record, model, job)


def check(folder: Path, plan: str, whole: dict[str, Any] | None) -> None:
    run = opened(folder)
    each_sample_once(run)
    if whole is not None:
        assert run.summary()["parameters_sha256"] == whole["parameters_sha256"], f"{plan} ends with other bits"
        assert [h["test_loss"] for h in run.history] == whole["test_loss"], f"{plan} was evaluated elsewhere"
    if not plan.startswith(("hogwild", "ddp")):
        replays(run)
        if whole is None:
            no_update_lost(run)
            staleness_identity(run)


def measure(plans: tuple[str, ...], kills: int, every: int, chance: random.Random, base: Path) -> dict[str, Any]:
    told, whole = Told(), dict[str, dict[str, Any]]()
    begun, turn = time.monotonic(), 0
    while told.kills < kills:
        plan = plans[turn % len(plans)]
        turn += 1
        if plan in KEEPS_STEP and plan not in whole:
            run = pl.train(load_job(JOB), plan, folder=None)
            whole[plan] = {**run.summary(), "test_loss": [h["test_loss"] for h in run.history]}
        folder = disturbed(plan, min(4, kills - told.kills), every, chance, MOMENT, told, base)
        check(folder, plan, whole.get(plan))
        print(f"{told.kills}/{kills} kills; {plan} came through {told.runs.get(plan, 0)}", flush=True)
    return {
        "kills": told.kills,
        "before_the_first_update": told.in_start,
        "while_a_checkpoint_was_being_written": told.while_writing,
        "went_on_with_other_workers": told.other_workers,
        "most_updates_made_again": max(told.lost_updates, default=0),
        "kills_of_each": told.runs,
        "ended_with_other_bits": 0,  # or `check` had ended the program; and so below
        "invalid_histories": 0,
        "minutes": round((time.monotonic() - begun) / 60, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="of synchronous plans; and half as many of the others")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=25)
    parser.add_argument("--only", choices=FAMILIES, help="the other's figures stay as they were measured")
    options = parser.parse_args()
    chance, shared = random.Random(options.seed), set(os.listdir("/dev/shm"))
    figures = {name: part for name, part in read().items() if name in FAMILIES} if options.only else {}
    with tempfile.TemporaryDirectory(dir=".") as scratch:
        base = Path(scratch)
        for name, plans in FAMILIES.items():
            if options.only in (None, name):
                kills = options.kills if plans is KEEPS_STEP else options.kills // 2
                figures[name] = measure(plans, kills, options.every, chance, base)
        left = [*os.listdir(base / "tmp"), *(name for name in os.listdir("/dev/shm") if name not in shared)]
        left = [name for name in left if not name.startswith("torchinductor_") and not is_probe(base / "tmp" / name)]
        assert not left, f"left behind: {left}"
    write({**figures, "checkpoint_every": options.every, "left_behind": 0})


if __name__ == "__main__":
    main()
