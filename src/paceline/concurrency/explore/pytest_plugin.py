"""A plugin of pytest: tests with the mark `explore`, or all with `--explore`, run in many orders of threads and tasks.

    pytest -p paceline.concurrency.explore.pytest_plugin --explore

A test that needs pytest, for its fixtures, its parameters or its class, is run by pytest in the exploring process too.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from paceline.concurrency.explore.finding import relative
from paceline.concurrency.explore.session import Session, Settings, Target

#: Plugins that a single run has no use for, or that look at threads themselves.
UNUSED = ("terminal", "cacheprovider", "faulthandler", "threadexception", "unraisableexception", "timeout", "xdist")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("paceline")
    group.addoption("--explore", action="store_true", help="run every test in many orders of its threads and tasks")
    group.addoption("--explore-seconds", type=float, default=10.0, help="search no longer than this for each test")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "explore(**settings): run the test in many orders of its threads and tasks")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let tests be explored in the place of running them, but for the one that an exploring process runs."""
    if not any(isinstance(each, _OneRun) for each in config.pluginmanager.get_plugins()):
        for item in items:
            is_explored = config.getoption("explore") or item.get_closest_marker("explore") is not None
            if is_explored and isinstance(item, pytest.Function):
                item.runtest = partial(_explore, item)  # type: ignore[method-assign]


def _explore(item: pytest.Function) -> None:
    file, needs_pytest = relative(str(item.path)), bool(item.fixturenames) or item.cls is not None
    test = Target(file, test=item.nodeid.partition("::")[2]) if needs_pytest else Target(file, function=item.name)
    settings = Settings(seconds=item.config.getoption("explore_seconds"), first=True)
    mark = item.get_closest_marker("explore")
    with Session() as session:
        chosen = replace(settings, **mark.kwargs) if mark is not None else settings
        answer = session.explore(test, chosen)
    if answer.code:
        pytest.fail(answer.text, pytrace=False)


class _OneRun:
    """Keeps what went wrong in a test, and awaits it if no other plugin has done so."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def pytest_exception_interact(self, call: pytest.CallInfo[Any]) -> None:
        self.error = self.error or (call.excinfo and call.excinfo.value)

    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Any:
        if not inspect.iscoroutinefunction(pyfuncitem.obj):
            return None
        names = pyfuncitem._fixtureinfo.argnames
        asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
        return True


def run_test(node: str) -> None:
    """Run a test as pytest does, once, and let its exception pass."""
    run = _OneRun()
    options = ["-s", "--assert=plain", "-o", "addopts=", *(f"-pno:{each}" for each in UNUSED)]
    code = pytest.main([node, *options], [run])
    if run.error is not None:
        raise run.error
    if code:
        raise LookupError(f"pytest does not run {node}: its exit code is {int(code)}")
