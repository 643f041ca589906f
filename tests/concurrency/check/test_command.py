"""The command `paceline check`: formats, exit codes, comments, baseline, options, cache, verdicts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from paceline.concurrency.check.options import Options
from paceline.concurrency.check.reporting.findings import RANKS
from paceline.concurrency.check.run import FOLDER
from paceline.errors import UsageError
from paceline.interfaces.cli.check import check

BAD = """import threading

a = threading.Lock()
b = threading.Lock()


def f():
    with a:
        with b:
            pass


def g():
    with b:
        with a:
            pass
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text(BAD)
    return tmp_path


def run(*words: str) -> Result:
    import typer

    app = typer.Typer()
    app.command()(check)
    return CliRunner().invoke(app, list(words), catch_exceptions=True)


def found(*words: str) -> list[dict[str, object]]:
    rows = json.loads(run("--format", "json", *words).stdout)["findings"]
    assert isinstance(rows, list)
    return rows


def test_text_is_a_line_and_a_story() -> None:
    done = run("bad.py")
    assert done.exit_code == 1
    head, *story = done.stdout.splitlines()
    assert head.startswith("bad.py:9:14: PC101 locks are taken in both orders")
    assert "thread A" in story[0]


def test_nothing_found_ends_with_0(here: Path) -> None:
    (here / "good.py").write_text("x = 1\n")
    assert run("good.py").exit_code == 0


def test_the_least_rank_of_the_help_is_that_of_the_checker() -> None:
    shown = " ".join(run("--help").stdout.replace("│", " ").split())
    assert f"[default: ({Options().min_rank})]" in shown
    assert "confidence" not in shown


def test_a_rank_is_printed_and_no_number(here: Path) -> None:
    assert "(rank medium, fingerprint " in run("bad.py").stdout
    assert not re.search(r"\b[01]\.\d\d\b|confidence", run("bad.py").stdout)
    (row,) = found("bad.py")
    assert row["rank"] == "medium"
    (result,) = json.loads(run("--format", "sarif", "bad.py").stdout)["runs"][0]["results"]
    assert (result["level"], result["rank"], result["properties"]["rank"]) == ("error", 50.0, "medium")
    (here / "bad.py").write_text(FOLDER_MADE.format("os.environ['CACHE']"))
    assert run("--format", "github", "bad.py").stdout.startswith("::warning ")  # races are ranked low


def test_findings_are_left_out_by_their_rank(here: Path) -> None:
    (here / "low.py").write_text(FOLDER_MADE.format("os.environ['CACHE']"))
    (here / "broken.py").write_text("class (:\n")
    ranks = {"low": ["PC101", "PC001", "PC406"], "medium": ["PC101", "PC001"], "high": ["PC001"]}
    for rank, rules in ranks.items():
        assert [row["rule"] for row in found(".", "--min-rank", rank)] == rules
        (here / "pyproject.toml").write_text(f'[tool.paceline.check]\nmin-rank = "{rank}"\n')
        assert [row["rule"] for row in found(".")] == rules
    (here / "pyproject.toml").write_text('[tool.paceline.check]\nmin-rank = "0.5"\n')
    assert str(run("bad.py").exception) == "min-rank is '0.5'. It is one of low, medium, high"


def test_the_least_confidence_still_works_and_says_that_it_is_deprecated() -> None:
    assert run("bad.py", "--min-confidence", "1").exit_code == 0
    assert "--min-confidence is deprecated: use --min-rank" in run("bad.py", "--min-confidence", "1").stderr


def test_a_family_has_the_rank_of_its_judged_findings() -> None:
    labels = (Path(__file__).parents[3] / "benchmarks" / "checker" / "labels.tsv").read_text().splitlines()[1:]
    judged: dict[str, list[bool]] = {}
    for label in labels:
        _, _, _, rule, _, verdict, reason, *_ = label.split("\t")
        if reason != "its fix took the finding away":  # which is true of bugs alone
            judged.setdefault(rule[:3], []).append(verdict != "false")
    worth = {family: sum(values) / len(values) for family, values in judged.items()}
    ranked = {f: "high" if share >= 2 / 3 else "medium" if share >= 0.55 else "low" for f, share in worth.items()}
    assert {"PC0": "high", **ranked, "PC9": "medium"} == RANKS  # of a project's own rules nothing is known


def test_json_has_what_other_programs_need() -> None:
    (row,) = found("bad.py")
    assert {"path", "line", "column", "rule", "function", "message", "story", "confidence", "fingerprint"} <= set(row)
    assert (row["path"], row["line"], row["rule"], row["function"]) == ("bad.py", 9, "PC101", "f")


def test_json_is_one_object_by_its_own_option_too() -> None:
    assert json.loads(run("--json", "bad.py").stdout) == json.loads(run("--format", "json", "bad.py").stdout)


def test_sarif_has_a_flow_per_thread() -> None:
    log = json.loads(run("--format", "sarif", "bad.py").stdout)
    assert log["version"] == "2.1.0"
    (result,) = log["runs"][0]["results"]
    flows = result["codeFlows"][0]["threadFlows"]
    assert [flow["id"] for flow in flows] == ["thread A", "thread B"]
    orders = [location["executionOrder"] for flow in flows for location in flow["locations"]]
    assert sorted(orders) == list(range(1, len(orders) + 1))
    rules = {rule["id"] for rule in log["runs"][0]["tool"]["driver"]["rules"]}
    assert result["ruleId"] in rules


def test_github_escapes_what_it_must() -> None:
    (line,) = run("--format", "github", "bad.py").stdout.splitlines()
    level, _, rest = line.partition(" ")
    assert level == "::error"  # by its rank
    assert rest.startswith("file=bad.py,line=9,col=14,title=PC101::")
    assert "%0A" in line


def test_a_comment_leaves_a_finding_out_and_an_unused_one_is_found(here: Path) -> None:
    (here / "bad.py").write_text(BAD.replace("        with b:\n", "        with b:  # paceline: ignore[PC101]\n", 1))
    assert found("bad.py") == []
    (here / "bad.py").write_text("x = 1  # paceline: ignore[PC101]\n")
    assert [row["rule"] for row in found("bad.py")] == ["PC002"]
    (here / "bad.py").write_text('x = "# paceline: ignore[PC101]"\n')
    assert found("bad.py") == []


def test_a_baseline_leaves_only_what_is_new(here: Path) -> None:
    assert run("bad.py", "--write-baseline", "known.json").exit_code == 0
    assert run("bad.py", "--baseline", "known.json").exit_code == 0
    (here / "bad.py").write_text("# a line more\n" + BAD)
    assert found("bad.py", "--baseline", "known.json") == []
    (here / "bad.py").write_text(BAD.replace("def f", "def new"))
    assert len(found("bad.py", "--baseline", "known.json")) == 1


def test_pyproject_is_read_and_the_command_line_wins(here: Path) -> None:
    (here / "pyproject.toml").write_text('[tool.paceline.check]\nignore = ["PC1"]\n')
    assert found("bad.py") == []
    assert len(found("bad.py", "--ignore", "PC2")) == 1
    assert found("bad.py", "--ignore", "PC2", "--select", "PC5") == []
    (here / "pyproject.toml").write_text('[tool.paceline.check]\nmin-confidence = 0.95\nexclude = ["old/*"]\n')
    assert found("bad.py") == []
    (here / "pyproject.toml").write_text("[tool.paceline.check]\nignored = []\n")
    done = run("bad.py")
    assert isinstance(done.exception, UsageError)
    assert "ignore" in str(done.exception)


@pytest.mark.parametrize("words", [("nothing.py",), ("bad.py", "--select", "XY"), ("bad.py", "--baseline", "no.json")])
def test_wrong_use_is_an_error(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert isinstance(done.exception, UsageError)
    assert done.exception.exit_code == 2


FOLDER_MADE = (
    "import os\n\n\ndef build():\n    folder = {}\n    if not os.path.exists(folder):\n        os.makedirs(folder)\n"
)


@pytest.mark.parametrize(
    ("folder", "shown"), [("'out'", False), ("os.path.expanduser('~/.tool')", True), ("os.environ['CACHE']", True)]
)
def test_a_folder_of_a_single_command_is_reported_only_on_request(here: Path, folder: str, shown: bool) -> None:
    (here / "bad.py").write_text(FOLDER_MADE.format(folder))
    assert [row["rule"] for row in found("bad.py")] == ["PC406"] * shown
    assert [row["rule"] for row in found("bad.py", "--everything")] == ["PC406"]


def test_the_cache_gives_the_same_and_is_not_trusted(here: Path) -> None:
    first = found("bad.py")
    (entry,) = (here / FOLDER).glob("*.json")
    assert found("bad.py") == first
    entry.write_text("{broken")
    assert found("bad.py") == first
    (here / "bad.py").rename(here / "other.py")
    (row,) = found("other.py")
    assert row["path"] == "other.py"


def test_verdicts_decide_what_comes_first_and_what_is_reported(here: Path) -> None:
    (here / "leak.py").write_text(
        "import threading\nlock = threading.Lock()\n\ndef f(x):\n    lock.acquire()\n    x.work()\n    lock.release()\n"
    )
    rows = found(".")
    assert [row["rule"] for row in rows] == ["PC101", "PC102"]
    leak, order = rows[1]["fingerprint"], rows[0]["fingerprint"]
    (here / "verdicts.txt").write_text(f"{leak} true\n{leak} true\n{order} false  # a comment\n" * 5)
    assert [row["rule"] for row in found(".", "--feedback", "verdicts.txt")] == ["PC102"]
    (here / "verdicts.txt").write_text("what is this\n")
    assert isinstance(run(".", "--feedback", "verdicts.txt").exception, UsageError)


def test_explain_says_what_a_rule_finds() -> None:
    assert "both orders" in run("--explain", "PC101").stdout
    assert isinstance(run("--explain", "PC999").exception, UsageError)


def test_ruff_diagnostics_for_editors(here: Path) -> None:
    (row,) = json.loads(run("--format", "ruff", "bad.py").stdout)
    assert (row["code"], row["location"], row["filename"]) == (
        "PC101",
        {"row": 9, "column": 14},
        str(here / "bad.py"),
    )
    (here / "good.py").write_text("x = 1\n")
    assert json.loads(run("--format", "ruff", "good.py").stdout) == []


@pytest.mark.parametrize("code", ["PC101", "pc101", " Pc101 ", "lock-order"])
def test_a_rule_is_explained_in_any_case(code: str) -> None:
    assert run("--explain", code).stdout.startswith("### PC101 ")


def test_text_has_the_fingerprint_that_verdicts_name() -> None:
    (row,) = found("bad.py")
    assert f"fingerprint {row['fingerprint']})" in run("bad.py").stdout


def test_a_verdict_in_a_comment_hides_what_is_no_bug_and_moves_the_others(here: Path) -> None:
    (before,) = found("bad.py")
    other = BAD.replace("def f", "def h").replace("def g", "def k")
    (here / "other.py").write_text(
        other.replace("        with b:\n", "        with b:  # paceline: not a bug [PC101]\n", 1)
    )
    (after,) = found(".", "--min-confidence", "0.1")
    assert after["path"] == "bad.py"
    assert after["confidence"] < before["confidence"]  # type: ignore[operator]
    assert found(".", "--min-confidence", "0.1") == [after]  # from the cache too
    (here / "other.py").write_text(other.replace("        with b:\n", "        with b:  # paceline: bug\n", 1))
    assert [row["path"] for row in found(".", "--min-confidence", "1")] == ["other.py"]
    assert found("bad.py", "other.py")[0]["confidence"] > before["confidence"]  # type: ignore[operator]


def test_a_verdict_about_nothing_is_found(here: Path) -> None:
    (here / "bad.py").write_text("x = 1  # paceline: not a bug [PC101]\ny = 2  # paceline: bug\n")
    assert [(row["rule"], row["line"]) for row in found("bad.py")] == [("PC002", 1), ("PC002", 2)]


def test_concise_is_a_line_for_each_finding_and_the_option_has_the_name_of_ruff() -> None:
    (line,) = run("--output-format", "concise", "bad.py").stdout.splitlines()
    assert line.startswith("bad.py:9:14: PC101 ")
