"""What pytest does differently in runs of this benchmark; the file MUTANTS_ORDER says what is wanted.

leave    tests that are not run
only     {test: seconds it may take}: these alone, in this order
report   where to write what became of the tests, and `report`.begun which one was begun last
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

ORDER = json.loads(Path(os.environ["MUTANTS_ORDER"]).read_text())
REPORT = Path(ORDER["report"])
numbers: dict[str, int] = {}
seconds: dict[str, float] = {}
outcomes: dict[str, str] = {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "only" in ORDER:
        there = {item.nodeid: item for item in items}
        items[:] = [there[name] for name in ORDER["only"] if name in there]
        for item in items:
            item.add_marker(pytest.mark.timeout(ORDER["only"][item.nodeid]), append=False)
    elif ORDER["leave"]:
        leave = set(ORDER["leave"])
        items[:] = [item for item in items if item.nodeid not in leave]
    numbers.update({item.nodeid: number for number, item in enumerate(items, 1)})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    REPORT.with_suffix(".begun").write_text(item.nodeid)
    _trace(numbers[item.nodeid])
    try:
        return (yield)
    finally:
        _trace(0)


def _trace(test: int) -> None:
    if "MUTANTS_TRACE" in os.environ:
        import line_tracer

        if line_tracer.tracer is not None:
            line_tracer.tracer.write(test)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = report.nodeid
    seconds[name] = seconds.get(name, 0.0) + report.duration
    if report.outcome != "passed" or name not in outcomes:
        outcomes[name] = "timeout" if "Timeout (>" in report.longreprtext else report.outcome


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        outcomes[f"collecting {report.nodeid}"] = "failed"


def pytest_sessionfinish() -> None:
    tests = {name: [round(seconds.get(name, 0.0), 3), outcome] for name, outcome in outcomes.items()}
    REPORT.write_text(json.dumps({"numbers": numbers, "tests": tests}))
