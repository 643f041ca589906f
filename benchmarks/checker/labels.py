"""Fit how likely a finding is worth a look and how likely a bug, and measure both on packages that no fit has seen.

    python benchmarks/checker/labels.py [--write]

labels.tsv has findings in widely used packages, judged by reading the code around each: `bug`, `smell` (worth a look:
wrong in rare use, or easily made wrong) or `false`, with the reason and the features of the finding. It also has
findings that the fix of a bug took away (the development cases and the corpus' part `rules`), and every rule's own
example is taken for one more: they say something of their rule, but nothing of how often findings are true, since they
were not drawn from what the checker reports. So they have an intercept of their own, which no other finding has; and so
have findings whose file was not at hand when the signs around a finding were added.

What is worth a look is learned from these. What is a bug is learned from the bugs among them (a smell counts as none)
and from fixes.tsv, what the fixes of the corpus took away or left, again with an intercept of its own. A finding is
shown by the second, so the curve of bugs found against noise is measured with it.

Every tenth of the packages is predicted by a fit to the others. AUC: the chance that a finding worth a look gets a
higher probability than one that is not. Calibration error: the mean distance of predicted and observed share over
eight bins, by their size. `--write` fits everything and writes src/paceline/concurrency/check/ranking/weights.json.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression

from paceline.concurrency.check.engine import check_text
from paceline.concurrency.check.ranking import features, probability
from paceline.concurrency.check.rules import RULES
from paceline.concurrency.check.run import UNLIKELY

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
from corpus import judged as visible_fixes  # noqa: E402
from harness import write  # noqa: E402
from mine import split_of  # noqa: E402

BINS = 8
FOLDS = 10
FIXED = "its fix took the finding away"
CHOSEN = "chosen for being true"
UNKNOWN = "its signs are not known"
OF_CORPUS = "in a file with a fix"
SHRINKAGE = 0.3  # the variance of a weight before anything is known
NOISE = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
WEIGHTS = HERE.parents[1] / "src/paceline/concurrency/check/ranking/weights.json"

Row = dict[str, float]


def examples() -> list[Row]:
    """The features of what the rules report in their own examples."""
    found = [f for rule in RULES.values() for f in check_text("example.py", rule.bad)]
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


def fit(rows: Sequence[Row], truths: Sequence[bool]) -> Row:
    """The most probable weights, each with a normal prior around zero but for the intercept."""
    names = DictVectorizer()
    table = names.fit_transform([{n: v for n, v in row.items() if n != "always"} for row in rows])
    model = LogisticRegression(C=SHRINKAGE, max_iter=5000).fit(table, truths)
    return dict(zip(names.get_feature_names_out(), model.coef_[0], strict=True)) | {"always": model.intercept_[0]}


def of_fixes() -> list[dict[str, str]]:
    """What the fixes took away and left."""
    with (HERE / "fixes.tsv").open() as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def learnable(fixes: list[dict[str, str]]) -> list[tuple[Row, bool, str]]:
    """Features, whether a bug, and the project: what went at the change, and once each what was left."""
    chosen: dict[object, tuple[Row, bool, str]] = {}
    for row in fixes:
        gone = row["fate"] == "gone"
        if not gone or (row["near"], row["fits"]) == ("1", "1"):
            once = row["id"] if gone else ""
            key = (once, *(row[name] for name in ("project", "path", "rule", "function")))
            inputs = json.loads(row["features"]) | {"always": 1.0, OF_CORPUS: 1.0}
            chosen.setdefault(key, (inputs, gone, row["project"]))
    return list(chosen.values())


def curve(fixes: list[dict[str, str]], scores: list[float]) -> dict[str, object]:
    """Visible bugs found and won at the levels that leave so many findings in 1,000 lines of the fixed files."""
    visible = visible_fixes()
    lines: dict[str, int] = json.loads((HERE / "fixes.json").read_text())["of_fixes"]
    noise = sorted((s for s, row in zip(scores, fixes, strict=True) if row["fate"] == "left"), reverse=True)
    found: dict[str, object] = {"fixes": len(lines), "visible": sum(bool(visible.get(fix)) for fix in lines)}
    for most in NOISE:
        level = noise[min(len(noise) - 1, int(most * sum(lines.values()) / 1000))]
        found[f"noise {most}"] = {"level": round(level, 4), **at(level, fixes, scores, visible)}
    at_default = sum(score >= UNLIKELY for score in noise)
    noisy = round(1000 * at_default / sum(lines.values()), 2)
    found["the default level"] = {"level": UNLIKELY, "noise": noisy, **at(UNLIKELY, fixes, scores, visible)}
    return found


def at(level: float, fixes: list[dict[str, str]], scores: list[float], visible: dict[str, bool]) -> dict[str, int]:
    """How many visible bugs are found and won at a level."""
    shown = [row for row, score in zip(fixes, scores, strict=True) if score >= level and visible.get(row["id"])]
    hits = [row for row in shown if row["fits"] == "1" and (row["fate"] == "gone" or row["near"] == "1")]
    return {
        "found": len({row["id"] for row in hits}),
        "won": len({row["id"] for row in hits if row["fate"] == "gone"}),
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
    fixes = of_fixes()
    further = learnable(fixes)

    def worth_a_look(chosen: list[int]) -> Row:
        truths = [rows[i]["verdict"] != "false" for i in chosen]
        return fit([inputs[i] for i in chosen] + sure, truths + [True] * len(sure))

    def of_bugs(chosen: list[int], without: int = -1) -> Row:
        others = [(row, gone) for row, gone, project in further if fold_of(project) != without]
        truths = [rows[i]["verdict"] == "bug" for i in chosen] + [True] * len(sure) + [gone for _, gone in others]
        return fit([inputs[i] for i in chosen] + sure + [row for row, _ in others], truths)

    scores, bugs = [0.0] * len(rows), [0.0] * len(rows)
    of_fix = [0.0] * len(fixes)
    for number in range(FOLDS):
        here = [i for i, row in enumerate(rows) if fold_of(row["package"]) == number]
        outside = [i for i in range(len(rows)) if i not in set(here)]
        worth, bug = worth_a_look(outside), of_bugs(outside, number)
        for i in here:
            scores[i], bugs[i] = probability(worth, inputs[i]), probability(bug, inputs[i])
        for i, row in enumerate(fixes):
            if fold_of(row["project"]) == number:
                of_fix[i] = probability(bug, json.loads(row["features"]) | {"always": 1.0})
    last = [i for i, row in enumerate(rows) if split_of(row["package"]) == "last"]
    weights = worth_a_look([i for i in range(len(rows)) if i not in set(last)])
    held = [rows[i] for i in last]
    shown = [i for i in range(len(rows)) if bugs[i] >= UNLIKELY]
    figures = {
        "each tenth of the packages predicted by the others": judged(rows, scores),
        "last third, predicted by the other two": judged(held, [probability(weights, inputs[i]) for i in last]),
        "of those that are shown by default": judged([rows[i] for i in shown], [scores[i] for i in shown]),
        "bugs, above smells and false ones": auc([row["verdict"] == "bug" for row in rows], bugs),
        "fixes, each tenth of the projects predicted by the others": curve(fixes, of_fix),
    }
    write(figures, "labels.json")
    for name, found in figures.items():
        print(name, found)
    if given.write:
        everything = list(range(len(rows)))
        text = json.dumps(
            {
                "labels": len(rows),
                "fixes": len(further),
                "weights": shipped(worth_a_look(everything)),
                "bug": shipped(of_bugs(everything)),
            },
            indent=1,
        )
        WEIGHTS.write_text(text + "\n")


def shipped(weights: Row) -> Row:
    """The weights of what a finding may have, in the order of their names."""
    own = {CHOSEN, UNKNOWN, OF_CORPUS}
    own |= {name for name in weights if name.startswith("rule ") and name.removeprefix("rule ") not in RULES}
    return {name: round(float(value), 3) for name, value in sorted(weights.items()) if name not in own}


if __name__ == "__main__":
    main()
