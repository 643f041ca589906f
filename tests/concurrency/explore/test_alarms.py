"""`paceline check --explore`: findings of the checker are confirmed, dismissed, or not, by running the program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.explore.alarms import prove
from paceline.concurrency.explore.session import Answer, Session, Settings, Target

STOCK = """
import threading

class Stock:
    def __init__(self):
        self.count = 0
        self.items = {}
        self.lock = threading.Lock()

    def add(self):
        self.count += 1

    def take(self):
        with self.lock:
            self.count -= 1

def run():
    stock = Stock()
    threads = [threading.Thread(target=stock.add), threading.Thread(target=stock.take)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""
CALL = '\nif __name__ == "__main__":\n    run()\n'
TEST = "from stock import Stock, run\n\ndef test_of_something_else():\n    pass\n\ndef test_run(tmp_path):\n    run()\n"


def paceline(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paceline", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def checked(folder: Path, *options: str) -> dict[str, str]:
    done = paceline(folder, "check", "stock.py", "--select", "PC402", "--explore", "--explore-seconds", "240", *options)
    return json.loads(done.stdout)["findings"][0]["explored"]


def test_a_race_is_confirmed_by_the_script_itself_and_replayed(tmp_path: Path) -> None:
    (tmp_path / "stock.py").write_text(STOCK + CALL)
    proof = checked(tmp_path, "--json")
    assert proof["verdict"] == "confirmed"
    again = paceline(tmp_path, "explore", *proof["replay"].split())
    assert "as `paceline check` suspects" in again.stdout
    assert "writes Stock.count" in again.stdout


def test_a_race_is_confirmed_by_a_test_that_reaches_it(tmp_path: Path) -> None:
    (tmp_path / "stock.py").write_text(STOCK)
    (tmp_path / "test_stock.py").write_text(TEST)
    proof = checked(tmp_path, "--json")
    assert proof["verdict"] == "confirmed"
    assert proof["replay"].endswith("test_stock.py::test_run")


def test_a_race_is_confirmed_by_a_script_that_imports_its_file(tmp_path: Path) -> None:
    (tmp_path / "stock.py").write_text(STOCK)
    (tmp_path / "app.py").write_text("from stock import run\n\nrun()\n")
    proof = checked(tmp_path, "--json")
    assert proof["verdict"] == "confirmed"
    assert proof["replay"].endswith("app.py")


def test_no_driver_runs_longer_than_the_file_may(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each run, that in the plain order too, gets half of what is left, so that a server leaves time for the tests."""
    given = []

    def explore(self: Session, target: Target, settings: Settings) -> Answer:
        given.append(settings)
        return Answer("", 0, {"findings": [], "command": "", "reason": "", "target": str(target)})

    monkeypatch.setattr(Session, "explore", explore)
    monkeypatch.chdir(tmp_path)
    Path("stock.py").write_text(STOCK + CALL)
    Path("test_stock.py").write_text(TEST)
    prove([Finding("PC402", 11, 1, "Stock.add", "", path="stock.py")], seconds=8.0)
    assert len(given) == 3  # the script and two tests
    assert all(each.run_seconds <= 4 and each.seconds <= 8 / len(given) for each in given)


def test_without_a_driver_the_reason_is_given(tmp_path: Path) -> None:
    (tmp_path / "stock.py").write_text(STOCK)
    proof = checked(tmp_path, "--json")
    assert proof["verdict"] == "no driver"
    assert "no script imports stock.py" in proof["reason"]


def test_what_cannot_happen_in_the_program_is_dismissed_within_bounds(tmp_path: Path) -> None:
    alone = STOCK.replace("        thread.start()\n", "        thread.start()\n        thread.join()\n")
    (tmp_path / "stock.py").write_text(alone + CALL)
    proof = checked(tmp_path, "--json")
    assert proof["verdict"] == "dismissed within bounds", proof


def test_sarif_and_text_carry_the_proof(tmp_path: Path) -> None:
    (tmp_path / "stock.py").write_text(STOCK + CALL)
    options = ["check", "stock.py", "--select", "PC402", "--explore", "--explore-seconds", "60"]
    result = json.loads(paceline(tmp_path, *options, "--format", "sarif").stdout)["runs"][0]["results"][0]
    assert result["properties"]["explored"]["verdict"] == "confirmed"
    assert result["rank"] == 100
    assert "=> confirmed: suspected race" in paceline(tmp_path, *options).stdout
