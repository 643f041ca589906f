"""The names users hold, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import paceline as pl


def test_importing_paceline_does_not_import_torch() -> None:
    code = "import sys, paceline, paceline.cli, paceline.plans.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_name_of_the_face_is_there() -> None:
    for name in ("Job", "Plan", "Run", "World", "train", "compare", "replay", "__version__"):
        assert hasattr(pl, name), name
    assert callable(pl.train)
    assert callable(pl.compare)
    assert callable(pl.replay)


def test_a_plan_class_is_the_same_as_its_text() -> None:
    assert pl.Downpour(workers=4, shards=2) == pl.Plan.parse("downpour:workers=4,shards=2")
    assert pl.Sequential(chunks=3) == pl.Plan.parse("sequential:chunks=3")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="Uphill"):
        _ = pl.Uphill
