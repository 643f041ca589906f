"""How many invented programs of several files the checker understands: each with its bug, and repaired.

    python benchmarks/checker/programs.py [--of mechanisms] [--part seen] [--verbose]

`##### name` begins a program of programs.txt, mechanisms.txt or forms.txt. Its first line names the families of rules
that count, `=== path` begins a file of it, and `<<<`, `===`, `>>>` enclose the lines that only one side has. The hash
of its name says to which part it belongs: by the misses in `seen` the analysis is extended; `aside` is run once at the
end.

    found   in the broken program, a finding of such a family whose line or story lies within NEAR lines of the bug
    won     and it is gone in the repaired program
    silent  nothing at all is reported in the repaired program
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from paceline.concurrency.check.options import Options
from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.run import check_paths

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]
from harness import corpus, write  # noqa: E402

NEAR = 10
PARTS = ("seen", "aside")


class Program(NamedTuple):
    """One side of a program: its files, and the lines at which it differs from the other side."""

    files: dict[str, str]
    places: dict[str, list[int]]


def part_of(name: str) -> str:
    """The part of the programs to which a name belongs."""
    return PARTS[hashlib.sha256(name.encode()).digest()[0] % 2]


def read(text: str) -> tuple[tuple[str, ...], Program, Program]:
    """The families that count, the broken and the repaired program."""
    head, *lines = text.splitlines()
    sides = Program({}, {}), Program({}, {})
    path, at = "", "both"
    for line in lines:
        if line.startswith("=== "):
            path = line[4:]
            for side in sides:
                side.files[path] = ""
        elif line in ("<<<", "===", ">>>"):
            at = {"<<<": "broken", "===": "repaired", ">>>": "both"}[line]
        else:
            for side, name in zip(sides, ("broken", "repaired"), strict=True):
                if at in ("both", name):
                    side.files[path] += line + "\n"
                if at != "both":
                    side.places.setdefault(path, []).append(side.files[path].count("\n"))
    return tuple(head.split()[1:]), *sides


def findings_of(program: Program) -> list[Finding]:
    """What the checker says of a program, checked as a project."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in program.files.items():
            file = Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        os.chdir(folder)
        found = check_paths([Path()], Options(cache=False)).findings
        os.chdir(HERE)
    return [place for finding in found for place in finding.places]


def is_near(finding: Finding, places: dict[str, list[int]]) -> bool:
    """Tell whether the finding or its story is at the bug."""
    lines = {finding.line, *(step.line for step in finding.story)}
    return any(abs(line - other) <= NEAR for line in lines for other in places.get(finding.path, ()))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--of", choices=("programs", "mechanisms", "forms"), default="programs")
    options.add_argument("--part", choices=(*PARTS, "all"), default="all")
    options.add_argument("--verbose", action="store_true")
    given = options.parse_args()
    figures = {part: dict.fromkeys(("programs", "found", "won", "silent"), 0) for part in PARTS}
    for program, text in corpus(HERE / f"{given.of}.txt").items():
        part = part_of(program)
        if given.part not in (part, "all"):
            continue
        families, broken, repaired = read(text)
        before, after = findings_of(broken), findings_of(repaired)
        hits = [f for f in before if f.rule.startswith(families) and is_near(f, broken.places)]
        left = {(f.path, f.rule, f.function, f.about) for f in after}
        gone = [f for f in hits if (f.path, f.rule, f.function, f.about) not in left]
        row = figures[part]
        for name, holds in (("programs", True), ("found", hits), ("won", gone), ("silent", not after)):
            row[name] += bool(holds)
        if given.verbose:
            print("won " if gone else "hit " if hits else "miss", program, *families)
            for side, findings in (("broken", before), ("repaired", after)):
                for f in findings:
                    print(f"       {side} {f.path}:{f.line} {f.rule} {f.message[:110]}")
    figures = {part: row for part, row in figures.items() if row["programs"]}
    if given.part == "all":
        write(figures, f"{given.of}.json")
    for part, row in figures.items():
        print(part, row)


if __name__ == "__main__":
    main()
