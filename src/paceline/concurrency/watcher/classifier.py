"""From a footprint to a verdict with a probability: the decision tree of tree.json. Pure."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from paceline.concurrency.watcher.footprint import Footprint

VERDICTS = ("busy", "waiting", "deadlocked", "livelocked", "starved", "stopped")


@cache
def _tree() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((Path(__file__).parent / "tree.json").read_text(encoding="utf-8"))
    return loaded


def probabilities(footprint: Footprint) -> dict[str, float]:
    """Return how probable each verdict is.

    They are the shares of the verdicts among the recorded footprints in the same leaf. One more footprint is counted,
    of which every verdict has an equal part, so that a leaf that few footprints reached is trusted less.
    """
    node = _tree()["root"]
    while "feature" in node:
        node = node["below" if getattr(footprint, node["feature"]) <= node["threshold"] else "above"]
    counts = node["counts"]
    total = sum(counts.values()) + 1
    return {verdict: (counts.get(verdict, 0) + 1 / len(VERDICTS)) / total for verdict in VERDICTS}
