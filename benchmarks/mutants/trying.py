"""Runs of pytest in copies of the working tree."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT, INSIDE = Path(__file__).parents[2], Path(__file__).parent / "inside"
MEMORY = 8 << 30  # bytes a process may have: a mutant may never stop growing


def take_tree(target: Path) -> None:
    """Copy what git would keep of the repository, and compile it so that a compiled file is judged by what its source
    holds, not by its age. A tree that is there is left as it is.
    """
    if target.exists():
        return
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    draft = target.with_name(target.name + ".new")
    shutil.rmtree(draft, ignore_errors=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, draft / name)
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "src"]
    subprocess.run(compiled, cwd=draft, check=True)
    draft.rename(target)


class Ran(NamedTuple):
    tests: dict[str, tuple[float, str]]  # seconds and outcome
    numbers: dict[str, int]  # of the tests in the trace
    overdue: str  # the test that was being run when the whole took too long
    said: str


def run_tests(
    tree: Path, arguments: Sequence[str], order: dict[str, Any], limit: float | None, trace: Path | None = None
) -> Ran:
    """pytest in a copy of the tree; its process group is killed after `limit` seconds."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        folder = Path(place)
        report = folder / "report.json"
        (folder / "order.json").write_text(json.dumps({**order, "report": str(report)}))
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "mutants_plugin", "-p", "no:cacheprovider", *arguments],
            cwd=tree, env=_environment(tree, folder, trace), start_new_session=True, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            preexec_fn=_bounded if limit else None,
        )  # fmt: skip
        overdue = ""
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            begun = report.with_suffix(".begun")
            overdue = begun.read_text() if begun.exists() else "collecting"
            said = ""
        finally:
            with contextlib.suppress(ProcessLookupError):  # also what a failed test has left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        found = json.loads(report.read_text()) if report.exists() else {"tests": {}, "numbers": {}}
        tests = {name: (seconds, outcome) for name, (seconds, outcome) in found["tests"].items()}
        return Ran(tests, found["numbers"], overdue, said)


def _environment(tree: Path, folder: Path, trace: Path | None) -> dict[str, str]:
    (folder / "tmp").mkdir()
    given = {
        "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{INSIDE}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MUTANTS_ORDER": str(folder / "order.json"),
        "TMPDIR": str(folder / "tmp"),
    }
    return {**os.environ, **given, **({"MUTANTS_TRACE": str(trace)} if trace else {})}


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
