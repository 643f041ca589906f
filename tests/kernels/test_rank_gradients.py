"""Gradients of random networks by ranks of MPI: PyTorch's, and the same bits for any number of ranks and threads."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy
from torch import nn

from paceline.kernels import fuse
from tests.kernels.networks import Case, images, sequences
from tests.kernels.test_gradients import SOME, compare
from tests.kernels.test_ranks import MPIEXEC

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import torch
from mpi4py import MPI
from paceline.kernels import fuse_ranks

world, apart, threads = MPI.COMM_WORLD, int(sys.argv[1]), int(sys.argv[2])
node = world.Split(world.rank // apart, world.rank) if apart else None
found = []
for case in torch.load("cases.pt", weights_only=False):
    ranks = fuse_ranks(case.model, case.loss, None, len(case.x), threads=threads, node=node)
    loss, gradients = ranks.loss_and_gradients(case.x, case.y)
    found.append((loss, {name: g.clone() for name, g in gradients.items()}, case.model))
    ranks.close()
if world.rank == 0:
    torch.save(found, "found.pt")
"""
Found = list[tuple[float, dict[str, torch.Tensor], nn.Module]]


def drawn(strategy: SearchStrategy[Case], count: int) -> list[Case]:
    cases: list[Case] = []

    @settings(SOME, max_examples=count)
    @given(strategy)
    def collect(case: Case) -> None:
        cases.append(case.double())

    collect()
    return cases


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Case]]:
    pytest.importorskip("mpi4py")
    folder = tmp_path_factory.mktemp("cases")
    found = [*drawn(images(), 8), *drawn(sequences(), 5)]
    torch.save(found, folder / "cases.pt")
    (folder / "program.py").write_text(PROGRAM)
    return folder, found


def by_ranks(folder: Path, ranks: int, apart: int = 0, threads: int = 1) -> Found:
    command = [MPIEXEC, "-n", str(ranks), sys.executable, "program.py", str(apart), str(threads)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    found: Found = torch.load(folder / "found.pt", weights_only=False)
    return found


def test_ranks_make_pytorchs_gradients_to_the_bits_of_threads(cases: tuple[Path, list[Case]]) -> None:
    folder, all_cases = cases
    alone: Found = []
    for case in all_cases:
        twin = copy.deepcopy(case.model)
        loss, gradients = fuse(twin, case.loss, None, len(case.x), threads=2).loss_and_gradients(case.x, case.y)
        alone.append((loss, gradients, twin))
    for ranks, threads in ((1, 1), (2, 1), (3, 1), (4, 1), (2, 2)):
        found = by_ranks(folder, ranks, threads=threads)
        for case, mine, theirs in zip(all_cases, found, alone, strict=True):
            assert mine[0] == theirs[0]
            assert equal(mine[1], theirs[1]), f"{ranks} ranks of {threads}: {case.model}"
            assert equal(mine[2].state_dict(), theirs[2].state_dict())
            compare(case, *mine, 1e-10)


def test_machines_add_up_to_pytorchs_gradients(cases: tuple[Path, list[Case]]) -> None:
    """Four ranks, each two said to be a machine. Batch-norm has the statistics of a machine's share of the batch."""
    folder, all_cases = cases
    compared = 0
    for case, found in zip(all_cases, by_ranks(folder, 4, apart=2), strict=True):
        if not any(isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) for part in case.model.modules()):
            compare(case, *found, 1e-10)
            compared += 1
    assert compared > len(all_cases) // 2


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())
