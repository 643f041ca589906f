"""The threading programs of ESBMC's Python regression suite.

    python benchmarks/checker/esbmc.py FOLDER

FOLDER holds a directory per program with its `main.py` and `test.desc` (regression/python of github.com/esbmc/esbmc);
these are not in this repository. A deadlock is expected where the description asks for `--deadlock-check` and expects
`FAILED`, a race likewise with `--data-races-check`, or with a violated assertion on a shared counter; a program whose
verification succeeds is safe. What ESBMC itself does not support is only counted.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paceline.concurrency.check.engine import check_text
from paceline.concurrency.check.syntax.source import read

sys.path[:0] = [str(Path(__file__).parents[1])]
from harness import write  # noqa: E402


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    given = options.parse_args()
    counts = {"expected": 0, "found": 0, "safe": 0, "alarms": 0, "other": 0}
    for folder in sorted(given.folder.iterdir()):
        if not (folder / "main.py").is_file() or "Thread" not in (text := read(folder / "main.py")):
            continue
        description = (folder / "test.desc").read_text()
        found = check_text("main.py", text)
        failed = "VERIFICATION FAILED" in description
        deadlock = "Deadlocked state" in description
        race = "data race" in description or "race" in folder.name
        if failed and (deadlock or race):
            right = ("PC1",) if deadlock else ("PC4",)
            counts["expected"] += 1
            counts["found"] += any(f.rule.startswith(right) for f in found)
            print(f"{folder.name}: {'found' if found else 'MISSED'} {[f.rule for f in found]}")
        elif "VERIFICATION SUCCESSFUL" in description:
            counts["safe"] += 1
            counts["alarms"] += bool(found)
            if found:
                print(f"{folder.name}: ALARM {[(f.rule, f.line) for f in found]}")
        else:
            counts["other"] += 1
    print(counts)
    write(dict(counts), "esbmc.json")


if __name__ == "__main__":
    main()
