"""Earlier names of modules: pickles and programs that use them get the modules of today."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys

import pytest

from paceline.moved import MOVED, name_now


def test_an_earlier_name_imports_the_same_module() -> None:
    now = importlib.import_module("paceline.runtime.runs.progress")
    sys.modules.pop("paceline.runs.progress", None)
    assert importlib.import_module("paceline.runs.progress") is now
    assert now.__spec__ is not None
    assert now.__spec__.name == "paceline.runtime.runs.progress", "its own specification is untouched"


def test_every_earlier_name_leads_to_a_module() -> None:
    now = {part: name_now(f"paceline.{part}") for part in MOVED}
    assert [part for part, name in now.items() if name is None or importlib.util.find_spec(name) is None] == []


@pytest.mark.parametrize(
    ("name", "qualified"),
    [
        ("core.codecs.half", "Half"),  # moved, then joined with others
        ("algorithms.rules.dc_asgd", "DcAsgd"),
        ("algorithms.splits.nodes", "SplitNode"),
        ("plans.methods.alone", "Alone"),
    ],
)
def test_a_pickle_that_names_a_joined_module_is_read(name: str, qualified: str) -> None:
    loaded = pickle.loads(f"cpaceline.{name}\n{qualified}\n.".encode())
    assert loaded.__name__ == qualified


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
