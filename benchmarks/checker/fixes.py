"""What the fixes of the corpus took away and what they left: labels that cost no reading, to learn the order from.

    python benchmarks/checker/fixes.py CLONES          # writes fixes.tsv and fixes.json

The touched files of every fix are checked alone, before and after, with nothing hidden. A finding of a family that the
kind allows, at the change and gone after it, was a bug (`gone`, near); one that is still there after the fix is
`left`: a person who looked for a bug in this file did not take it for one. The table has identifiers and the features
of the finding, no code. `labels.py` learns from it and measures the curve of recall against noise.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from paceline.concurrency.check import run
from paceline.concurrency.check.options import Options
from paceline.concurrency.check.ranking import features
from paceline.concurrency.check.reporting.findings import Finding

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
from corpus import FAMILIES, NOT_RULES, identity, is_near, places_of, rows_of, write_out  # noqa: E402
from harness import write  # noqa: E402
from mine import git_directory  # noqa: E402

COLUMNS = ("id", "project", "path", "line", "rule", "function", "fits", "near", "fate", "features")
ALL = Options(cache=False, min_confidence=0.0, jobs=1)


def findings_in(root: Path, files: list[str]) -> list[tuple[Finding, dict[str, float]]]:
    """The findings of these files of a folder with the features that the models see, in the order of their places."""
    chosen = [root / file for file in files if (root / file).exists()]
    seen: dict[tuple[str, int, int, str], dict[str, float]] = {}
    weigh = run.weigh

    def remembered(found: list[Finding], *verdicts: object) -> None:
        seen.update({(f.path, f.line, f.column, f.rule): features(f) for f in found})
        weigh(found)

    run.weigh = remembered  # type: ignore[assignment]
    try:
        report = run.check_paths(chosen, ALL)
    finally:
        run.weigh = weigh
    found = [(f, seen[f.path, f.line, f.column, f.rule]) for f in report.findings if not f.rule.startswith(NOT_RULES)]
    for finding, _ in found:
        path = Path(finding.path).resolve().relative_to(root.resolve()).as_posix()
        for place in finding.places:
            place.path = path
    return found


def rows_of_fix(row: dict[str, str], directory: Path, space: Path) -> Iterator[dict[str, object]]:
    """The findings before a fix, and first the number of lines after it."""
    places = places_of(row["places"])
    files = sorted(places)
    for side in ("old", "fixed"):
        write_out(directory, row[side], set(files), space / side)
    texts = [space / "fixed" / file for file in files]
    yield {"lines": sum(text.read_bytes().count(b"\n") for text in texts if text.exists())}
    after = findings_in(space / "fixed", files)
    left = {identity(place) for finding, _ in after for place in finding.places}
    for finding, signs in findings_in(space / "old", files):
        gone = [place for place in finding.places if identity(place) not in left]
        near = any(is_near(place, places) for place in gone or finding.places)
        yield {
            "id": row["id"],
            "project": row["project"],
            "path": finding.path,
            "line": finding.line,
            "rule": finding.rule,
            "function": finding.function,
            "fits": int(finding.rule.startswith(FAMILIES.get(row["kind"], ("PC",)))),
            "near": int(near),
            "fate": "gone" if gone else "left",
            "features": json.dumps({name: round(value, 3) for name, value in signs.items() if name != "always"}),
        }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("clones", type=Path)
    clones = options.parse_args().clones.resolve()
    lines: dict[str, int] = {}
    with (HERE / "fixes.tsv").open("w") as file:
        table = csv.DictWriter(
            file, COLUMNS, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n"
        )
        table.writeheader()
        for row in rows_of("all"):
            directory = git_directory(clones / row["project"].replace("/", "+", 1))
            if directory is not None:
                with tempfile.TemporaryDirectory() as space:
                    first, *found = rows_of_fix(row, directory, Path(space))
                lines[row["id"]] = int(str(first["lines"]))
                table.writerows(found)
    write({"fixes": len(lines), "lines": sum(lines.values()), "of_fixes": lines}, "fixes.json")


if __name__ == "__main__":
    main()
