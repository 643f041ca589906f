"""Train every program of this folder under five plans: it works, or one message says what to do instead.

run.py                          all of them; writes result.json and the table of README.md
run.py gan lstm_packed          these only; the others keep their rows
run.py unseen [gan_own_loop]    the same of the programs in unseen/, or in newcomer/
"""

from __future__ import annotations

import contextlib
import json
import re
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
from paceline import errors
from paceline.errors import PacelineError
from paceline.training.jobs.loading import load_job

HERE = Path(__file__).parent
PLANS = {
    ".": ("sequential", "ring", "downpour", "local_sgd", "gpipe"),
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


def table(found: dict[str, dict[str, Any]], folder: str) -> str:
    """Return the table of all programs, with the messages below it."""
    plans = PLANS[folder]
    lines = [f"| program | {' | '.join(plans)} |", f"|---|{'---|' * len(plans)}"]
    messages: list[str] = []
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
        lines.append(f"| [{name}]({Path(folder, name)}.py) | {' | '.join(cells)} |")
    return (
        "\n".join([*lines, "", *(f"{n}. {message.replace('<', '&lt;')}" for n, message in enumerate(messages, 1))])
        + "\n"
    )


def record(found: dict[str, dict[str, Any]], folder: str) -> None:
    """Write what was found, and its table."""
    kinds = [next(iter(each)) for by_plan in found.values() for each in by_plan.values()]
    counts = {kind: kinds.count(kind) for kind in ("works", "refused", "failed")}
    found = dict(sorted(found.items()))
    write(HERE / folder, {"plans": PLANS[folder], **counts, "programs": found})
    readme, start, end = (HERE / "README.md").read_text(), f"<!-- {folder} -->\n", f"<!-- end of {folder} -->"
    before, rest = readme.split(start)
    (HERE / "README.md").write_text(before + start + "\n" + table(found, folder) + "\n" + end + rest.split(end)[1])


def main() -> None:
    folder, chosen = (sys.argv[1], sys.argv[2:]) if sys.argv[1:2] and sys.argv[1] in PLANS else (".", sys.argv[1:])
    plans, result = PLANS[folder], HERE / folder / "result.json"
    programs = [path for path in sorted((HERE / folder).glob("*.py")) if path.stem != "run"]
    found: dict[str, dict[str, Any]] = json.loads(result.read_text())["programs"] if chosen else {}
    for program in programs:
        if chosen and program.stem not in chosen:
            continue
        found[program.stem], train = {}, _trainer(program)
        for plan in plans:
            with contextlib.redirect_stdout(sys.stderr):
                found[program.stem][plan] = each = outcome(train, plan)
            print(program.stem, plan, {key: value for key, value in each.items() if key != "notes"}, flush=True)
        record(found, folder)


if __name__ == "__main__":
    main()
