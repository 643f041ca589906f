"""The promised bound on accuracy against test data, which no search sees: 4 networks x 5 seeds.

python benchmarks/compress/promise.py                       all twenty runs
python benchmarks/compress/promise.py digits --seeds 0,1    some of them; others in the result file are kept
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import read, write
from run import WITHIN, job_of

import paceline as pl
from paceline.compression.result import CONFIDENCE
from paceline.compression.samples import loss_between, score_of
from paceline.interfaces.api.compress import test_samples

NETWORKS = ("digits", "tabular", "mnist-dnn", "mnist-cnn")


def promised(name: str, seed: int) -> dict[str, Any]:
    """Train, compress within half a point, and look at the test data."""
    job = job_of(name, seed)
    run = pl.train(job, folder=None)
    found = pl.compress(run, within=WITHIN, seed=seed, widths=[1.0, 0.5, 0.3], epochs=4)
    row: dict[str, Any] = {"network": name, "seed": seed, "chosen": None}
    test = test_samples(job)
    if found.chosen is None or found.model is None or test is None:
        return row
    score = score_of(job.loss, test.y)
    lost = loss_between(score.each(run.model, test), score.each(found.model, test))
    row |= {
        "chosen": found.chosen.as_dict(), "trained_on_test": found.trained_on_test, "on_test": found.on_test,
        "test_samples": len(test), "lost": lost.points, "lost_error": lost.error, "excess": lost.points - WITHIN,
    }  # fmt: skip
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=NETWORKS)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    seeds = [int(seed) for seed in given.seeds.split(",")]
    rows = [
        row
        for row in read("promise.json").get("runs", [])
        if row["network"] not in given.names or row["seed"] not in seeds
    ]
    for name in given.names:
        for seed in seeds:
            row = promised(name, seed)
            rows.append(row)
            if row["chosen"] is None:
                print(f"{name:10} seed {seed}: nothing within the bound", flush=True)
                continue
            broken = "  BROKEN" if row["excess"] > 1e-9 else ""
            point = row["chosen"]
            print(
                f"{name:10} seed {seed}: width {point['width']:<4} {point['precision']:15} lost {row['lost']:+.2f} "
                f"(+- {row['lost_error']:.2f}) points on {row['test_samples']:,} test samples{broken}",
                flush=True,
            )
            made = [row for row in rows if row["chosen"] is not None]
            broken_runs = [row for row in made if row["excess"] > 1e-9]
            sure = [row for row in broken_runs if row["excess"] > 1.645 * row["lost_error"]]
            figures = {
                "within": WITHIN,
                "confidence": CONFIDENCE,
                "made": len(made),
                "broken": len(broken_runs),
                "broken_beyond_the_test_datas_error": len(sure),
                "runs": rows,
            }
            write(figures, "promise.json")


if __name__ == "__main__":
    main()
