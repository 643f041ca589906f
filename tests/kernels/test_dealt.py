"""A published study's way with ranks: each computes parts of a layer, which are gathered; the bits are the sequential
program's.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.kernels.ir import Index, Loop
from paceline.kernels.measure.networks import CNN
from paceline.kernels.measure.study import study_network
from paceline.kernels.printers.dealt import Parts, parts
from tests.kernels.test_ranks import mpiexec

PROGRAM = """
import sys
import torch
from mpi4py import MPI
from torch import nn
from paceline.kernels.measure.networks import CNN, LastState, Network
from paceline.kernels.measure.rank import study_by_ranks
from paceline.kernels.measure.study import study_network

world, threads = MPI.COMM_WORLD, int(sys.argv[1])

def rims():
    return nn.Sequential(nn.Conv2d(2, 5, 3, padding=1, stride=2), nn.Tanh(), nn.Conv2d(5, 7, 2, dilation=2, padding=2),
                         nn.BatchNorm2d(7), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Dropout(0.2), nn.Linear(63, 10))

def gap(network, keeps, samples):
    torch.manual_seed(0)
    dealt = study_by_ranks(network, keeps, threads, world)
    torch.manual_seed(0)
    alone = study_network(network, keeps, 1)
    for study in (dealt, alone):
        study.train_epoch(*network.data(30), torch.arange(samples))
    pairs = zip(dealt.model.state_dict().values(), alone.model.state_dict().values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)

rims = Network("rims", rims, (2, 9, 9), 1, 30)
steps = Network("steps", lambda: LastState(5, 9), (6, 5), 1, 30)
cases = [(CNN, "outputs", 30), (CNN, "inputs", 30), (rims, "outputs", 30), (rims, "inputs", 30), (steps, "outputs", 30)]
gaps = [max(world.allgather(gap(*case))) for case in (cases if threads == 1 else [(CNN, "outputs", 5)])]
if world.rank == 0:
    print(max(gaps))
"""


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_parts_gathered_after_each_layer_are_the_whole(ranks: int, tmp_path: Path) -> None:
    """To the bit: whichever rank makes a place's sum makes all of it."""
    pytest.importorskip("mpi4py")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = mpiexec(ranks, tmp_path, "program.py", "1")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 0.0


def test_a_part_is_dealt_out_to_threads(tmp_path: Path) -> None:
    """Where a compiler may round elsewhere: it makes a function of its own of what threads do."""
    pytest.importorskip("mpi4py")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = mpiexec(2, tmp_path, "program.py", "2")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-6


def loops(**extents: int) -> tuple[Loop, ...]:
    return tuple(Loop(name, extent) for name, extent in extents.items())


@pytest.mark.parametrize(
    ("place", "all_loops", "dealt", "expected", "unit"),
    [
        ("o 576 y 24 x 1", loops(o=6, y=24, x=24), "oyx", "oy", 24),  # six maps are too few to deal out
        ("o 1", loops(o=10), "o", "o", 1),
        ("o 216 i 1", loops(o=10, i=216), "oi", "o", 216),
        ("c 576 y 96 x 4 a 24 b 1", loops(c=6, y=6, x=6, a=4, b=4), "cyxab", "cy", 96),  # a pooling's way back
        ("o 121 y 11 x 1", loops(o=9, y=9, x=9), "oyx", "o", 121),  # within a rim
        ("o 40 y 11 x 1", loops(o=9, y=4, x=7), "o", "o", 40),
        ("o 35 y 11 x 1", loops(o=9, y=4, x=7), "o", "", 0),  # what one channel touches, the next does, too
        ("", (), "", "", 0),
    ],
)
def test_parts_lie_side_by_side(place: str, all_loops: tuple[Loop, ...], dealt: str, expected: str, unit: int) -> None:
    words = place.split()
    index = Index(tuple((name, int(step)) for name, step in zip(words[::2], words[1::2], strict=True)))
    outer, found = parts(index, tuple(loop for loop in all_loops if loop.name in dealt), all_loops)
    assert ("".join(loop.name for loop in outer), found) == (expected, unit)


def test_what_only_functions_of_each_number_read_is_not_gathered() -> None:
    """What the layers sum, before their sigmoids, and the gradients of their outputs."""
    plan = study_network(CNN, "outputs", 1).compiled(CNN.data(1)[0]).plan
    assert Parts(plan, "outputs").own == {"1", "3", "d_2", "d_4"}
