"""Earlier names of modules: pickles and programs that use them get the modules of today."""

from __future__ import annotations

import importlib
import sys

import pytest

from paceline.moved import MOVED, name_now


def test_an_earlier_name_imports_the_same_module() -> None:
    now = importlib.import_module("paceline.runtime.runs.progress")
    sys.modules.pop("paceline.runs.progress", None)
    assert importlib.import_module("paceline.runs.progress") is now
    assert now.__spec__ is not None
    assert now.__spec__.name == "paceline.runtime.runs.progress", "its own specification is untouched"


@pytest.mark.parametrize(
    "name", ["paceline", "paceline.training.jobs.job", "paceline.jobsx", "jobs.job", "core", "torch"]
)
def test_other_names_are_not_forwarded(name: str) -> None:
    assert name_now(name) is None


def test_a_module_that_no_version_had_is_not_found() -> None:
    for part in ("core", "jobs"):
        assert part in MOVED
        with pytest.raises(ModuleNotFoundError, match=f"paceline.{part}.nothing"):
            importlib.import_module(f"paceline.{part}.nothing")
