"""Learn the watcher's decision tree from the families that are not held out; writes src/paceline/watcher/tree.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sklearn.tree import DecisionTreeClassifier
from traces import load

from paceline.watcher.footprint import Footprint

FILE = Path(__file__).parents[2] / "src" / "paceline" / "watcher" / "tree.json"
DEPTH, SMALLEST_LEAF = 5, 3


def learn() -> DecisionTreeClassifier:
    """Fit a small tree."""
    rows: list[Footprint] = []
    verdicts: list[str] = []
    for program in load():
        if not program.held_out:
            found = list(program.footprints())
            rows += found
            verdicts += [program.verdict] * len(found)
    tree = DecisionTreeClassifier(max_depth=DEPTH, min_samples_leaf=SMALLEST_LEAF, random_state=0)
    return tree.fit(rows, verdicts)


def export(tree: DecisionTreeClassifier) -> dict[str, Any]:
    """Return a tree as nested dictionaries; scikit-learn keeps shares of verdicts, the file counts."""
    inner, verdicts = tree.tree_, [str(each) for each in tree.classes_]

    def node(number: int) -> dict[str, Any]:
        if inner.children_left[number] < 0:
            counts = inner.value[number][0] * inner.n_node_samples[number]
            return {"counts": {v: round(float(n)) for v, n in zip(verdicts, counts, strict=True) if round(float(n))}}
        return {
            "feature": Footprint._fields[inner.feature[number]],
            "threshold": round(float(inner.threshold[number]), 6),
            "below": node(inner.children_left[number]),
            "above": node(inner.children_right[number]),
        }

    return node(0)


if __name__ == "__main__":
    FILE.write_text(json.dumps({"root": export(learn())}, indent=1) + "\n")
