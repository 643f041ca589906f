"""How many fixes of the corpus the checker would have asked for, by part of the corpus and by kind.

    python benchmarks/checker/corpus.py CLONES [--split rules] [--around 60] [--verbose]

CLONES is the folder that `mine.py` read. For every fix, the package around the touched files is written out as it was
before and after, both are checked as projects, and the findings in the touched files are counted:

    found   a finding before the fix whose own line, or a line of its story, lies within NEAR lines of the change, and
            whose rule is of a family that the kind allows; or one anywhere in a touched file that the fix removed
    won     such a finding is gone after the fix: none of the same rule in the same function about the same thing
    noise   the findings after the fix in the touched files, per 1,000 of their lines

`corpus_visible.tsv` says of the judged fixes whether the source shows the bug at all; those are counted apart.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from paceline.concurrency.check.options import Options
from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.run import check_paths

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
from harness import write  # noqa: E402
from mine import git_directory  # noqa: E402

NEAR = 10
PARTS = (
    "rules",
    "choose",
    "last",
    *(f"fresh{n}" for n in ("", *range(2, 12))),
    *(f"fresh{n}_read" for n in "789"),
    "all",
)
FAMILIES = {
    "collective": ("PC5",),
    "deadlock": ("PC1", "PC2", "PC3", "PC5"),
    "hang": ("PC1", "PC2", "PC3", "PC5"),
    "race": ("PC1", "PC2", "PC3", "PC4"),
    "thread-safety": ("PC1", "PC2", "PC3", "PC4"),
}
NOT_RULES = ("PC0",)  # what could not be read, and comments that suppress nothing


@dataclass
class Tally:
    """The counts of some pairs."""

    pairs: int = 0
    found: int = 0
    won: int = 0
    visible: int = 0
    visible_found: int = 0
    visible_won: int = 0
    noise: int = 0
    lines: int = 0
    rules: Counter[str] = field(default_factory=Counter)

    def add(self, visible: bool | None, hits: list[Finding], gone: list[Finding], after: list[Finding]) -> None:
        """Count one pair."""
        self.pairs += 1
        self.found += bool(hits)
        self.won += bool(gone)
        self.visible += bool(visible)
        self.visible_found += bool(visible and hits)
        self.visible_won += bool(visible and gone)
        self.noise += len(after)
        self.rules.update(finding.rule for finding in gone[:1])

    def figures(self) -> dict[str, object]:
        """The counts and the rates that follow from them."""
        found: dict[str, object] = {
            "pairs": self.pairs,
            "found": self.found,
            "won": self.won,
            "recall": share(self.found, self.pairs),
            "pairs_won": share(self.won, self.pairs),
            "noise_per_1000_fixed_lines": round(1000 * self.noise / max(1, self.lines), 2),
            "fixed_lines": self.lines,
            "won_by_rule": dict(self.rules.most_common()),
        }
        if self.visible:
            found["visible"] = self.visible
            found["recall_of_visible"] = share(self.visible_found, self.visible)
            found["pairs_won_of_visible"] = share(self.visible_won, self.visible)
        return found


def share(part: int, whole: int) -> float:
    """A rate with three digits."""
    return round(part / max(1, whole), 3)


def git(directory: Path, *arguments: str) -> bytes:
    """What git prints."""
    return subprocess.run(["git", f"--git-dir={directory}", *arguments], capture_output=True, check=True).stdout


def package_of(directory: Path, commit: str, file: str, around: int) -> str:
    """The largest package around a file with at most so many modules, or the file itself."""
    chosen = file
    at = PurePosixPath(file).parent
    while at.name:
        listed = git(directory, "ls-tree", "-r", "--name-only", commit, f"{at}/").decode().splitlines()
        modules = [name for name in listed if name.endswith(".py")]
        if f"{at}/__init__.py" not in modules or len(modules) > around:
            break
        chosen = str(at)
        at = at.parent
    return chosen


def write_out(directory: Path, commit: str, parts: set[str], into: Path) -> None:
    """Write the Python files of these folders and files as they were at a commit."""
    packed = subprocess.run(
        ["git", f"--git-dir={directory}", "archive", commit, *sorted(parts)], capture_output=True, check=False
    )
    if packed.returncode:
        return
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        members = [m for m in archive.getmembers() if m.isfile() and m.name.endswith(".py")]
        archive.extractall(into, members, filter="data")


def places_of(text: str) -> dict[str, set[int]]:
    """`a.py:3-4,9-9;b.py:1-2` as lines by file."""
    found: dict[str, set[int]] = {}
    for part in text.split(";"):
        file, _, ranges = part.rpartition(":")
        for first, last in re.findall(r"(\d+)-(\d+)", ranges):
            found.setdefault(file, set()).update(range(int(first), int(last) + 1))
    return found


def findings_in(root: Path, files: set[str], options: Options) -> list[Finding]:
    """The findings of a written-out project in the touched files."""
    report = check_paths([root], options)
    below = [(finding, Path(finding.path).resolve()) for finding in report.findings]
    chosen = [(f, p.relative_to(root.resolve()).as_posix()) for f, p in below if not f.rule.startswith(NOT_RULES)]
    for finding, path in chosen:
        for place in finding.places:
            place.path = path
    return [finding for finding, path in chosen if path in files]


def identity(finding: Finding) -> tuple[str, str, str, str]:
    """What stays the same of a finding when lines move."""
    return finding.path, finding.rule, finding.function, finding.about


def is_near(finding: Finding, places: dict[str, set[int]]) -> bool:
    """Tell whether the finding or its story is at the change."""
    lines = {finding.line, *(step.line for step in finding.story)}
    return any(abs(line - other) <= NEAR for line in lines for other in places.get(finding.path, ()))


def judged() -> dict[str, bool]:
    """Which fixes are of a bug that the source shows, where somebody judged it from message and diff."""
    file = HERE / "corpus_visible.tsv"
    if not file.exists():
        return {}
    with file.open() as rows:
        return {row["id"]: row["visible"] == "yes" for row in csv.DictReader(rows, delimiter="\t")}


def rows_of(split: str) -> Iterator[dict[str, str]]:
    """The pairs of one part, or of all."""
    with (HERE / "corpus.tsv").open() as rows:
        yield from (row for row in csv.DictReader(rows, delimiter="\t") if split in ("all", row["split"]))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("clones", type=Path)
    options.add_argument("--split", default="rules", choices=PARTS)
    options.add_argument("--around", type=int, default=60, help="the most modules of a package that are checked along")
    options.add_argument("--min-confidence", type=float, default=Options().min_confidence)
    options.add_argument("--verbose", action="store_true")
    given = options.parse_args()
    clones = given.clones.resolve()
    visible = judged()
    total: dict[str, Tally] = {}
    settings = Options(cache=False, min_confidence=given.min_confidence)
    with tempfile.TemporaryDirectory() as space:
        for row in rows_of(given.split):
            directory = git_directory(clones / row["project"].replace("/", "+", 1))
            if directory is None:
                print(f"{row['project']} is not among the clones", file=sys.stderr)
                continue
            places = places_of(row["places"])
            parts = {package_of(directory, row["old"], file, given.around) for file in places}
            sides: list[list[Finding]] = []
            for side in ("old", "fixed"):
                with tempfile.TemporaryDirectory(dir=space) as root:
                    write_out(directory, row[side], parts, Path(root))
                    sides.append(findings_in(Path(root), set(places), settings))
                    texts = [Path(root, file) for file in places]
                    lines = sum(text.read_bytes().count(b"\n") for text in texts if text.exists())
            before = [place for finding in sides[0] for place in finding.places]
            after = sides[1]
            left = {identity(place) for finding in after for place in finding.places}
            families = FAMILIES.get(row["kind"], ("PC",))
            vanished = [f for f in before if identity(f) not in left and f.rule.startswith(families)]
            hits = [f for f in before if f.rule.startswith(families) and is_near(f, places)]
            hits += [f for f in vanished if f not in hits]
            for name in (row["split"], f"{row['split']}: {row['kind']}"):
                tally = total.setdefault(name, Tally())
                tally.add(visible.get(row["id"]), hits, vanished, after)
                tally.lines += lines
            if given.verbose:
                state = "won" if vanished else "hit" if hits else "-"
                shown = ", ".join(f"{f.rule}@{f.path}:{f.line}" for f in hits[:4])
                print(row["id"], row["split"], state, row["kind"], row["project"], shown, sep="\t", flush=True)
    figures = {name: tally.figures() for name, tally in sorted(total.items())}
    write(figures, f"corpus-{given.split}.json")
    for name, found in figures.items():
        print(name, {key: value for key, value in found.items() if key != "won_by_rule"})


if __name__ == "__main__":
    main()
