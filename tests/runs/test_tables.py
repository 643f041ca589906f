"""Runs and comparisons have a text and an HTML form for notebooks."""

from __future__ import annotations

from paceline.api.compare import Comparison
from paceline.runs.comparison import Answer, ComparisonRecord, Kind, Row
from paceline.runs.tables import comparison_table, summary_lines

ROWS = (Row("sequential", 1, 1000.0, (1000.0,), 1.0, 1.0), Row("ring:workers=2", 2, 1500.0, (1500.0,), 1.5, 0.75))
RECORD = ComparisonRecord("<job>", "1 thread", 1000.0, 5, ROWS, answer=Answer(Kind.RECOMMENDED, "Recommended: ring x2"))


def test_a_comparison_is_a_table_with_the_answer_below() -> None:
    lines = str(Comparison(RECORD)).splitlines()
    assert lines[0] == "<job>: plans side by side"
    assert lines[1].split() == ["plan", "samples/s", "speed-up"]
    assert lines[3].split() == ["ring", "x2", "1,500", "1.50"]
    assert lines[-1] == "Recommended: ring x2"
    assert len({len(line) for line in lines[1:4]}) == 1, "the columns are aligned"


def test_names_are_escaped_in_html() -> None:
    page = Comparison(RECORD)._repr_html_()
    assert "<caption>&lt;job&gt;: plans side by side</caption>" in page
    assert page.count("<tr>") == 3
    assert page.endswith("<p>Recommended: ring x2</p>")


def test_columns_without_figures_are_left_out() -> None:
    assert comparison_table(RECORD).heads == ("plan", "samples/s", "speed-up")


def test_a_summary_names_what_went_wrong() -> None:
    summary = {
        "plan": "ring", "workers": 2, "engine": "local", "updates": 10, "seconds": 1.0, "samples_per_second": 100.0,
        "train_loss": None, "staleness": {"mean": 0.0, "p95": 0.0, "max": 0}, "wait_fraction": None, "bytes_sent": 0,
        "parameters_sha256": "ab" * 32, "run": None, "compute": "autograd", "stragglers": {1: 0.4}, "not_finite": 0,
        "deaths": [], "advised_sizes": "",
    }  # fmt: skip
    lines = summary_lines(summary)
    assert lines["straggler"] == "worker 1 computes at 40% of the others' speed"
    assert "died" not in lines
    advised = summary_lines({**summary, "advised_sizes": "5+2"})
    assert advised["straggler"].endswith("; sizes=5+2 divides batches by speed")
