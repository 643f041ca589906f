"""The names users hold, and what importing them costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import paceline as pl
from tests.each import each


def test_importing_paceline_does_not_import_torch() -> None:
    code = "import sys, paceline, paceline.interfaces.cli, paceline.plans.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@each("name", [*pl._FACE, "__version__"])
def test_every_name_of_the_face_is_there(name: str) -> None:
    assert callable(getattr(pl, name)) or name == "__version__"
    assert name in dir(pl)


def test_type_checkers_know_the_names_that_are_there() -> None:
    (block,) = (
        node
        for node in ast.parse(Path(pl.__file__).read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    imported = {
        (alias.name, each.module) for each in block.body if isinstance(each, ast.ImportFrom) for alias in each.names
    }
    assert imported - {("*", "paceline.plans.named")} == set(pl._FACE.items())


def test_a_plan_class_is_the_same_as_its_text() -> None:
    assert pl.Downpour(workers=4, shards=2) == pl.Plan.parse("downpour:workers=4,shards=2")
    assert pl.Sequential(chunks=3) == pl.Plan.parse("sequential:chunks=3")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="Uphill"):
        _ = pl.Uphill
