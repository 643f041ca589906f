"""Train every program of this folder under five plans: it works, or one message says what to do instead.

run.py                     all of them; writes result.json and the table of README.md
run.py gan lstm_packed     these only; the others keep their rows
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))

import torch
from record import write

import paceline
from paceline.errors import PacelineError, PlanError
from paceline.jobs.loading import load_job

HERE = Path(__file__).parent
PLANS = ("sequential", "ring", "downpour", "local_sgd", "gpipe")
START, END = "<!-- table -->\n", "<!-- end of table -->"


def outcome(train: Callable[[str], dict[str, float]], plan: str) -> dict[str, Any]:
    """Train one program under one plan, with two workers; return its figures or its message."""
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        try:
            figures = train(plan)
        except PacelineError as error:
            found: dict[str, Any] = {"refused": f"{type(error).__name__}: {error}"}
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {error}"}
        else:
            found = {"works": figures}
    notes = [str(each.message) for each in noted if "paceline" in type(each.message).__module__]
    return {**found, "notes": notes, "seconds": round(time.perf_counter() - began, 2)}


def _trainer(program: Path) -> Callable[[str], dict[str, float]]:
    """Return what trains a program by a plan, always from the same parameters."""
    if program.stem == "own_loop":
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
        message = next(line for line in done.stderr.splitlines() if "paceline.errors." in line)
        raise PlanError(message.partition("PlanError: ")[2])
    return {"train_loss": float(done.stdout.split()[-1])}


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return the table of all programs, with the messages below it."""
    lines = [f"| program | {' | '.join(PLANS)} |", f"|---|{'---|' * len(PLANS)}"]
    messages: list[str] = []
    for name, by_plan in found.items():
        cells = []
        for plan in PLANS:
            each = by_plan[plan]
            if "works" in each:
                loss = each["works"]["train_loss"]
                cells.append(f"{loss:.3f}")
                continue
            message = each.get("refused") or f"FAILED: {each['failed']}"
            if message not in messages:
                messages.append(message)
            cells.append(f"[{messages.index(message) + 1}]")
        lines.append(f"| [{name}]({name}.py) | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{n}. {_short(message)}" for n, message in enumerate(messages, 1))]) + "\n"


def _short(message: str) -> str:
    return message.splitlines()[0].replace("<", "&lt;")


def main() -> None:
    chosen = sys.argv[1:]
    programs = [
        path for path in sorted(HERE.glob("*.py")) if path.stem != "run" and (not chosen or path.stem in chosen)
    ]
    found: dict[str, dict[str, Any]] = json.loads((HERE / "result.json").read_text())["programs"] if chosen else {}
    for program in programs:
        found[program.stem], train = {}, _trainer(program)
        for plan in PLANS:
            with contextlib.redirect_stdout(sys.stderr):
                found[program.stem][plan] = each = outcome(train, plan)
            print(program.stem, plan, {key: value for key, value in each.items() if key != "notes"}, flush=True)
    kinds = [next(iter(each)) for by_plan in found.values() for each in by_plan.values()]
    write(
        HERE,
        {"plans": PLANS, **{kind: kinds.count(kind) for kind in ("works", "refused", "failed")}, "programs": found},
    )
    readme = (HERE / "README.md").read_text()
    before, rest = readme.split(START)
    (HERE / "README.md").write_text(before + START + "\n" + table(found) + "\n" + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
