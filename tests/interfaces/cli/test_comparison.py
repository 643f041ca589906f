"""A comparison as the terminal shows it, from made-up records."""

from __future__ import annotations

import io
import json
import statistics
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from paceline.interfaces.api.comparing.result import Comparison
from paceline.interfaces.cli import comparison
from paceline.interfaces.cli.comparison import progress_shown, show_comparison
from paceline.interfaces.cli.terminal import saying
from paceline.runtime.runs.comparison import ComparisonRecord, FailedPlan, Row, StepTimes
from paceline.runtime.runs.verdict import decided, median_interval, wilson
from tests.interfaces.cli.conftest import Command


def row(plan: str, workers: int, *ratios: float) -> Row:
    middle, accuracy = statistics.median(ratios), 0.942
    several = workers > 1
    return Row(
        plan, workers, 40_000 * middle, (1.0, 2.0), middle, middle / workers, 0.9 if several else None, accuracy,
        0.17, 1.2, 0.0, 221_000.0, 0.06, StepTimes(100.0, 10.0, 10.0, 10.0, 5.0),
        speedup_interval=tuple(median_interval(ratios)), ceiling_share_interval=(0.88, 0.92) if several else None,
        test_accuracy_interval=tuple(wilson(accuracy, 360)),
        metrics={"test_accuracy": accuracy, "test_loss": 0.17, "macro_f1": 0.931},
    )  # fmt: skip


DDP = replace(
    row("ddp:workers=2", 2, *[0.5] * 5), step=None, unmeasured=4424.0, wait_fraction=None, bytes_per_update=None
)
SEQUENTIAL = row("sequential", 1, *[1.0] * 5)
RECORD = ComparisonRecord("digits", "2 threads", 40_000.0, 5, (SEQUENTIAL, DDP), 0.942, test_samples=360)


def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *rows: Row) -> list[str]:
    monkeypatch.setattr(comparison.console, "_width", 80)
    record = ComparisonRecord(
        "digits", "2 threads", 40_000.0, 5, rows, 0.942, test_samples=360, command="paceline train digits"
    )
    show_comparison(decided(record))
    return capsys.readouterr().err.splitlines()


def test_it_ends_with_the_answer_and_fits_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(capsys, monkeypatch, SEQUENTIAL, DDP, row("downpour:workers=2", 2, 1.6, 1.62, 1.61, 1.6, 1.65))
    assert lines[-1].startswith("Recommended: downpour x2, 1.61x (±2%), accuracy +0.0 points")
    assert lines[0].split() == ["digits:", "plans", "side", "by", "side"]
    assert max(len(line.rstrip()) for line in lines[:-1]) <= 80
    heads = " ".join(lines[1:3])
    for head in ("samples/s", "speed-up", "ceiling", "accuracy", "holds", "94.2%", "waits"):
        assert head in heads, lines[:3]
    (downpour,) = (line for line in lines if line.startswith("downpour x2") and "±" in line)
    assert "1.61 ±2%" in downpour
    assert "94.2% ±2.0" in downpour


def test_the_users_own_metrics_have_a_column(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(capsys, monkeypatch, SEQUENTIAL)
    assert "macro_f1" in " ".join(lines[:4])
    assert "0.931" in " ".join(lines[:5])


def test_a_plan_that_failed_is_a_row_and_its_reason_stands_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison.console, "_width", 80)
    record = replace(RECORD, failed=(FailedPlan("ddp:workers=2", 2, "WorkerFailed: worker 0 failed first"),))
    show_comparison(decided(record))
    lines = capsys.readouterr().err.splitlines()
    assert any(line.split()[:3] == ["ddp", "x2", "failed"] for line in lines)
    assert "ddp x2 failed: WorkerFailed: worker 0 failed first." in lines


def test_ctrl_c_shows_the_table_and_ends_with_130(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt(Comparison(decided(replace(RECORD, interrupted=True))))

    monkeypatch.setattr("paceline.interfaces.api.comparing.compare.compare", interrupted)
    done = command("compare", "job.py")
    assert done.code == 130
    assert "digits: plans side by side" in done.err
    assert "it was interrupted after 5 whole rounds; compare again, to the end" in done.err
    done = command("compare", "job.py", "--json")
    assert done.code == 130
    assert json.loads(done.out)["interrupted"]


def test_a_terminal_shows_a_bar_and_a_file_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (True, False):
        shown = Console(file=io.StringIO(), force_terminal=terminal, width=80, highlight=False)
        monkeypatch.setattr(comparison, "console", shown)
        monkeypatch.setattr(sys.modules[saying.__module__], "console", shown)
        with progress_shown(False) as (say, progress):
            say("about 70 s")
            assert (progress is not None) == terminal
            if progress is not None:
                progress(0.5, "timing, round 2 of 5: ring")
        text = shown.file.getvalue()  # type: ignore[attr-defined]
        assert "about 70 s" in text
        assert ("timing, round 2 of 5: ring" in text and "50%" in text) == terminal
    with progress_shown(True) as (say, progress):
        say("nothing")
    assert progress is None


def test_what_is_inside_ddp_is_not_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(capsys, monkeypatch, SEQUENTIAL, DDP)
    assert any(line.split()[:5] == ["ddp", "x2", "4,424", "not", "measured"] for line in lines)
    (first, *_) = (line for line in lines if line.startswith("ddp x2"))
    assert first.split()[-1] == "-"  # nor is its waiting


def test_rounds_that_disagree_are_told_first_and_figures_are_intervals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(capsys, monkeypatch, SEQUENTIAL, row("ring:workers=2", 2, 0.9, 1.7, 1.2, 1.3, 1.4))
    assert lines[0].startswith("The rounds disagree by up to ±31%")
    (ring, *_) = (line for line in lines if line.startswith("ring x2"))
    assert "0.90-1.70" in ring
    assert "88-92%" in ring
    assert lines[-1] == (
        "Undecided: ring x2 is 0.90x to 1.70x as fast as one process; time it longer, --seconds 60, "
        "on a quieter machine"
    )
