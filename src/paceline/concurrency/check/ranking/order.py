"""The order in which files are walked, and how far a budget reaches: the most promising files come first.

A budget is a number of lines. How likely a file has findings is a logistic model of how often the words of its blocks,
calls and names occur, and of which rules apply to it. Its weights (order.json) were fitted with a normal prior to files
of widely used packages (benchmarks/checker/walk.py); a user's verdicts move those of the rules that they are about.
The model decides the order alone: a file within the budget is checked as it is without one, so a budget that reaches
all files loses nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from paceline.concurrency.check import libraries
from paceline.concurrency.check.parallel import Source
from paceline.concurrency.check.ranking import Verdict, Weights, fit, probability
from paceline.concurrency.check.rules import RULES

BLOCKS = (
    "async def ", "await ", "with ", "try:", "finally:", "except ", "while ", "while True", "global ", "class ", "def ",
    "lambda", "yield", "@property", "nonlocal ", "return None", " is None:", " not in self", "if not self",
)  # fmt: skip
CALLS = libraries.words("text of calls by which files are ranked")
NAMES = libraries.words("text of names by which files are ranked")
WORDS = BLOCKS + CALLS + NAMES


def features(text: str) -> dict[str, float]:
    """The inputs of the model by name, from the text alone; what is absent is zero."""
    values = {"always": 1.0, "lines": math.log1p(text.count("\n"))}
    values |= {word: math.log1p(count) for word in WORDS if (count := text.count(word))}
    values |= {f"rule {rule.code}": 1.0 for rule in RULES.values() if any(word in text for word in rule.needs)}
    return values


def promise(text: str, weights: Weights) -> float:
    """How much a file promises: the probability of a finding, for the square root of its lines."""
    return probability(weights, features(text)) / math.sqrt(text.count("\n") + 1)


def within(budget: int, sources: Sequence[Source], verdicts: Sequence[Verdict] = ()) -> set[str]:
    """The paths of the files that a budget of lines reaches, the most promising first; 0 reaches all."""
    if not budget:
        return {source.path for source in sources}
    weights = learned(verdicts)
    order = sorted(sources, key=lambda source: (-promise(source.text, weights), source.path))
    reached: set[str] = set()
    for source in order:
        budget -= source.text.count("\n") + 1
        if budget < 0:
            break
        reached.add(source.path)
    return reached


def learned(verdicts: Sequence[Verdict]) -> Weights:
    """The shipped weights, moved by verdicts: each counts as one more file to which its rule alone applies."""
    return fit([{f"rule {v.rule}": 1.0} for v in verdicts], [v.true for v in verdicts], shipped())


@cache
def shipped() -> Weights:
    """The weights that come with the checker."""
    weights: dict[str, float] = json.loads(Path(__file__).with_name("order.json").read_text(encoding="utf-8"))[
        "weights"
    ]
    return weights
