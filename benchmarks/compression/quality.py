"""What codecs cost in accuracy: `python benchmarks/compression/quality.py --seeds 5 --updates 600`

Four workers under `ring` on the virtual engine, whose arithmetic is that of processes bit for bit; mnist-dnn with its
own learning rate, no warm-up. Each codec is compared with dense seed by seed. Results are written to quality.json as
they come; with --first further seeds are added to those that are there.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

import paceline
from paceline.core.codecs.one_bit import OneBit
from paceline.jobs.built_ins import built_in
from paceline.plans.plan import Plan

HERE = Path(__file__).parent
CODECS = (
    "dense", "half", "bfloat16", "int8", "qsgd:4", "qsgd:2", "ternary", "onebit", "onebit without feedback",
    "threshold:0.001", "threshold:0.01", "topk:0.01", "topk:0.001", "randomk:0.05", "powersgd:2", "powersgd:1",
)  # fmt: skip
#: Two-sided 95% quantiles of Student's t, by degrees of freedom.
T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


@dataclass(frozen=True)
class Forgetful(OneBit):
    """One bit without error feedback, for the paper's claim that it needs it."""

    feedback: ClassVar = False


def plan_of(codec: str) -> Plan:
    if codec == "onebit without feedback":
        return replace(Plan.parse("ring:workers=4"), codec=Forgetful())
    return Plan.parse(f"ring:workers=4,codec={codec}")


def trained(codec: str, seed: int, updates: int) -> tuple[float, float]:
    """Return the test accuracy, and the bytes that a worker sends in an update."""
    job = built_in("mnist-dnn").with_(seed=seed, evaluate_every=None)
    run = paceline.train(job, plan_of(codec), engine="virtual", folder=None, max_updates=updates)
    summary = run.summary()
    return summary["test_accuracy"], summary["bytes_sent"] / updates / 4


def table(found: dict[str, list[tuple[float, float]]]) -> str:
    """Return the rows of the README's table."""
    lines = ["| codec | bytes an update | accuracy | against dense, seed by seed (95%) |", "|---|---|---|---|"]
    dense = [accuracy for accuracy, _ in found["dense"]]
    for codec, runs in found.items():
        gaps = [100 * (accuracy - other) for (accuracy, _), other in zip(runs, dense, strict=False)]
        wide = T.get(len(gaps) - 1, 2.2) * statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
        mean = statistics.mean(accuracy for accuracy, _ in runs)
        said = "" if codec == "dense" else f"{statistics.mean(gaps):+.2f} ± {wide:.2f} points"
        lines.append(f"| `{codec}` | {runs[0][1]:,.0f} | {mean:.2%} | {said} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--updates", type=int, default=600)
    given = parser.parse_args()
    torch.set_num_threads(1)
    file = HERE / "quality.json"
    found: dict[str, list[tuple[float, float]]] = json.loads(file.read_text()) if file.exists() else {}
    for seed in range(given.first, given.first + given.seeds):
        for codec in CODECS:
            found.setdefault(codec, []).append(trained(codec, seed, given.updates))
            file.write_text(json.dumps(found))
    print(table(found))


if __name__ == "__main__":
    main()
