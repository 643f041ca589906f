"""Ends prepare and ingest by SIGKILL at random moments; after the last rerun the files hold the same bits.

python benchmarks/data/kills.py [KILLS]
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROWS = 60_000
PREPARE = """
import sys
from pathlib import Path
from paceline.preparation.prepare import prepare
from paceline.preparation.recipe import Recipe
from paceline.preparation.sources import Csv
rows = Csv("rows.csv", {"id": "int", "v": "float"})
columns = {"id": "id", "v": ["v", "v * 2"]}
prepare(Recipe(rows, columns, splits={"train": 0.8, "test": 0.2}, shard_rows=4096), sys.argv[1], threads=1)
"""
INGEST = """
import sys
from paceline.preparation.ingest import ingest
from paceline.preparation.recipe import Recipe
from paceline.preparation.sources import Csv
rows = Csv("-", {"id": "int", "v": "float"})
ingest(Recipe(rows, {"id": "id", "v": ["v"]}), sys.argv[1], ["rows.csv"], rows=4000)
"""


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        rows = "".join(f"{n},{n / 7:.3f}\n" if n % 500 else f"{n},bad\n" for n in range(ROWS))
        (folder / "rows.csv").write_text(f"id,v\n{rows}")
        for name, program in (("prepare", PREPARE), ("ingest", INGEST)):
            print(json.dumps(attack(folder, name, program, kills // 2)), flush=True)


def attack(folder: Path, name: str, program: str, kills: int) -> dict[str, object]:
    """Kill a program so many times, in rows of one to five, and compare each result with an undisturbed one."""
    begun = time.monotonic()
    _run(folder, program, "undisturbed")
    whole, expected = time.monotonic() - begun, digest(folder / "undisturbed")
    chance, done, finished, same, partly = random.Random(0), 0, 0, 0, 0
    while done < kills:
        shutil.rmtree(folder / "out", ignore_errors=True)
        for _ in range(min(chance.randrange(1, 6), kills - done)):
            process = subprocess.Popen([sys.executable, "-c", program, "out"], cwd=folder)
            time.sleep(chance.uniform(0, whole))
            process.send_signal(signal.SIGKILL)
            done += process.wait() == -signal.SIGKILL
            if process.returncode == 0 or (folder / "out" / "manifest.json").exists():  # it was faster than the kill
                break
            partly += any((folder / "out").rglob("*.bin"))
        else:
            _run(folder, program, "out")
        finished += 1
        same += digest(folder / "out") == expected
    shutil.rmtree(folder / "undisturbed")
    assert same == finished, f"{name}: {finished - same} of {finished} results differ"
    return {"program": name, "kills": done, "with shards there": partly, "results": finished, "same bits": same}


def digest(folder: Path) -> str:
    """Return a digest of all files but those that tell of time: names and bytes."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(f"{path.relative_to(folder)}".encode() + path.read_bytes())
    return found.hexdigest()


def _run(folder: Path, program: str, name: str) -> None:
    subprocess.run([sys.executable, "-c", program, name], cwd=folder, check=True)


if __name__ == "__main__":
    main()
