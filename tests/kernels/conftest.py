"""Libraries that tests compile lie in a folder of their own, and one start of MPI serves all tests of ranks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.kernels import build
from paceline.kernels.printers import cpp
from tests.kernels.networks import Case, drawn, images, sequences


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("cache")))
        if "CXX" not in os.environ and build.compiler().command == ("g++",):
            patch.setenv("CXX", f"g++ -include {_precompiled(tmp_path_factory.mktemp('headers'))}")
            build.compiler.cache_clear()
        yield
    build.compiler.cache_clear()


def _precompiled(folder: Path) -> Path:
    """The headers of every text, which take half the time of compiling a small one; for each level of optimisation."""
    header = folder / "headers.h"
    header.write_text(cpp.part("prelude").partition("\n\n")[0] + "\n")
    (folder / "headers.h.gch").mkdir()
    for number, flags in enumerate((build.FLAGS, _unoptimised(build.FLAGS))):
        more = ("-march=native", *(("-fopenmp",) if build.compiler().openmp else ()))
        wanted = [flag for flag in (*flags, *more) if flag != "-shared"]
        binary = folder / "headers.h.gch" / str(number)
        subprocess.run(["g++", *wanted, "-x", "c++-header", str(header), "-o", str(binary)], check=True)
    return header


def _unoptimised(flags: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("-O0" if flag == "-O3" else flag for flag in flags)


@pytest.fixture
def quickly_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are not optimised, which takes half the time; for tests whose numbers are compared with PyTorch's."""
    monkeypatch.setattr(build, "FLAGS", _unoptimised(build.FLAGS))


@pytest.fixture(scope="session")
def rank_cases() -> list[Case]:
    """Networks whose gradients are made by ranks."""
    return [*drawn(images(), 5), *drawn(sequences(), 3)]


@pytest.fixture(scope="session")
def by_ranks(
    _own_cache: None, rank_cases: list[Case], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[object, ...], object]:
    """What four ranks of MPI computed, by what it is."""
    pytest.importorskip("mpi4py")
    from tests.kernels.by_ranks import computed

    return computed(tmp_path_factory.mktemp("ranks"), rank_cases)
