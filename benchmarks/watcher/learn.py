"""Learn the watcher's decision tree: `python learn.py`; writes src/paceline/concurrency/watcher/tree.json.

It is fitted to footprints.json.gz: what the recordings of the families that are not held out came to.
`python learn.py FOLDER...` collects them anew from recordings, of each at most `MOST`, at equal distances.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from sklearn.tree import DecisionTreeClassifier
from traces import load

from paceline.concurrency.watcher.judge import Footprint

FOOTPRINTS = Path(__file__).parent / "footprints.json.gz"
TREE = Path(__file__).parents[2] / "src" / "paceline" / "concurrency" / "watcher" / "tree.json"
DEPTH, SMALLEST_LEAF, MOST = 5, 0.02, 12
#: What a program does in the end, and the footprints of one recording of it.
Recorded = tuple[str, list[Footprint]]


def collect(folders: list[Path]) -> dict[str, Recorded]:
    """Return the footprints of recordings of families that are not held out."""
    programs = [each for folder in folders for each in load(folder) if each.split in ("learned", "developed")]
    return {each.label: (each.verdict, thinned(list(each.footprints()))) for each in programs}


def thinned(rows: list[Footprint]) -> list[Footprint]:
    """Return at most `MOST` of some footprints, at equal distances."""
    step = max(len(rows) / MOST, 1)
    return [rows[int(number * step)] for number in range(min(len(rows), MOST))]


def learn(recorded: list[Recorded]) -> DecisionTreeClassifier:
    """Fit a small tree, in which every recording has the same weight."""
    rows = [(row, verdict, 1 / len(of)) for verdict, of in recorded for row in of]
    tree = DecisionTreeClassifier(max_depth=DEPTH, min_weight_fraction_leaf=SMALLEST_LEAF, random_state=0)
    return tree.fit([row for row, _, _ in rows], [v for _, v, _ in rows], sample_weight=[w for _, _, w in rows])


def export(tree: DecisionTreeClassifier) -> dict[str, Any]:
    """Return a tree as nested dictionaries; scikit-learn keeps shares of verdicts, the file numbers of recordings."""
    inner, verdicts = tree.tree_, [str(each) for each in tree.classes_]

    def node(number: int) -> dict[str, Any]:
        if inner.children_left[number] < 0:
            counts = inner.value[number][0] * inner.weighted_n_node_samples[number]
            return {"counts": {v: round(float(n), 1) for v, n in zip(verdicts, counts, strict=True) if n >= 0.05}}
        return {
            "feature": Footprint._fields[inner.feature[number]],
            "threshold": round(float(inner.threshold[number]), 6),
            "below": node(inner.children_left[number]),
            "above": node(inner.children_right[number]),
        }

    return {"root": node(0)}


def read() -> dict[str, Recorded]:
    """Return the collected footprints."""
    data = json.loads(gzip.decompress(FOOTPRINTS.read_bytes()))
    return {label: (verdict, [Footprint(*row) for row in rows]) for label, (verdict, rows) in data.items()}


def main() -> None:
    """Collect footprints if folders are given, and fit the tree."""
    if sys.argv[1:]:
        found = collect([Path(folder) for folder in sys.argv[1:]])
        data = {k: (v, [[float(f"{n:.4g}") for n in row] for row in rows]) for k, (v, rows) in found.items() if rows}
        FOOTPRINTS.write_bytes(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0))
    TREE.write_text(json.dumps(export(learn(list(read().values()))), indent=1) + "\n")


if __name__ == "__main__":
    main()
