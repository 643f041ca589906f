"""Small programs with one concurrency bug each, and repaired: which tool finds the bug, and is silent in the twin?

    python benchmarks/concurrency/run.py [--part unseen] [--only process] [--seconds 10] [--twin-seconds 5]

    found   explore: a finding in the broken program.  Static tools: a finding that the repaired program does not have.
    false   explore: a finding in the repaired program.  Static tools: any finding of a concurrency rule in it.

Ranks are explored with `--ranks 2`. ruff takes part with its rules about asyncio, bugs and errors, and pylint with its
errors and warnings, where they are installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from paceline.concurrency.check.engine import check_text
from paceline.concurrency.explore.session import Session, Settings, Target

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from harness import corpus, write  # noqa: E402

STATIC = {
    "ruff": ["ruff", "check", "--isolated", "--output-format", "json", "--select", "ASYNC,RUF006,B,PLE,PLW,S"],
    "pylint": ["pylint", "--output-format", "json", "--disable", "C,R"],
}


PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


class Program(NamedTuple):
    """A program with its bug, and repaired: the texts of its files, of which `main.py` is run."""

    name: str
    wing: str  # threads, asyncio, processes, ranks, or mixed
    mechanism: str
    part: str
    broken: dict[str, str]
    repaired: dict[str, str]

    def write(self, side: str, folder: Path) -> Path:
        """Write one side into a folder of its own; return the file that is run."""
        folder.mkdir(parents=True)
        for name, text in getattr(self, side).items():
            (folder / name).write_text(text)
        return folder / "main.py"


def programs() -> Iterator[Program]:
    """Yield the programs of the data files."""
    for head, text in (corpus(HERE / "programs.txt") | corpus(HERE / "larger.txt")).items():
        sides: dict[str, dict[str, str]] = {"broken": {}, "repaired": {}}
        at, file = "both", "main.py"
        for line in text.splitlines():
            if line in ("<<<", "===", ">>>"):
                at = {"<<<": "broken", "===": "repaired", ">>>": "both"}[line]
            elif line.startswith("--- "):
                file = line.removeprefix("--- ")
            else:
                for side in sides if at == "both" else (at,):
                    sides[side][file] = sides[side].get(file, "") + f"{line}\n"
        yield Program(*head.split(), *sides.values())  # type: ignore[arg-type]


def explored(session: Session, file: Path, program: Program, seconds: float) -> tuple[bool, dict[str, Any]]:
    """Explore one side."""
    settings = Settings(seconds=seconds, first=True, ranks=2 if program.wing == "ranks" else 0)
    report = session.explore(Target(str(file)), settings).report
    return report["verdict"] == "found", report


def static(tool: str, folder: Path) -> set[str]:
    """Return the codes that a static tool reports."""
    if tool == "check":
        return {each.rule for file in folder.glob("*.py") for each in check_text(file.name, file.read_text())}
    done = subprocess.run(
        [*STATIC[tool], str(folder)], capture_output=True, text=True, check=False, env={**os.environ, "PATH": PATH}
    )
    return {str(each.get("code") or each.get("symbol")) for each in json.loads(done.stdout or "[]")}


def judge(
    program: Program, folder: Path, sessions: dict[bool, Session], seconds: tuple[float, float]
) -> dict[str, Any]:
    """Return what each tool says of a program."""
    broken, repaired = (program.write(side, folder / program.name / side) for side in ("broken", "repaired"))
    session, begin = sessions[program.wing == "ranks"], time.monotonic()
    found, report = explored(session, broken, program, seconds[0])
    row: dict[str, Any] = {**program._asdict(), "seconds": round(time.monotonic() - begin, 2)}
    del row["broken"], row["repaired"]
    false, twin = explored(session, repaired, program, seconds[1])
    kind = report["finding"]["kind"] if found else report["reason"]
    row |= {"explore": [found, false], "kind": kind, "schedules": report["schedules"], "twin": twin["verdict"]}
    row["false_kind"] = twin["finding"]["kind"] if false else twin["reason"]
    for tool in ("check", *(each for each in STATIC if shutil.which(each, path=PATH))):
        bad, good = static(tool, broken.parent), static(tool, repaired.parent)
        row[tool] = [bool(bad - good), bool(good) if tool == "check" else bool(good - bad)]
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return recall and false reports by part, wing and tool."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        for name in ("all", row["part"], f"{row['part']} {row['wing']}"):
            groups[name].append(row)
    tools = [each for each in ("explore", "check", *STATIC) if each in rows[0]]
    return {
        name: {
            "programs": len(group),
            **{
                tool: {"found": sum(r[tool][0] for r in group), "false": sum(r[tool][1] for r in group)}
                for tool in tools
            },
            "median seconds": statistics.median(row["seconds"] for row in group),
        }
        for name, group in sorted(groups.items())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--twin-seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    chosen = [each for each in programs() if arguments.part in each.part and arguments.only in each.name]
    rows = []
    with tempfile.TemporaryDirectory() as folder, Session() as threads, Session() as ranks:
        for program in chosen:
            limits = (arguments.seconds, arguments.twin_seconds)
            rows.append(judge(program, Path(folder), {False: threads, True: ranks}, limits))
            print(json.dumps(rows[-1]), flush=True)
    figures = {"summary": summary(rows), "programs": rows}
    print(json.dumps(figures["summary"], indent=1))
    if not arguments.part and not arguments.only:
        write(figures)


if __name__ == "__main__":
    main()
