"""Libraries that tests compile lie in a folder of their own, and one start of MPI serves all tests of ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.kernels import build
from tests.kernels.networks import Case, drawn, images, sequences


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def quickly_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are not optimised, which takes half the time; for tests whose numbers are compared with PyTorch's."""
    monkeypatch.setattr(build, "FLAGS", tuple("-O0" if flag == "-O3" else flag for flag in build.FLAGS))


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
