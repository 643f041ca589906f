"""Train every program of a corpus under five plans: it works, or one message says what to do instead.

run.py                          those of tutorials.txt; writes tutorials.json and the table of README.md
run.py gan lstm_packed          these only; the others keep their rows
run.py unseen [gan_own_loop]    the same of the programs of unseen.txt, or of newcomer.txt
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))

import torch
from harness import into_page, read, table, unpack, write

import paceline
from paceline import errors
from paceline.errors import PacelineError
from paceline.training.jobs.loading import load_job

HERE = Path(__file__).parent
PLANS = {
    "tutorials": ("sequential", "ring", "downpour", "local_sgd", "gpipe"),
    "unseen": ("sequential", "ddp", "ring", "downpour", "gpipe"),
    "newcomer": ("sequential", "ring", "downpour", "local_sgd", "gpipe"),
}


def outcome(train: Callable[[str], dict[str, float]], plan: str) -> dict[str, Any]:
    """Train one program under one plan, with two workers; return its figures or its message."""
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        try:
            figures = train(plan)
        except PacelineError as error:
            found: dict[str, Any] = {"refused": told(error)}
        except Exception as error:
            found = {"failed": told(error)}
        else:
            found = {"works": figures}
    notes = [str(each.message) for each in noted if "paceline" in type(each.message).__module__]
    return {**found, "notes": notes, "seconds": round(time.perf_counter() - began, 2)}


def told(error: Exception) -> str:
    """Return what an error says, without the lines of a traceback."""
    first, *rest = str(error).splitlines()
    advice = [line.partition("  advice   ")[2] for line in rest if line.startswith("  advice   ")]
    return "; ".join([f"{type(error).__name__}: {first}", *advice])


def _trainer(program: Path) -> Callable[[str], dict[str, float]]:
    """Return what trains a program by a plan, always from the same parameters."""
    if "def main(plan)" in program.read_text():
        return partial(_own_loop, program)
    torch.manual_seed(0)  # for models that are made when the file is read
    job = load_job(str(program))

    def train(plan: str) -> dict[str, float]:
        run = paceline.train(job, plan, workers=None if plan == "sequential" else 2, folder=None)
        summary = run.summary()
        return {name: summary[name] for name in ("train_loss", *run.record.summary.metrics)}

    return train


def _own_loop(program: Path, plan: str) -> dict[str, float]:
    """Run a script of the user's own, on two ranks unless the plan is one process."""
    ranks = [] if plan == "sequential" else ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run([sys.executable, *ranks, str(program), plan], capture_output=True, text=True)
    if done.returncode:
        known = re.search(r"paceline\.errors\.(?:\w+\.)*(\w+): (.*)", done.stderr)
        if known is None:
            lines = [line for line in done.stderr.splitlines() if "Error: " in line]
            raise RuntimeError(lines[-1] if lines else done.stderr[-500:])
        raise getattr(errors, known[1])(known[2])
    return {"train_loss": float(done.stdout.split()[-1])}


def page(found: dict[str, dict[str, Any]], plans: tuple[str, ...]) -> str:
    """Return the table of all programs, with the messages below it."""
    rows, messages = list[list[str]](), list[str]()
    for name, by_plan in found.items():
        cells = []
        for plan in plans:
            each = by_plan[plan]
            if "works" in each:
                cells.append(f"{each['works']['train_loss']:.3f}")
                continue
            message = each.get("refused") or f"FAILED: {each['failed']}"
            if message not in messages:
                messages.append(message)
            cells.append(f"[{messages.index(message) + 1}]")
        rows.append([name, *cells])
    below = [f"{number}. {message.replace('<', '&lt;')}\n" for number, message in enumerate(messages, 1)]
    return "\n" + table(["program", *plans], rows) + "\n" + "".join(below) + "\n"


def record(found: dict[str, dict[str, Any]], name: str) -> None:
    """Write what was found, and its table."""
    kinds = [next(iter(each)) for by_plan in found.values() for each in by_plan.values()]
    counts = {kind: kinds.count(kind) for kind in ("works", "refused", "failed")}
    found = dict(sorted(found.items()))
    write({"plans": PLANS[name], **counts, "programs": found}, f"{name}.json")
    into_page(page(found, PLANS[name]), name)


def main() -> None:
    name, chosen = (
        (sys.argv[1], sys.argv[2:]) if sys.argv[1:2] and sys.argv[1] in PLANS else ("tutorials", sys.argv[1:])
    )
    found: dict[str, dict[str, Any]] = read(f"{name}.json")["programs"] if chosen else {}
    with tempfile.TemporaryDirectory() as folder:
        unpack(HERE / f"{name}.txt", Path(folder))
        for program in [Path(folder, f"{each}.py") for each in chosen] or sorted(Path(folder).iterdir()):
            found[program.stem], train = {}, _trainer(program)
            for plan in PLANS[name]:
                with contextlib.redirect_stdout(sys.stderr):
                    found[program.stem][plan] = each = outcome(train, plan)
                print(program.stem, plan, {key: value for key, value in each.items() if key != "notes"}, flush=True)
            record(found, name)


if __name__ == "__main__":
    main()
