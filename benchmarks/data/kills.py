"""Ends prepare and ingest by SIGKILL at random moments; after the last rerun the files hold the same bits.

Every result is written down at once, so that the command can be given again until all kills are done.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROWS = 60_000
PREPARE = """
import sys
from pathlib import Path
from paceline.training.preparation.prepare import prepare
from paceline.training.preparation.recipe import Recipe
from paceline.training.preparation.sources import Csv
rows = Csv("rows.csv", {"id": "int", "v": "float"})
columns = {"id": "id", "v": ["v", "v * 2"]}
prepare(Recipe(rows, columns, splits={"train": 0.8, "test": 0.2}, shard_rows=4096), sys.argv[1], threads=1)
"""
INGEST = """
import sys
from paceline.training.preparation.ingest import ingest
from paceline.training.preparation.recipe import Recipe
from paceline.training.preparation.sources import Csv
rows = Csv("-", {"id": "int", "v": "float"})
ingest(Recipe(rows, {"id": "id", "v": ["v"]}), sys.argv[1], ["rows.csv"], rows=4000)
"""
PROGRAMS = {"prepare": PREPARE, "ingest": INGEST}


def measure(folder: Path, kills: int, known: dict[str, Any], keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Kill both programs until each was killed half of `kills` times; `known` says what was done before."""
    text = "".join(f"{n},{n / 7:.3f}\n" if n % 500 else f"{n},bad\n" for n in range(ROWS))
    (folder / "rows.csv").write_text(f"id,v\n{text}")
    found = {
        name: known.get(name, dict.fromkeys(("kills", "with shards there", "results", "same bits"), 0))
        for name in PROGRAMS
    }
    for name, program in PROGRAMS.items():
        if found[name]["kills"] < kills // 2:
            attack(folder, program, kills // 2, found[name], lambda: keep(found))
    return found


def attack(folder: Path, program: str, kills: int, found: dict[str, int], keep: Callable[[], None]) -> None:
    """Kill a program so many times, in rows of one to five, and compare each result with an undisturbed one."""
    begun = time.monotonic()
    _run(folder, program, "undisturbed")
    whole, expected = time.monotonic() - begun, digest(folder / "undisturbed")
    while found["kills"] < kills:
        chance = random.Random(found["results"])
        shutil.rmtree(folder / "out", ignore_errors=True)
        for _ in range(min(chance.randrange(1, 6), kills - found["kills"])):
            process = subprocess.Popen([sys.executable, "-c", program, "out"], cwd=folder)
            time.sleep(chance.uniform(0, whole))
            process.send_signal(signal.SIGKILL)
            found["kills"] += process.wait() == -signal.SIGKILL
            if process.returncode == 0 or (folder / "out" / "manifest.json").exists():  # it was faster than the kill
                break
            found["with shards there"] += any((folder / "out").rglob("*.bin"))
        else:
            _run(folder, program, "out")
        found["results"] += 1
        found["same bits"] += digest(folder / "out") == expected
        keep()
        print(json.dumps(found), flush=True)
    shutil.rmtree(folder / "undisturbed")


def digest(folder: Path) -> str:
    """Return a digest of all files: names and bytes."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(f"{path.relative_to(folder)}".encode() + path.read_bytes())
    return found.hexdigest()


def _run(folder: Path, program: str, name: str) -> None:
    subprocess.run([sys.executable, "-c", program, name], cwd=folder, check=True)
