"""Libraries that tests compile lie in a folder of their own, and one start of MPI serves all tests of ranks; processes
that share the tests of a session share both.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.kernels import build
from paceline.kernels.printers import cpp
from tests.kernels.networks import Case, drawn, images, sequences


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder of all processes that run these tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "kernels"
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def one_at_a_time(file: Path) -> Iterator[None]:
    """Let one process at a time into the block, by a lock that ends with the process."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(autouse=True, scope="session")
def _own_cache(common: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(common / "cache"))
        if "CXX" not in os.environ and build.compiler().command == ("g++",):
            with one_at_a_time(common / "headers.lock"):
                patch.setenv(
                    "CXX", f"g++ -include {precompiled(common / 'headers', build.FLAGS, unoptimised(build.FLAGS))}"
                )
            build.compiler.cache_clear()
        yield
    build.compiler.cache_clear()


def precompiled(folder: Path, *wanted: tuple[str, ...]) -> Path:
    """The headers of every text, which take half the time of compiling a small one; for each of these flags."""
    header = folder / "headers.h"
    if header.exists():
        return header
    folder.mkdir(parents=True)
    header.write_text(cpp.part("prelude").partition("\n\n")[0] + "\n")
    (folder / "headers.h.gch").mkdir()
    for number, flags in enumerate(wanted):
        more = ("-march=native", *(("-fopenmp",) if build.compiler().openmp else ()))
        binary = folder / "headers.h.gch" / str(number)
        command = ["g++", *flags, *more, "-x", "c++-header", str(header), "-o", str(binary)]
        subprocess.run([word for word in command if word != "-shared"], check=True)
    return header


def unoptimised(flags: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("-O0" if flag == "-O3" else flag for flag in flags)


@pytest.fixture
def quickly_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are not optimised, which takes half the time; for tests whose numbers are compared with PyTorch's."""
    monkeypatch.setattr(build, "FLAGS", unoptimised(build.FLAGS))


@pytest.fixture(scope="session")
def rank_cases() -> list[Case]:
    """Networks whose gradients are made by ranks."""
    return [*drawn(images(), 3), *drawn(sequences(), 2)]


@pytest.fixture(scope="session")
def by_ranks(_own_cache: None, rank_cases: list[Case], common: Path) -> dict[tuple[object, ...], object]:
    """What four ranks of MPI computed, by what it is."""
    pytest.importorskip("mpi4py")
    from tests.kernels.by_ranks import computed

    with one_at_a_time(common / "ranks.lock"):
        return computed(common, rank_cases)
