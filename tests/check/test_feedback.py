"""Verdicts: counts from the first one, and a ranker where there are enough and it predicts better."""

from __future__ import annotations

import random

from paceline.check import feedback
from paceline.check.feedback import Label, Verdict, by_ranker, by_rule, log_loss, rank
from paceline.check.findings import Finding, Step
from paceline.check.ranker import features, fit, score


def found(number: int, calls: int, rule: str = "PC101") -> Finding:
    story = [Step("thread A", number + n, f"f calls g{n}") for n in range(calls)]
    return Finding(rule, number, 0, f"f{number}", "both wait", story, about=str(number), path="a.py")


def judged(findings: list[Finding], true: list[bool]) -> list[Verdict]:
    return [Verdict(f.fingerprint, t, "") for f, t in zip(findings, true, strict=True)]


def test_a_ranker_takes_over_where_the_rule_tells_nothing() -> None:
    findings = [found(n, calls=n % 2 * 3) for n in range(60)]
    known = findings[:50]
    order = rank(findings, judged(known, [len(f.story) == 0 for f in known]))
    unseen = {f.fingerprint for f in findings[50:]}
    last = [len(f.story) == 0 for f in order if f.fingerprint in unseen]
    assert last == sorted(last, reverse=True)  # those without calls first: learned from the verdicts of others
    assert order[0].confidence > 0.8 > 0.2 > order[-1].confidence


def test_counts_stay_where_the_rule_says_it_all_and_features_are_noise() -> None:
    chance = random.Random(3)
    findings = [found(n, chance.randrange(4), chance.choice(["PC101", "PC102"])) for n in range(80)]
    true = [f.rule == "PC102" for f in findings]
    labels = [Label(f, t) for f, t in zip(findings, true, strict=True)]
    assert log_loss(labels, by_rule) < log_loss(labels, by_ranker)
    expected = sorted((by_rule(labels)(found(0, 0, f.rule)) for f in findings), reverse=True)
    assert [f.confidence for f in rank(findings, judged(findings, true))] == expected


def test_few_marks_only_count() -> None:
    findings = [found(n, calls=n % 2 * 3) for n in range(feedback.ENOUGH - 1)]
    order = rank(findings, judged(findings, [len(f.story) == 0 for f in findings]))
    assert len({f.confidence for f in order}) == 1  # one rule, one count


def test_the_fit_finds_the_side_of_a_line() -> None:
    chance = random.Random(0)
    rows = [[chance.uniform(-1, 1), chance.uniform(-1, 1)] for _ in range(200)]
    weights = fit(rows, [a > b for a, b in rows])
    assert sum((score(weights, row) > 0.5) == (row[0] > row[1]) for row in rows) > 190
    assert len(features(found(1, 2))) == 13
