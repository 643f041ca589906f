"""What ranks of MPI compute for the tests, in one start of MPI: mpiexec -n 4 python -m tests.kernels.by_ranks FOLDER

The folder has cases.pt, networks whose gradients are made; the first rank leaves found.pt there.
"""

from __future__ import annotations

import copy
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import paceline.kernels.machine as machine
from paceline.kernels import Fused, build, fuse, fuse_ranks
from paceline.kernels.cuda.gpu import Gpu, SampleKernels
from paceline.kernels.losses import loss_kind
from paceline.kernels.measure.networks import CNN, LastState, Network
from paceline.kernels.measure.rank import study_by_ranks
from paceline.kernels.measure.study import study_network
from paceline.kernels.processors import Nodes, OneProcess, Runner
from paceline.kernels.weights import OneModel
from paceline.training.parameters import optimizers  # noqa: F401  so that no rank imports the compiler of PyTorch
from tests.compiled import unoptimised
from tests.kernels.networks import Case
from tests.kernels.played import Played

RANKS = 4
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
ADAM = partial(torch.optim.Adam, lr=0.01)

#: (ranks, threads of each, ranks of a node): no number of nodes where all ranks share memory.
TEAMS = ((2, 1, 0), (3, 1, 0), (2, 2, 0), (4, 1, 2))
#: (ranks, ranks of a node or 0, whether batch-norm cuts the network into phases)
TRAININGS = ((2, 0, False), (3, 0, True), (4, 0, False), (4, 2, False))
LayerSpec = dict[tuple[Any, ...], Any]


def mpiexec(ranks: int, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with these words by so many ranks."""
    command = [MPIEXEC, "-n", str(ranks), sys.executable, *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)


def computed(folder: Path, cases: list[Case]) -> LayerSpec:
    """Reads what the ranks found; starts them if the folder does not have it yet."""
    if not (folder / "found.pt").exists():
        torch.save(cases, folder / "cases.pt")
        done = mpiexec(RANKS, folder, "-m", "tests.kernels.by_ranks", str(folder))
        assert done.returncode == 0, done.stderr
    found: LayerSpec = torch.load(folder / "found.pt", weights_only=False)
    return found


# --- what a rank does -------------------------------------------------------------------------------------------------


def in_a_group(world: Any, count: int, work: Callable[[Any], object]) -> Any:
    """What `work` returns to the first `count` ranks; the others wait without using a core."""
    group = world.Split(int(world.rank >= count), world.rank)
    result = work(group) if world.rank < count else None
    done = world.Ibarrier()
    while not done.Test():
        time.sleep(0.002)
    group.Free()
    return result


def gradients(cases: list[Case], threads: int, apart: int, group: Any) -> list[tuple[float, dict[str, Tensor], Any]]:
    node = group.Split(group.rank // apart, group.rank) if apart else None
    found = []
    for case in copy.deepcopy(cases):
        fused = fuse_ranks(case.model, case.loss, None, len(case.x), threads=threads, world=group, node=node)
        loss, values = fused.loss_and_gradients(case.x, case.y)
        found.append((loss, {name: g.clone() for name, g in values.items()}, case.model.state_dict()))
        fused.close()
    return found


def network(norm: bool) -> nn.Module:
    torch.manual_seed(1)
    part = nn.BatchNorm2d(4) if norm else nn.Identity()
    return nn.Sequential(nn.Conv2d(1, 4, 3), part, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))


def trained(make: Callable[[nn.Module], Fused], norm: bool) -> tuple[nn.Module, list[float]]:
    """Three epochs, whose last batch is a short one."""
    torch.manual_seed(0)
    x, y, model = torch.randn(75, 1, 9, 9), torch.randint(5, (75,)), network(norm)
    fused = make(model)
    orders = (torch.randperm(75, generator=torch.Generator().manual_seed(epoch)) for epoch in range(3))
    losses = [fused.train_epoch(x, y, order) for order in orders]
    fused.close()
    return model, losses


def training(apart: int, norm: bool, group: Any) -> tuple[float, float, int]:
    node = group.Split(group.rank // apart, group.rank) if apart else None

    def by_ranks(model: nn.Module) -> Fused:
        return fuse_ranks(model, nn.CrossEntropyLoss(), ADAM, 32, threads=1, world=group, node=node)

    return beside_one(trained(by_ranks, norm), norm, group)


def training_on_devices(group: Any) -> tuple[float, float, int]:
    """Each rank has a GPU, which is played."""

    def on_devices(model: nn.Module) -> Fused:
        runner = Runner(Gpu(Played(), SampleKernels("", 32)), OneProcess(), Nodes(group.rank, group.size, group, group))
        return Fused(OneModel(model, ADAM), loss_kind(nn.CrossEntropyLoss()), 32, runner)

    return beside_one(trained(on_devices, False), False, group)


def beside_one(ours: tuple[nn.Module, list[float]], norm: bool, group: Any) -> tuple[float, float, int]:
    """(gap of the numbers, gap of the losses) to one process, and how many different results the ranks have."""
    results = len(set(group.allgather(digest(ours[0]))))
    if group.rank:
        return 0.0, 0.0, results
    theirs = trained(lambda model: fuse(model, nn.CrossEntropyLoss(), ADAM, 32, threads=1), norm)
    losses = max(abs(one - other) for one, other in zip(ours[1], theirs[1], strict=True))
    return gap(ours[0], theirs[0]), losses, results


def gap(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


def digest(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest()


def rims() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1, stride=2),
        nn.Tanh(),
        nn.Conv2d(5, 7, 2, dilation=2, padding=2),
        nn.BatchNorm2d(7),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(63, 10),
    )


RIMS = Network("rims", rims, (2, 9, 9), 1, 30)
STEPS = Network("steps", lambda: LastState(5, 9), (6, 5), 1, 30)
#: The study's texts are compared with each other, to the bit, and so need no optimisation.
QUICKLY = mock.patch.object(build, "FLAGS", unoptimised(build.FLAGS))
STUDIES = ((CNN, "outputs"), (CNN, "inputs"), (RIMS, "outputs"), (RIMS, "inputs"), (STEPS, "outputs"))


@QUICKLY
def study(of: Network, keeps: str, threads: int, samples: int, group: Any) -> tuple[float, int]:
    """The gap of a published study's way with ranks to its sequential program, and how many results there are."""
    torch.manual_seed(0)
    dealt = study_by_ranks(of, keeps, threads, group)
    dealt.train_epoch(*of.data(samples), torch.arange(samples))
    results = len(set(group.allgather(digest(dealt.model))))
    if group.rank:
        return 0.0, results
    torch.manual_seed(0)
    alone = study_network(of, keeps, 1)
    alone.train_epoch(*of.data(samples), torch.arange(samples))
    return gap(dealt.model, alone.model), results


def found(world: Any, cases: list[Case]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for ranks, threads, apart in TEAMS:
        yield ("gradients", ranks, threads, apart), in_a_group(world, ranks, partial(gradients, cases, threads, apart))
    for ranks, apart, norm in TRAININGS:
        yield ("training", ranks, apart, norm), in_a_group(world, ranks, partial(training, apart, norm))
    yield ("devices",), in_a_group(world, 2, training_on_devices)
    for ranks in (2, 3):  # more than there are cores: each waits for the others' turns
        for of, keeps in STUDIES:
            samples = 8 if ranks == 2 else 4
            yield ("study", ranks, of.name, keeps), in_a_group(world, ranks, partial(study, of, keeps, 1, samples))
    yield ("study of threads",), in_a_group(world, 2, partial(study, CNN, "outputs", 2, 5))


def compile_all(world: Any, alone: Any, cases: list[Case]) -> None:
    """Fills the cache, each rank with a part of the texts, so that no rank waits for another's compiler later."""
    data = {of.name: of.data(1)[0] for of, _ in STUDIES}
    tasks: list[Callable[[], object]] = [partial(gradients, [case], 1, 0, alone) for case in cases]
    tasks += [partial(training, 0, norm, alone) for norm in (False, True)]
    tasks += [partial(prepare, study_network, data[of.name], of, keeps, 1) for of, keeps in STUDIES]
    tasks += [partial(prepare, study_by_ranks, data[of.name], of, keeps, 1, alone) for of, keeps in STUDIES]
    for task in tasks[world.rank :: world.size]:
        task()
    world.Barrier()


@QUICKLY
def prepare(make: Callable[..., Fused], x: Tensor, *given: Any) -> None:
    make(*given).prepare(x)


def main(folder: Path) -> None:
    from mpi4py import MPI

    torch.set_num_threads(1)
    machine.cores = lambda given=None: RANKS  # or ranks beyond the cores would only look on
    world, cases = MPI.COMM_WORLD, torch.load(folder / "cases.pt", weights_only=False)
    compile_all(world, MPI.COMM_SELF, cases)
    results = dict(found(world, cases))
    if world.rank == 0:
        torch.save(results, folder / "found.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
