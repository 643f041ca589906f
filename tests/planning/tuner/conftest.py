"""Kernels of the tuner's tests are compiled without optimisation, in a cache of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.kernels import build


@pytest.fixture
def quickly_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Texts are not optimised, which takes half the time."""
    cache: Path = tmp_path_factory.getbasetemp() / "kernels"
    monkeypatch.setenv("PACELINE_CACHE", str(cache))
    flags = [flag if not flag.startswith("-O") else "-O1" for flag in build.FLAGS]
    monkeypatch.setattr(build, "FLAGS", type(build.FLAGS)(flags))
