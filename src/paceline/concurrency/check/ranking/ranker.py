"""How likely a finding is worth a look, and how likely a bug: logistic models of features of the finding and its file.

The weights in weights.json were fitted to findings in widely used packages that were judged by reading, those of bugs
also to what fixes took away and left in public projects (benchmarks/checker/labels.py). A user's own verdicts move
them: the fit is the most probable model when every weight has a normal prior around its shipped value, so that a few
verdicts move it a little and many decide.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from paceline.concurrency.check.reporting.findings import Finding

#: The precision of the prior: one over the variance of a weight around its prior value.
PRECISION = 0.5
ROUNDS, RATE = 400, 0.5
#: Folders and files of a project that its users do not run as a part of their programs.
EXAMPLES = re.compile(r"(examples?|demos?|docs?|bench(marks?)?|scripts?|tools?|samples?|setup\.py)")

Features = Mapping[str, float]
Weights = Mapping[str, float]


def features(finding: Finding) -> dict[str, float]:
    """The inputs of the model by name, each of the order of one; what is absent is zero."""
    lines = [finding.line, *(step.line for step in finding.story)]
    parts = _below_here(finding.path).lower().split("/")
    tested = float(any(part.startswith(("test", "conftest")) or part.endswith("_test.py") for part in parts))
    values = {
        "always": 1.0,
        f"rule {finding.rule}": 1.0,
        f"family {finding.rule[:3]}": 1.0,
        # a rule's forms differ by its confidence
        f"form {finding.rule} {round(20 * finding.confidence) / 20:.2f}": 1.0,
        "the rule's own confidence": finding.confidence,
        "steps": len(finding.story) / 4,
        "calls on the way": float(sum(" calls " in step.what for step in finding.story)),
        "distance of the lines": math.log1p(max(lines) - min(lines)) / 4,
        "a circle of waits": float(bool(finding.waits)),
        "a private function": float(finding.function.rpartition(".")[2].startswith("_")),
        "module level": float(finding.function == "<module>"),
        "only on an exception": float("exception" in finding.message),
        "in an example": float(any(EXAMPLES.fullmatch(part) for part in parts)),
        "in tests": tested,
        f"family {finding.rule[:3]} in tests": tested,
    }
    return {name: value for name, value in (values | finding.signs).items() if value}


def _below_here(path: str) -> str:
    """A path as seen from the current folder: the name of a folder around the project says nothing of its files."""
    if not os.path.isabs(path):
        return path
    below = os.path.relpath(path)
    return os.path.basename(path) if below.startswith("..") else below


def probability(weights: Weights, row: Features) -> float:
    """The probability that a finding with these features is worth a look."""
    total = sum(weights.get(name, 0.0) * value for name, value in row.items())
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, total))))


def fit(rows: Sequence[Features], truths: Sequence[bool], prior: Weights) -> dict[str, float]:
    """Return the most probable weights after these verdicts, by gradient ascent from the prior ones."""
    weights = dict(prior)
    for _ in range(ROUNDS):
        slope: dict[str, float] = {name: PRECISION * (prior.get(name, 0.0) - value) for name, value in weights.items()}
        for row, true in zip(rows, truths, strict=True):
            miss = true - probability(weights, row)
            for name, value in row.items():
                slope[name] = slope.get(name, 0.0) + miss * value
        for name, value in slope.items():
            weights[name] = weights.get(name, 0.0) + RATE * value / (PRECISION + len(rows) / 4)
    return weights


@cache
def shipped(what: str = "weights") -> Weights:
    """The weights that come with the checker: of what is worth a look, or of what is a `bug`."""
    weights: dict[str, float] = json.loads(Path(__file__).with_name("weights.json").read_text(encoding="utf-8"))[what]
    return weights
