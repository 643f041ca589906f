"""The learned confidence: what the shipped weights and a user's verdicts make of findings."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from paceline.concurrency.check.engine import check_text
from paceline.concurrency.check.options import Options
from paceline.concurrency.check.ranking import Verdict, features, fit, probability, shipped, weigh
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules import RULES
from paceline.concurrency.check.run import UNLIKELY, worth_showing
from tests.each import each


def found(number: int, calls: int = 0, rule: str = "PC101") -> Finding:
    story = [Step("thread A", number + n, f"f calls g{n}") for n in range(calls)]
    return Finding(rule, number, 0, f"f{number}", "both wait", story, about=str(number), path="a.py")


def log_odds(confidence: float) -> float:
    """The scale on which verdicts add up: near 0 and 1 a probability hardly moves any more."""
    return math.log(confidence / (1 - confidence))


def weighed(findings: list[Finding], verdicts: list[Verdict]) -> list[float]:
    weigh(findings, verdicts)
    return [finding.confidence for finding in findings]


def test_verdicts_move_the_rule_that_they_are_about_and_more_of_them_move_it_further() -> None:
    before = weighed([found(1), found(2, rule="PC503")], [])
    few = weighed([found(1), found(2, rule="PC503")], [Verdict("gone", False, "PC101")] * 2)
    many = weighed([found(1), found(2, rule="PC503")], [Verdict("gone", False, "PC101")] * 20)
    assert before[0] > few[0] > many[0]
    moved = [log_odds(one) - log_odds(other) for one, other in zip(before, many, strict=True)]
    assert moved[1] < moved[0] / 2


def test_features_are_learned_where_the_rule_tells_nothing() -> None:
    findings = [found(n, calls=n % 2 * 3) for n in range(60)]
    verdicts = [Verdict(f.fingerprint, not f.story, "") for f in findings[:50]]
    unseen = weighed(findings, verdicts)[50:]
    assert min(unseen[::2]) > max(unseen[1::2])


def test_no_verdict_is_the_shipped_model() -> None:
    weigh([finding := found(3)])
    assert finding.confidence == probability(shipped(), features(found(3)))


def test_what_stands_around_a_finding_counts() -> None:
    fetch = "async def fetch(url):\n    return requests.get(url)\n"
    guarded = (
        "async def fetch(url):\n    try:\n        return requests.get(url)\n    except OSError:\n        return None\n"
    )
    texts = [f"import requests\n{fetch}", f"import requests, argparse\n{fetch}", f"import requests\n{guarded}"]
    plain, command, caught = [check_text("library.py", text)[0] for text in texts]
    assert not {"a command", "its exception is caught"} & features(plain).keys()
    assert features(command)["a command"] == features(caught)["its exception is caught"] == 1
    weigh([plain, command, caught])
    assert plain.confidence > max(command.confidence, caught.confidence)


def test_the_fit_finds_the_side_of_a_line() -> None:
    chance = random.Random(0)
    rows = [{"a": chance.uniform(-1, 1), "b": chance.uniform(-1, 1)} for _ in range(200)]
    weights = fit(rows, [row["a"] > row["b"] for row in rows], {})
    assert sum((probability(weights, row) > 0.5) == (row["a"] > row["b"]) for row in rows) > 190


@each("code", RULES)
def test_the_example_of_every_rule_is_shown_by_default(code: str) -> None:
    findings = check_text("example.py", RULES[code].bad)
    weigh(findings)
    own = [finding for finding in findings if finding.rule == code]
    assert max(f.confidence for f in own) >= Options().min_confidence
    assert max(f.bug for f in own) >= UNLIKELY


def test_a_finding_that_is_hardly_a_bug_is_shown_only_where_everything_is() -> None:
    quiet = Finding(
        "PC308", 3, 0, "f", "not kept", path="test_a.py", signs={"others in the file": 1.5, "others of the rule": 2.0}
    )
    weigh([quiet])
    assert quiet.bug < UNLIKELY < quiet.confidence
    assert not worth_showing([replace(quiet, confidence=0.8)], Options(min_confidence=0.01))
    assert worth_showing([replace(quiet, confidence=0.8)], Options(min_confidence=0))
    assert worth_showing([replace(quiet, confidence=0.8, verdict=True)], Options(min_confidence=0.01))


def test_what_else_is_found_in_the_file_and_who_changes_the_thing_are_signs() -> None:
    pool = "class {}:\n    def __init__(self):\n        self._lock, self.size = threading.Lock(), 0\n"
    grow = "    def {}(self):\n        self.size += 1\n        return self.size\n"
    head = "import threading\n" + pool.format("Pool") + grow.format("grow")
    (one,) = check_text("pool.py", head)
    (first, second) = check_text("pool.py", head + grow.format("more") + pool.format("Heap") + grow.format("grow"))
    assert [f.signs["functions that change it"] for f in (one, first, second)] == [0.25, 0.5, 0.25]
    assert one.signs["others in the file"] == 0 < first.signs["others in the file"]
    weigh([one, second])
    assert one.bug > second.bug
