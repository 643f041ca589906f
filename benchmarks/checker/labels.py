"""Fit the probability that a finding is worth a look, and measure it on packages that the fit has not seen.

    python benchmarks/checker/labels.py [--write]

labels.tsv has findings in widely used packages, judged by reading the code around each: `bug`, `smell` (worth a look:
wrong in rare use, or easily made wrong) or `false`, with the reason and the features of the finding. It also has
findings that the fix of a bug took away (the development cases and the corpus' part `rules`), and every rule's own
example is taken for one more: they say something of their rule, but nothing of how often findings are true, since they
were not drawn from what the checker reports. So they have an intercept of their own, which no other finding has; and so
have findings whose file was not at hand when the signs around a finding were added.

Every tenth of the packages is predicted by a fit to the others. AUC: the chance that a finding worth a look gets a
higher probability than one that is not. Calibration error: the mean distance of predicted and observed share over
eight bins, by their size. `--write` fits all labels and writes src/paceline/check/ranking/weights.json.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

from paceline.check.engine import check_text
from paceline.check.ranking.ranker import features, fit, probability
from paceline.check.rules import RULES

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
from mine import split_of  # noqa: E402
from record import write  # noqa: E402

BINS = 8
FOLDS = 10
FIXED = "its fix took the finding away"
CHOSEN = "chosen for being true"
UNKNOWN = "its signs are not known"
WEIGHTS = HERE.parents[1] / "src/paceline/check/ranking/weights.json"

Row = dict[str, float]


def examples() -> list[Row]:
    """The features of what the rules report in their own examples."""
    found = [f for rule in RULES.values() for f in check_text("example.py", textwrap.dedent(rule.bad))]
    return [features(replace(finding, signs={})) | {CHOSEN: 1.0} for finding in found]


def fold_of(package: str) -> int:
    """The tenth that every finding of a package belongs to."""
    return int(hashlib.sha256(package.encode()).hexdigest(), 16) % FOLDS


def auc(worth: list[bool], scores: list[float]) -> float:
    """The chance that a true one is above a false one."""
    true = [s for s, w in zip(scores, worth, strict=True) if w]
    false = [s for s, w in zip(scores, worth, strict=True) if not w]
    wins = sum((t > f) + 0.5 * (t == f) for t in true for f in false)
    return round(wins / max(1, len(true) * len(false)), 3)


def calibration_error(worth: list[bool], scores: list[float]) -> float:
    """The expected calibration error."""
    error = 0.0
    for number in range(BINS):
        chosen = [i for i, s in enumerate(scores) if min(BINS - 1, int(s * BINS)) == number]
        error += abs(sum(scores[i] - worth[i] for i in chosen)) / len(scores)
    return round(error, 3)


def judged(rows: list[dict[str, str]], scores: list[float], threshold: float = 0.5) -> dict[str, object]:
    """How good these probabilities are for these labels, and what is shown above the threshold."""
    worth = [row["verdict"] != "false" for row in rows]
    shown = [row["verdict"] for row, score in zip(rows, scores, strict=True) if score >= threshold]
    return {
        "labels": len(rows),
        "packages": len({row["package"] for row in rows}),
        "bug_or_smell": round(sum(worth) / max(1, len(worth)), 3),
        "auc": auc(worth, scores),
        "calibration_error": calibration_error(worth, scores),
        "shown": len(shown),
        "bug_or_smell_of_shown": round(sum(v != "false" for v in shown) / max(1, len(shown)), 3),
        "bug_of_shown": round(sum(v == "bug" for v in shown) / max(1, len(shown)), 3),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", action="store_true", help="fit all labels and write the shipped weights")
    given = options.parse_args()
    with (HERE / "labels.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    sure = examples() + [json.loads(row["features"]) | {CHOSEN: 1.0} for row in rows if row["reason"] == FIXED]
    rows = [row for row in rows if row["reason"] != FIXED]
    inputs: list[Row] = [json.loads(row["features"]) for row in rows]
    worth = [row["verdict"] != "false" for row in rows]

    def fitted(chosen: list[int]) -> dict[str, float]:
        return fit([inputs[i] for i in chosen] + sure, [worth[i] for i in chosen] + [True] * len(sure), {})

    scores = [0.0] * len(rows)
    for number in range(FOLDS):
        here = [i for i, row in enumerate(rows) if fold_of(row["package"]) == number]
        weights = fitted([i for i in range(len(rows)) if i not in set(here)])
        for i in here:
            scores[i] = probability(weights, inputs[i])
    last = [i for i, row in enumerate(rows) if split_of(row["package"]) == "last"]
    weights = fitted([i for i in range(len(rows)) if i not in set(last)])
    held = [rows[i] for i in last]
    figures = {
        "each tenth of the packages predicted by the others": judged(rows, scores),
        "the same, by the rules' own confidence": judged(rows, [row["the rule's own confidence"] for row in inputs]),
        "last third, predicted by the other two": judged(held, [probability(weights, inputs[i]) for i in last]),
    }
    write(HERE, figures, "labels.json")
    for name, found in figures.items():
        print(name, found)
    if given.write:
        everything = fitted(list(range(len(rows))))
        rounded = {name: round(value, 3) for name, value in sorted(everything.items()) if name not in (CHOSEN, UNKNOWN)}
        text = json.dumps({"labels": len(rows), "weights": rounded}, indent=1)
        WEIGHTS.write_text(text + "\n")


if __name__ == "__main__":
    main()
