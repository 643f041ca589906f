"""The budget: what it leaves out is said, what it reaches is checked as ever, and the promising files come first."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from paceline.concurrency.check.options import Options
from paceline.concurrency.check.parallel import Source
from paceline.concurrency.check.ranking import Verdict, order
from paceline.concurrency.check.rules import RULES
from paceline.concurrency.check.run import Report, check_paths

PLAIN = '"""Numbers, without threads, whatever rank they have."""\n' + "".join(
    f"\n\ndef square_{n}(x):\n    return x * x + {n}\n" for n in range(40)
)
PATHS = "import threading\n\n" + "".join(f"lock_{n} = threading.Lock()\n" for n in range(8))
PATHS += "\n\ndef f(x):\n" + "".join(f"    if x[{n}]:\n        lock_{n}.acquire()\n" for n in range(8))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The examples of all rules, two files that are wrong only together, and as much code that has nothing to find."""
    monkeypatch.chdir(tmp_path)
    for code, rule in RULES.items():
        (tmp_path / f"z_{code}.py").write_text(rule.bad)
        (tmp_path / f"a_{code}.py").write_text(PLAIN)
    (tmp_path / "slow.py").write_text("import time\n\n\ndef read():\n    time.sleep(1)\n")
    (tmp_path / "uses.py").write_text("import slow\n\n\nasync def main():\n    slow.read()\n")
    return tmp_path


def checked(tree: Path, budget: int) -> Report:
    return check_paths([tree], Options(budget=budget, cache=False, jobs=1, min_confidence=0))


def places(report: Report) -> set[tuple[str, int, str]]:
    return {(found.path, found.line, found.rule) for found in report.findings}


def test_whatever_the_weights_a_budget_that_suffices_loses_nothing(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = checked(tree, 0)
    assert ("uses.py", 5, "PC301") in places(everything)
    chance = random.Random(3)
    for _ in range(3):
        weights = {name: chance.gauss(0, 1) for name in [*order.WORDS, *(f"rule {code}" for code in RULES)]}
        monkeypatch.setattr(order, "shipped", lambda weights=weights: weights)
        assert checked(tree, everything.lines).findings == everything.findings
        part = checked(tree, everything.lines // 30)
        assert places(part) < places(everything)
        assert part.unwalked


def test_the_learned_order_finds_more_than_the_order_of_the_paths(tree: Path) -> None:
    everything, part = checked(tree, 0), checked(tree, checked(tree, 0).lines // 3)
    assert len(places(part)) > 0.8 * len(places(everything))  # by their paths all the plain files come first


def test_a_verdict_moves_the_files_that_its_rule_applies_to() -> None:
    def reached(truth: bool) -> set[str]:
        verdicts = [Verdict("", truth, "PC504")] * 20 + [Verdict("", not truth, "PC202")] * 20
        return order.within(60, sources, verdicts)

    sources = [Source(code, RULES[code].bad + "\n" * 40) for code in ("PC504", "PC202")]
    assert (reached(True), reached(False)) == ({"PC504"}, {"PC202"})


def run(*words: str) -> Result:
    import typer

    from paceline.interfaces.cli.check import check

    app = typer.Typer()
    app.command()(check)
    return CliRunner().invoke(app, list(words))


def test_what_is_over_the_budget_is_said_in_every_form(tree: Path) -> None:
    done = run("--format", "json", "--budget", "1")
    told = json.loads(done.stdout)
    assert told["findings"] == []
    paths = {over["path"] for over in told["over_budget"]}
    assert {f"z_{code}.py" for code in RULES} <= paths
    said = " ".join(done.stderr.split())
    assert f"nothing found within the budget in {told['files']} files" in said
    assert f"{len(paths)} over the budget and not walked" in said
    log = json.loads(run("--format", "sarif", "--budget", "1").stdout)
    assert len(log["runs"][0]["invocations"][0]["toolExecutionNotifications"]) == len(paths)


def test_a_function_with_too_many_paths_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paths.py").write_text(PATHS)
    for _ in range(2):  # the second time from the cache
        done = run("--format", "json", "paths.py")
        assert json.loads(done.stdout)["over_budget"] == [
            {"path": "paths.py", "why": "f, line 13: has more paths than were walked"}
        ]
        assert "nothing found within the budget in 1 file" in " ".join(done.stderr.split())
