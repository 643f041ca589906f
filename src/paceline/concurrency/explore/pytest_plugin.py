"""A plugin of pytest: a test with the mark `explore` runs in many orders of its threads and tasks.

    pytest -p paceline.concurrency.explore.pytest_plugin

The test runs in the exploring process, so it has neither fixtures nor parameters.
"""

from __future__ import annotations

from typing import Any

import pytest

from paceline.concurrency.explore.session import Session, Settings, Target


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "explore(**settings): run the test in many orders of its threads and tasks")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    """Explore a marked test in the place of calling it."""
    mark = pyfuncitem.get_closest_marker("explore")
    if mark is None:
        return None
    if pyfuncitem.cls is not None or pyfuncitem.funcargs:
        pytest.fail("a test with the mark explore is a function without fixtures: make what it needs inside")
    with Session() as session:
        answer = session.explore(
            Target(str(pyfuncitem.path), function=pyfuncitem.name), Settings(first=True, **mark.kwargs)
        )
    if answer.code:
        pytest.fail(answer.text, pytrace=False)
    return True
