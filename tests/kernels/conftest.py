"""One start of MPI serves all tests of ranks, of all processes that share the tests of a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.kernels import build
from tests.compiled import one_at_a_time, unoptimised
from tests.kernels.networks import Case, drawn, images, sequences


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder of all processes that run these tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "kernels"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def quickly_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are not optimised, which takes half the time; for tests whose numbers are compared with PyTorch's."""
    monkeypatch.setattr(build, "FLAGS", unoptimised(build.FLAGS))


@pytest.fixture(scope="session")
def rank_cases() -> list[Case]:
    """Networks whose gradients are made by ranks."""
    return [*drawn(images(), 3), *drawn(sequences(), 2)]


@pytest.fixture(scope="session")
def by_ranks(rank_cases: list[Case], common: Path) -> dict[tuple[object, ...], object]:
    """What four ranks of MPI computed, by what it is."""
    pytest.importorskip("mpi4py")
    from tests.kernels.by_ranks import computed

    with one_at_a_time(common / "ranks.lock"):
        return computed(common, rank_cases)
