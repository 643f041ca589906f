"""How many real bugs the checker finds, how many of the found are gone in the repaired file, and how much else it says.

    python benchmarks/checker/run.py CASES.tsv FOLDER

The table names, per case, the kind of bug, whether it is visible in one file, the lines of the buggy file. The folder
holds `<id>/buggy.py` and `<id>/fixed.py`; these files belong to other projects and are not in this repository.

A case is *found* when a finding of the buggy file lies within ten lines of a labelled or changed line (its own line,
or a line of its story), and its rule is of a family that the kind of bug allows. A pair is *won* when such a finding
is gone in the fixed file: no finding of the same rule in the same function about the same thing is left.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import re
import sys
from collections import defaultdict
from pathlib import Path

from paceline.concurrency.check.engine import check_text
from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.syntax.source import read

sys.path[:0] = [str(Path(__file__).parents[1])]
from harness import write  # noqa: E402

NEAR = 10
STRICTLY = 3
FAMILIES = {
    "LOCK": ("PC1",),
    "SELF": ("PC1",),
    "GC": ("PC1",),
    "SIGNAL": ("PC1",),
    "FORK": ("PC1",),
    "QUEUE": ("PC2",),
    "PIPE": ("PC2",),
    "LOST": ("PC2",),
    "WAIT": ("PC2",),
    "POOL": ("PC2",),
    "ASYNC": ("PC3", "PC1"),
    "CHECK": ("PC4",),
    "UNSYNC": ("PC4",),
    "FS": ("PC4",),
    "LAZY": ("PC4",),
    "COLL": ("PC5",),
    "SEND": ("PC5",),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("table", type=Path)
    options.add_argument("folder", type=Path)
    options.add_argument("--verbose", action="store_true")
    given = options.parse_args()
    with given.table.open() as file:
        cases = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    by_kind: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    found = won = strictly = visible = 0
    lines = noise = 0
    noisy: dict[str, int] = defaultdict(int)
    for case in cases:
        buggy, fixed = (read(given.folder / case["id"] / f"{name}.py") for name in ("buggy", "fixed"))
        before, after = check_text("x.py", buggy), check_text("x.py", fixed)
        wanted = labelled(case["lines"]) | changed(buggy, fixed)
        hits = [f for f in before if f.rule.startswith(families(case["kind"])) and is_near(f, wanted)]
        left = {(f.rule, f.function, f.about) for f in after}
        gone = [f for f in hits if (f.rule, f.function, f.about) not in left]
        lines += fixed.count("\n")
        noise += len(after)
        for finding in after:
            noisy[finding.rule] += 1
        if case["visible"].startswith("Y"):
            visible += 1
            found += bool(hits)
            won += bool(gone)
            exact = [f for f in gone if any(abs(f.line - line) <= STRICTLY for line in labelled(case["lines"]))]
            strictly += bool(exact)
            row = by_kind[case["kind"]]
            row[0], row[1], row[2] = row[0] + 1, row[1] + bool(hits), row[2] + bool(gone)
        if given.verbose:
            state = "won " if gone else "hit " if hits else "    "
            print(
                f"{case['id']:>3} {case['visible'][:1]} {state} {case['kind']:<16} {case['repository']} "
                f"{case['lines'][:40]}"
            )
            for f in before:
                print(f"        {'*' if f in hits else ' '} {f.rule} {f.line} {f.function}: {f.message[:110]}")
    for kind, (total, hit, clean) in sorted(by_kind.items()):
        print(f"{kind:<18} {hit}/{total} found, {clean}/{total} won")
    figures = {
        "cases": len(cases),
        "visible_in_one_file": visible,
        "found": found,
        "recall": round(found / visible, 3),
        "won": won,
        "pairs_won": round(won / visible, 3),
        "won_with_its_own_line_at_a_labelled_one": strictly,
        "fixed_lines": lines,
        "findings_in_fixed_files": noise,
        "per_1000_lines": round(1000 * noise / lines, 2),
        "by_rule": dict(sorted(noisy.items())),
        "by_kind (cases, found, won)": dict(sorted(by_kind.items())),
    }
    write(figures)
    print(
        f"visible in one file: {found}/{visible} found ({found / visible:.2f}), {won}/{visible} won "
        f"({won / visible:.2f}), {strictly} of these with the finding's own line within {STRICTLY} of a labelled one"
    )
    print(f"fixed files: {noise} findings in {lines} lines ({1000 * noise / lines:.2f} per 1,000): {dict(noisy)}")


def families(kind: str) -> tuple[str, ...]:
    return FAMILIES[kind.partition("-")[0]]


def labelled(text: str) -> set[int]:
    """`142-168,235,44+ (+3 hunks)` as numbers."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text.partition("(")[0]):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def changed(buggy: str, fixed: str) -> set[int]:
    matcher = difflib.SequenceMatcher(None, buggy.splitlines(), fixed.splitlines(), autojunk=False)
    found: set[int] = set()
    for tag, first, last, _, _ in matcher.get_opcodes():
        if tag != "equal":
            found |= set(range(first + 1, max(last, first + 1) + 1))
    return found


def is_near(finding: Finding, wanted: set[int]) -> bool:
    lines = {finding.line, *(step.line for step in finding.story)}
    return any(abs(line - other) <= NEAR for line in lines for other in wanted)


if __name__ == "__main__":
    main()
