"""What other linters say of the same programs: ruff, flake8-async and pylint beside `paceline check`.

    python benchmarks/checker/others.py TOOLS [CLONES] [--split choose]

TOOLS is the folder with the commands `ruff`, `flake8` (with flake8-async) and `pylint`. Every tool runs with all its
rules about threads, processes and asyncio, and no others. The programs are the textbook programs
(tests/concurrency/check/textbook)
and, with CLONES, the fixes of a part of the corpus: the package around the touched files before and after (corpus.py).

    found    a diagnostic of the broken program; of a fix, within ten lines of the change in a touched file
    silent   no diagnostic of the repaired program
    won      found and silent; of a fix, fewer of those diagnostics after it
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE), str(HERE.parents[1])]
from corpus import NEAR, judged, package_of, places_of, rows_of, write_out  # noqa: E402
from harness import write  # noqa: E402
from mine import git_directory  # noqa: E402
from tests.concurrency.check.test_textbook import shapes  # noqa: E402

RUFF = "ASYNC,RUF006,RUF064,PLW1509,PLW2101"
PYLINT = "useless-with-lock,bad-thread-instantiation,subprocess-popen-preexec-fn,not-async-context-manager"


class Diagnostic(NamedTuple):
    path: str
    line: int
    code: str


Tool = Callable[[Path], list[Diagnostic]]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("tools", type=Path)
    options.add_argument("clones", type=Path, nargs="?")
    options.add_argument("--split", default="choose", choices=("rules", "choose", "last", "fresh"))
    given = options.parse_args()
    tools = tools_in(given.tools)
    figures: dict[str, object] = {
        "versions": {
            name: said(given.tools / name, "--version").splitlines()[0] for name in ("ruff", "flake8", "pylint")
        },
        "textbook": textbook(tools),
    }
    if given.clones is not None:
        figures[f"fixes of {given.split}"] = fixes(tools, given.clones.resolve(), given.split)
    print(json.dumps(figures, indent=1))
    write(figures, "others.json")


def tools_in(folder: Path) -> dict[str, Tool]:
    def ruff(root: Path) -> list[Diagnostic]:
        chosen = ("--isolated", "--preview", "--no-cache", "--select", RUFF, "--output-format", "json", ".")
        rows = json.loads(said(folder / "ruff", "check", *chosen, root=root) or "[]")
        return [Diagnostic(_inside(r["filename"], root), r["location"]["row"], r["code"] or "") for r in rows]

    def flake8_async(root: Path) -> list[Diagnostic]:
        lines = said(folder / "flake8", "--isolated", "--select", "ASYNC", ".", root=root).splitlines()
        rows = [found for line in lines if (found := re.match(r"(.+?):(\d+):\d+: (ASYNC\d+)", line))]
        return [Diagnostic(_inside(r[1], root), int(r[2]), r[3]) for r in rows]

    def pylint(root: Path) -> list[Diagnostic]:
        files = [str(file) for file in sorted(root.rglob("*.py"))]
        chosen = ("--rcfile=/dev/null", "--disable=all", f"--enable={PYLINT}", "-f", "json", *files)
        rows = json.loads(said(folder / "pylint", *chosen, root=root) or "[]")
        return [Diagnostic(_inside(r["path"], root), r["line"], r["message-id"]) for r in rows]

    def paceline(root: Path) -> list[Diagnostic]:
        rows = json.loads(said(Path(sys.executable), "-m", "paceline", "check", "--no-cache", "--json", ".", root=root))
        return [
            Diagnostic(r["path"], r["line"], r["rule"]) for r in rows["findings"] if not r["rule"].startswith("PC0")
        ]

    return {"ruff": ruff, "flake8-async": flake8_async, "pylint": pylint, "paceline check": paceline}


def said(command: Path, *words: str, root: Path | None = None) -> str:
    """What a command prints; a linter that found something does not exit with 0."""
    return subprocess.run([command, *words], cwd=root, capture_output=True, text=True, check=False).stdout


def _inside(path: str, root: Path) -> str:
    at = root / path
    return at.resolve().relative_to(root.resolve()).as_posix()


def textbook(tools: dict[str, Tool]) -> dict[str, dict[str, dict[str, int]]]:
    """By tool and mistake: how many of its shapes are found, silent when repaired, and won."""
    programs = list(shapes())
    figures: dict[str, dict[str, dict[str, int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (_, _, broken, repaired) in enumerate(programs):
            for name, text in (("broken", broken), ("repaired", repaired)):
                program = Path(folder, f"{name}_{number}.py")
                program.write_text(text)
        for tool, find in tools.items():
            named = {diagnostic.path for diagnostic in find(Path(folder))}
            counts: dict[str, Counter[str]] = {"all": Counter()}
            for number, (name, _, _, _) in enumerate(programs):
                found, silent = f"broken_{number}.py" in named, f"repaired_{number}.py" not in named
                for kind in (name.partition(" ")[0], "all"):
                    counts.setdefault(kind, Counter()).update(
                        shapes=1, found=found, silent=silent, won=found and silent
                    )
            figures[tool] = {kind: dict(count) for kind, count in sorted(counts.items())}
    return figures


def fixes(tools: dict[str, Tool], clones: Path, split: str) -> dict[str, dict[str, int]]:
    """By tool: how many fixes are found and won, of all and of those whose bug the source shows."""
    visible, counts = judged(), {tool: Counter[str]() for tool in tools}
    with tempfile.TemporaryDirectory() as folder:
        rows = list(written_out(clones, split, Path(folder)))
        for tool, find in tools.items():
            said_of: dict[str, list[Diagnostic]] = defaultdict(list)
            for diagnostic in find(Path(folder)):
                side, _, path = diagnostic.path.partition("/")
                said_of[side].append(diagnostic._replace(path=path))
            for row in rows:
                places = places_of(row["places"])
                old, new = ([d for d in said_of[f"{s}_{row['id']}"] if d.path in places] for s in ("old", "fixed"))
                near = {d.code for d in old if any(abs(d.line - line) <= NEAR for line in places[d.path])}
                before, left = Counter(d.code for d in old), Counter(d.code for d in new)
                won = any(left[code] < before[code] for code in near)
                counts[tool].update(fixes=1, found=bool(near), won=won, diagnostics_after=len(new))
                if visible.get(row["id"]):
                    counts[tool].update(visible=1, visible_found=bool(near), visible_won=won)
    return {tool: dict(count) for tool, count in counts.items()}


def written_out(clones: Path, split: str, into: Path) -> Iterator[dict[str, str]]:
    """Write the packages of the fixes whose project is among the clones, each before and after its fix."""
    for row in rows_of(split):
        directory = git_directory(clones / row["project"].replace("/", "+", 1))
        if directory is not None:
            parts = {package_of(directory, row["old"], file, 12) for file in places_of(row["places"])}
            for side in ("old", "fixed"):
                write_out(directory, row[side], parts, into / f"{side}_{row['id']}")
            yield row


if __name__ == "__main__":
    main()
