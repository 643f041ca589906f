"""How likely a finding is worth a look, and which files are walked first; learned weights lie beside the code."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import last_line, lines_of
from paceline.concurrency.check.threads.shared_state import accesses_of_class, accesses_of_globals, is_caught
from paceline.errors import UsageError

_QUEUES = {"queue", "Queue", "concurrent", "multiprocessing"}
_BEGINS = ("init", "setup", "start", "open", "connect", "create", "load", "configure")
_COMMANDS = {"argparse", "click", "typer", "optparse", "fire", "docopt", "absl"}


class Signs:
    """What a file says around a finding, as numbers, for the model of `ranker`.

    A rule knows the form of a mistake. Whether it matters depends on what stands around it: callers that all hold a
    lock, a command that one person runs, an exception that is caught, how many functions change what it is about.

    The signs around the findings of one file.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def of(self, finding: Finding) -> dict[str, float]:
        """The signs around a finding, each between zero and one; what is absent is zero."""
        fn = self._function(finding)
        at = next((call for call in fn.calls if call.lineno == finding.line), None)
        raises = finding.rule.startswith(("PC3", "PC4"))  # rather than waits for ever
        values = {
            "all callers hold a lock": float(bool(self.facts.guards(fn))),
            "a coroutine": float(fn.asynchronous),
            "a command": float(bool(_COMMANDS & self._imported)),
            "its exception is caught": float(raises and at is not None and is_caught(at, "OSError", "RuntimeError")),
            "length of the function": min(1.0, max(0, last_line(fn.node) - fn.line) / 100),
            "a method": float(fn.cls is not None),
            "a special method": float(fn.name.startswith("__")),
            "a class of threads": float(fn.cls is not None and fn.cls.is_thread),
            "it begins something": float(any(word in fn.name.lower() for word in _BEGINS)),
            "functions that change it": min(1.0, self._changing(finding, fn) / 4),
            **self._of_file,
        }
        return {name: round(value, 3) for name, value in values.items() if value}

    @cached_property
    def _of_file(self) -> dict[str, float]:
        """The signs that are the same for all findings of the file."""
        started = {root.kind for root in self.facts.roots}
        return {
            "the file starts threads": float("thread" in started),
            "the file starts processes": float(not started.isdisjoint(("process", "fork"))),
            "queues or pools": float(bool(_QUEUES & self._imported)),
            "functions of the file": min(1.0, math.log1p(len(self.facts.module.functions)) / 7),
        }

    def _changing(self, finding: Finding, fn: Function) -> int:
        """The number of functions that change the attribute or global that a finding is about."""
        owner, _, name = finding.about.rpartition(".")
        if owner in ("self", "cls") and fn.cls is not None:
            owner = fn.cls.name
        cls = self.facts.module.classes.get(owner)
        if owner and cls is None:
            return 0
        accesses = accesses_of_class(cls, self.facts) if cls is not None else accesses_of_globals(self.facts)
        return len({id(access.fn) for access in accesses.get(name, ()) if access.changes})

    @cached_property
    def _imported(self) -> set[str]:
        """The packages that the file imports from."""
        return {origin.partition(".")[0] for origin in self.facts.module.imports.values()}

    def _function(self, finding: Finding) -> Function:
        """The function that a finding names, at its line."""
        named = [fn for fn in self.facts.module.functions if fn.qualname == finding.function]
        around = [fn for fn in named if finding.line in lines_of(fn.node)]
        return next(iter(around or named), self.facts.module.top)


# How likely a finding is worth a look, and how likely a bug: logistic models of features of the finding and its file.
# The weights in weights.json were fitted to findings in widely used packages that were judged by reading, those of bugs
# also to what fixes took away and left in public projects (benchmarks/checker/labels.py). A user's own verdicts move
# them: the fit is the most probable model when every weight has a normal prior around its shipped value, so that a few
# verdicts move it a little and many decide.

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


# Verdicts on findings, true or false, and how they change the confidence of the next run's findings.
# A verdict is a line: a fingerprint, `true` or `false`, and the rule, which is needed once the finding no longer
# exists; what follows `#` is a comment. Comments in the source give verdicts too (see `comments`). The shipped model of
# what is worth a look is refitted to the verdicts (see `ranker`).

CERTAIN = "PC0"  # what could not be read, and comments that suppress nothing


class Verdict(NamedTuple):
    """One line of the file of verdicts."""

    fingerprint: str
    true: bool
    rule: str


def read_verdicts(path: Path) -> list[Verdict]:
    """Read a file of verdicts, with the line number of any mistake."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"the verdicts in {path} cannot be read: {error.strerror}") from None
    verdicts: list[Verdict] = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) not in (2, 3) or words[1] not in ("true", "false"):
            raise UsageError(
                f"{path}:{number} is {line!r}. A verdict is a fingerprint, `true` or `false`, and the rule"
            )
        verdicts.append(Verdict(words[0], words[1] == "true", words[2] if len(words) == 3 else ""))
    return verdicts


def marked(findings: Sequence[Finding]) -> list[Verdict]:
    """The verdicts that comments in the source give."""
    return [Verdict(f.fingerprint, f.verdict, f.rule) for f in findings if f.verdict is not None]


def weigh(findings: Sequence[Finding], verdicts: Sequence[Verdict] = ()) -> None:
    """Set for every finding how likely it is worth a look, its confidence, and how likely it is a bug."""
    rows = [features(finding) for finding in findings]
    worth, bugs = (refitted(findings, verdicts, prior) if verdicts else prior for prior in (shipped(), shipped("bug")))
    for finding, row in zip(findings, rows, strict=True):
        if not finding.rule.startswith(CERTAIN):
            finding.confidence, finding.bug = probability(worth, row), probability(bugs, row)


def refitted(findings: Sequence[Finding], verdicts: Sequence[Verdict], prior: Weights) -> Weights:
    """The shipped weights, moved by verdicts; of a finding that no longer exists only the rule is known."""
    existing = {finding.fingerprint: finding for finding in findings}
    rows = [
        features(existing[verdict.fingerprint])
        if verdict.fingerprint in existing
        else {"always": 1.0, f"rule {verdict.rule}": 1.0, f"family {verdict.rule[:3]}": 1.0}
        for verdict in verdicts
    ]
    return fit(rows, [verdict.true for verdict in verdicts], prior)
