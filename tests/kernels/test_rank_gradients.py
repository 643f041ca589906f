"""Gradients of random networks by ranks of MPI: PyTorch's, and the same bits for any number of ranks and threads."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.kernels import fuse
from tests.kernels.networks import Case, drawn, images, sequences
from tests.kernels.test_gradients import compare

pytest.importorskip("mpi4py")

from tests.kernels.by_ranks import TEAMS, LayerSpec, computed

SHARING = [team for team in TEAMS if not team[2]]


def check_bits(cases: list[Case], found: LayerSpec) -> None:
    """All numbers of ranks and threads that share memory give the bits of one process of two threads."""
    for number, case in enumerate(cases):
        twin = copy.deepcopy(case.model)
        loss, gradients = fuse(twin, case.loss, None, len(case.x), threads=2).loss_and_gradients(case.x, case.y)
        for ranks, threads, apart in SHARING:
            theirs, by_name, state = found["gradients", ranks, threads, apart][number]
            assert theirs == loss
            assert equal(by_name, gradients), f"{ranks} ranks of {threads}: {case.model}"
            assert equal(state, twin.state_dict())
        compare(case, loss, gradients, twin, 1e-10)


def check_nodes(cases: list[Case], found: LayerSpec) -> None:
    """Two nodes of two ranks each. Batch-norm has the statistics of a node's share of the batch."""
    compared = 0
    for case, (loss, gradients, state) in zip(cases, found["gradients", 4, 1, 2], strict=True):
        if not any(isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) for part in case.model.modules()):
            twin = copy.deepcopy(case.model)
            twin.load_state_dict(state)
            compare(case, loss, gradients, twin, 1e-10)
            compared += 1
    assert compared > len(cases) // 2


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def test_ranks_make_pytorchs_gradients_to_the_bits_of_threads(rank_cases: list[Case], by_ranks: LayerSpec) -> None:
    check_bits(rank_cases, by_ranks)


def test_machines_add_up_to_pytorchs_gradients(rank_cases: list[Case], by_ranks: LayerSpec) -> None:
    check_nodes(rank_cases, by_ranks)


@pytest.mark.soak
def test_many_networks_by_ranks(tmp_path: Path) -> None:
    cases = [*drawn(images(), 25), *drawn(sequences(), 15)]
    found = computed(tmp_path, cases)
    check_bits(cases, found)
    check_nodes(cases, found)
