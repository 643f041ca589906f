"""The watcher quotes what the checker says of the lines that hang, and what it saw moves the checker's confidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.concurrency.check.options import Options
from paceline.concurrency.check.run import check_paths
from paceline.concurrency.watcher.report import Report, Span, Waiting
from paceline.concurrency.watcher.samples import Frame
from paceline.concurrency.watcher.session import add_verdicts, record_in_run, with_findings
from paceline.runtime.runs.events import EventKind, read_events
from paceline.runtime.runs.live import HANG

TWO_ORDERS = """import threading
first, second = threading.Lock(), threading.Lock()
def other():
    with second:
        with first:
            pass
threading.Thread(target=other).start()
with first:
    with second:
        pass
"""


def hang(file: Path, line: int) -> Report:
    process = Waiting(10, "pid 10 (a.py)", "cause", "a lock", (10,), at=Frame(str(file), line, "<module>"))
    return Report("deadlocked", 0.99, Span(1e9, 9.0), (process,), "take locks in one order")


def confidence(feedback: Path | None) -> float:
    options = Options(cache=False, feedback=str(feedback or ""))
    (finding,) = check_paths([Path("a.py")], options).findings
    return finding.confidence


def test_a_hang_quotes_the_checker_and_raises_its_confidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text(TWO_ORDERS)
    report = with_findings(hang(tmp_path / "a.py", 9))
    (found,) = report.findings
    assert (found.rule, found.path, found.line) == ("PC101", "a.py", 9)
    assert report.text().endswith(f"\n  => `paceline check` reports PC101 at a.py:9: {found.message}")
    assert report.to_dict()["findings"] == [found._asdict()]
    verdicts = tmp_path / "verdicts.txt"
    assert (add_verdicts(report, verdicts), add_verdicts(report, verdicts)) == (1, 0)
    assert confidence(verdicts) > confidence(None) + 0.1


def test_nothing_is_quoted_about_other_lines_or_without_the_source(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(TWO_ORDERS)
    assert with_findings(hang(tmp_path / "a.py", 2)).findings == ()
    assert with_findings(hang(tmp_path / "gone.py", 9)).findings == ()
    nowhere = hang(tmp_path / "a.py", 9)
    assert with_findings(replace(nowhere, processes=(replace(nowhere.processes[0], at=None),))).findings == ()


def test_a_hang_is_written_into_the_folder_of_a_run(tmp_path: Path) -> None:
    report = hang(Path("a.py"), 9)
    record_in_run(report, tmp_path)
    (event,) = read_events(tmp_path)
    assert (event.kind, event.pid, event.at) == (EventKind.HUNG, 10, 1e9)
    assert event.why == "deadlocked: pid 10 (a.py) waits for a lock at a.py:9"
    assert (tmp_path / HANG).read_text() == report.text() + "\n"
