"""Hold out one family at a time: how recall falls, and how well the probability is calibrated; writes families.json.

`python families.py [FOLDER]` fits the tree to all recordings of a folder but those of one family, and judges that
family with it. The shipped tree does not change. Without a folder it takes the traces that the tests replay.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from learn import DEPTH, SMALLEST_LEAF, export
from sklearn.tree import DecisionTreeClassifier
from traces import TRACES, Program, load

from paceline.watcher import classifier
from paceline.watcher.footprint import Footprint

RESULT = Path(__file__).parent / "families.json"
BINS = 5
#: With which probability a hang is claimed of a footprint, and whether the program hangs.
Claim = tuple[float, bool]


def fitted(rows: list[tuple[Footprint, str]]) -> dict[str, Any]:
    """Return a tree, as the watcher reads it, of footprints and verdicts."""
    tree = DecisionTreeClassifier(max_depth=DEPTH, min_samples_leaf=SMALLEST_LEAF, random_state=0)
    return {"root": export(tree.fit([row for row, _ in rows], [verdict for _, verdict in rows]))}


def judged(programs: list[Program], footprints: dict[str, list[Footprint]]) -> tuple[int, list[Claim]]:
    """Return how many programs are reported, and what is claimed of each of their footprints, by the present tree."""
    claims = []
    for program in programs:
        for each in footprints[program.label]:
            scores = classifier.probabilities(each)
            claims.append((scores["deadlocked"] + scores["stopped"], program.hangs))
    return sum(bool(program.trace.judge()) for program in programs), claims


def calibration(claims: list[Claim]) -> dict[str, Any]:
    """Return the Brier score, the expected calibration error, and of each bin the mean claim and the share of hangs."""
    bins = [[c for c in claims if min(int(c[0] * BINS), BINS - 1) == number] for number in range(BINS)]
    rows = [
        {"footprints": len(b), "claimed": sum(p for p, _ in b) / len(b), "hang": sum(true for _, true in b) / len(b)}
        for b in bins
        if b
    ]
    return {
        "brier": round(sum((p - true) ** 2 for p, true in claims) / len(claims), 4),
        "expected error": round(sum(r["footprints"] * abs(r["claimed"] - r["hang"]) for r in rows) / len(claims), 4),
        "bins": [{name: round(value, 3) for name, value in row.items()} for row in rows],
    }


def main() -> None:
    """Print and write the table."""
    programs = load(Path(sys.argv[1]) if sys.argv[1:] else TRACES)
    footprints = {program.label: list(program.footprints()) for program in programs}
    families: dict[str, Any] = {}
    claims: list[Claim] = []
    for family in sorted({program.family for program in programs}):
        rows = [(each, p.verdict) for p in programs if p.family != family for each in footprints[p.label]]
        own = [program for program in programs if program.family == family]
        with_it, _ = judged(own, footprints)
        with patch.object(classifier, "_tree", partial(dict, fitted(rows))):
            without, found = judged(own, footprints)
        claims += found
        kind = "hang" if own[0].hangs else "do not hang"
        families[family] = {"kind": kind, "recordings": len(own), "shipped tree": with_it, "held out": without}
        sys.stdout.write(f"{family:16} {kind:12} {len(own):3} recordings, reported {with_it}, held out {without}\n")
    total = {
        kind: {
            key: sum(f[key] for f in families.values() if f["kind"] == kind)
            for key in ("recordings", "shipped tree", "held out")
        }
        for kind in ("hang", "do not hang")
    }
    told = {"total": total, "calibration of held-out families": calibration(claims), "families": families}
    RESULT.write_text(json.dumps(told, indent=1) + "\n")
    sys.stdout.write(json.dumps({key: told[key] for key in list(told)[:2]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
