"""Kernels for a GPU, played by the CPU: the text is the one that a GPU runs, its threads are fibres in a drawn order.

What a device alone can show (speed, memory that is not coherent, its own barriers) is not shown here.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import SearchStrategy
from torch import Tensor, nn

from paceline.kernels import fuse
from paceline.kernels.comparison import WrongCode
from paceline.kernels.cuda.device import Launch, lacking, nvidia
from paceline.kernels.cuda.gpu import Gpu, SampleKernels
from paceline.kernels.fused import Fused
from paceline.kernels.losses import loss_kind
from paceline.kernels.measure.bench import LayerKernels, barriers, many_barriers
from paceline.kernels.measure.networks import CNN, NETWORKS, LastState, Network
from paceline.kernels.measure.study import study_on
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan
from paceline.kernels.printers.block import Own
from paceline.kernels.processors import Runner
from paceline.kernels.weights import OneModel
from tests.kernels.networks import Case, drawn, encoders, examples, images, sequences
from tests.kernels.played import NARROW, Optimizer, Played, fused_on, played
from tests.kernels.test_gradients import check, compare
from tests.kernels.test_printers import small

# --- CUDA C is taken by nvcc and by NVRTC, and cuda-core asks the driver for what is meant; no GPU is needed ----------

NVCC = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")


@NVCC
def test_nvcc_takes_the_text(tmp_path: Path) -> None:
    """All layers by one block; no GPU is needed."""
    nvcc(_text_of(small().model, small().x), tmp_path, "sm_75", "-Xcicc=-O0", "-Xptxas=-O0")


@NVCC
def test_nvcc_takes_the_published_form(tmp_path: Path) -> None:
    nvcc(_published("outputs"), tmp_path, "sm_90", "-Xcicc=-O0", "-Xptxas=-O0")


@NVCC
@pytest.mark.soak
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_nvcc_takes_all_texts(architecture: str, tmp_path: Path) -> None:
    """All statements there are, both published forms, and float64; optimised, for every generation."""
    words = nn.Sequential(nn.Embedding(7, 5), LastState(5, 9))
    texts = [
        _text_of(small().model, small().x),
        _text_of(words, torch.randint(7, (21, 6))),
        _text_of(small().model.double(), small().x.double()),
        *(_published(keeps) for keeps in ("outputs", "inputs")),
    ]
    for text in texts:
        nvcc(text, tmp_path, architecture)


def nvcc(text: str, folder: Path, architecture: str, *more: str) -> None:
    source = folder / "text.cu"
    source.write_text(text)
    command = ["nvcc", "-std=c++17", f"-arch={architecture}", "-diag-suppress=177", "-Werror=all-warnings", "-cubin"]
    command += [*more, str(source), "-o", str(folder / "text.cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]


def _published(keeps: str) -> str:
    return study_on(Gpu(Played(), LayerKernels(keeps)), CNN).compiled(CNN.data(1)[0]).source


def _text_of(model: nn.Module, x: Tensor) -> str:
    return played(model, nn.CrossEntropyLoss(), partial(torch.optim.Adam, lr=0.1), 8).compiled(x).source


def test_nvrtc_takes_the_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    from paceline.kernels.cuda.device import cubin

    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    code, file, cached = cubin(_text_of(small().model, small().x), "sm_90")
    assert code
    assert not cached
    assert file.with_suffix(".cu").exists()
    assert cubin(_text_of(small().model, small().x), "sm_90")[2]


ASKED = """
import contextlib, sys, types
import torch
torch.cuda.device = lambda where: contextlib.nullcontext()
torch.cuda.init = lambda: None
torch.cuda.current_stream = lambda where: types.SimpleNamespace(cuda_stream=0)
from paceline.kernels.cuda import device, gpu as ways
text = open(sys.argv[1]).read()
gpu = device.Nvidia(1)
updates = ways.Updates(gpu, gpu.load(text), device.Launch(64, 512, 50_000), device.Launch(37, 64), 1, 1 << 45)
print(gpu, gpu.shared, ways.possible(updates))
ways.kernels(updates, 1), ways.waiting(updates, 5), ways.cluster(updates, 2)
"""


def test_the_driver_is_asked_for_what_is_meant(tmp_path: Path) -> None:
    """By cuda-core, of a driver that only says what it hears: the second GPU, 50,000 bytes of a block's own, numbers of
    64 bits, and the attributes for blocks that wait for each other (2) and for clusters (4).
    """
    pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    from paceline.kernels.cuda.device import cubin

    source = tmp_path / "text.cu"
    source.write_text(_text_of(small().model, small().x))
    cubin(source.read_text(), "sm_90")
    driver = Path(__file__).parent / "played" / "driver.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", driver, "-o", tmp_path / "libcuda.so.1", "-ldl"], check=True)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "-c", ASKED, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert done.stdout == "a played H100 (sm_90) 232448 ['kernels', 'graph', 'waiting', 'cluster']\n", done.stderr[
        -3000:
    ]
    launched = [line for line in done.stderr.splitlines() if line.startswith("launch")]
    first = 1 << 45
    assert [re.sub(r"0x\w+ ", "", line) for line in launched] == [
        f"launch grid 64 block 512 shared 50000 stream (nil) attrs 0: params {first} 0 0",
        f"launch grid 37 block 64 shared 0 stream (nil) attrs 0: params {first} 0 0",
        f"launch grid 64 block 512 shared 50000 stream (nil) attrs 1: 2=1 params {first} 0 5",
        f"launch grid 8 block 512 shared 50000 stream (nil) attrs 1: 4=8 params {first} 0 2",
    ]
    assert "attribute 8 = 50000" in done.stderr
    assert "on 1" in done.stderr


def gradients_are_pytorchs(case: Case, tolerance: float, **device: int) -> None:
    check(case, tolerance, lambda model, loss, _, batch: played(model, loss, None, batch, "kernels", **device))


@examples(5)
@given(images())
def test_images(case: Case) -> None:
    gradients_are_pytorchs(case.double(), 1e-10)


@examples(4)
@given(sequences())
def test_sequences(case: Case) -> None:
    gradients_are_pytorchs(case.double(), 1e-10)


@examples(3)
@given(encoders())
def test_encoders(case: Case) -> None:
    gradients_are_pytorchs(case.double(), 1e-10)


@examples(2)
@given(images())
def test_images_in_single_precision_and_the_devices_memory(case: Case) -> None:
    gradients_are_pytorchs(case, 1e-4, shared=0)


@pytest.mark.soak
@pytest.mark.parametrize("strategy", [images, sequences, encoders])
def test_many_networks(strategy: Callable[[], SearchStrategy[Case]]) -> None:
    for case in drawn(strategy(), 40):
        gradients_are_pytorchs(case, 1e-10)


@pytest.mark.parametrize(
    "network",
    [pytest.param(n, marks=() if n is CNN else pytest.mark.soak, id=n.name) for n in NETWORKS],
)
def test_networks_that_are_measured(network: Network) -> None:
    x, y = network.data(3)
    torch.manual_seed(0)
    case = Case(network.make(), x, y, nn.CrossEntropyLoss())
    gradients_are_pytorchs(case.double(), 1e-10)


def test_a_block_has_several_samples_where_a_batch_has_more_than_there_are_chunks() -> None:
    """Samples that meet each have an arena of their own; others use the block's one after the other."""
    torch.manual_seed(0)
    for norm in (nn.Identity(), nn.BatchNorm1d(6)):
        model = nn.Sequential(nn.Linear(5, 6), norm, nn.Tanh(), nn.Linear(6, 3))
        case = Case(model, torch.randn(300, 5), torch.randint(3, (300,)), nn.CrossEntropyLoss())
        gradients_are_pytorchs(case.double(), 1e-10)


# --- training ---------------------------------------------------------------------------------------------------------


def trained(make: Callable[[nn.Module], object], case: Case, epochs: int = 2) -> tuple[list[float], list[Tensor]]:
    model = copy.deepcopy(case.model)
    fused = make(model)
    generator = torch.Generator().manual_seed(1)
    losses = [
        fused.train_epoch(case.x, case.y, torch.randperm(len(case.x), generator=generator), seed=5)  # type: ignore[attr-defined]
        for _ in range(epochs)
    ]
    return losses, [tensor.clone() for tensor in model.state_dict().values()]


def with_momentum(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize("optimizer", [with_momentum, partial(torch.optim.AdamW, lr=0.01)])
def test_an_epoch_ends_where_it_ends_on_the_cpu(optimizer: Optimizer) -> None:
    """Dropout and batch-norm's statistics included."""
    case = small().double()
    losses, numbers = trained(lambda model: played(model, case.loss, optimizer, 8), case)
    wanted, right = trained(lambda model: fuse(model, case.loss, optimizer, 8), case)
    assert losses == pytest.approx(wanted, rel=1e-9)
    assert all(torch.allclose(one, other, rtol=1e-8, atol=1e-10) for one, other in zip(numbers, right, strict=True))


def recurrent() -> Case:
    torch.manual_seed(4)
    return Case(LastState(3, 5), torch.randn(70, 4, 3), torch.randint(10, (70,)), nn.CrossEntropyLoss())


@pytest.mark.parametrize("case", [small, recurrent])
def test_every_way_of_launching_gives_the_same_bits(case: Callable[[], Case]) -> None:
    """Whatever order threads come in, however many blocks the device holds at once; 70 samples by 2 are two graphs and
    a rest.
    """
    given_case = case()
    optimizer = partial(torch.optim.Adam, lr=0.01)

    def by(way: str, **device: int) -> tuple[list[float], list[Tensor]]:
        return trained(lambda model: played(model, given_case.loss, optimizer, 2, way, **device), given_case)

    losses, numbers = by("kernels")
    for other in (by("kernels", seed=7, shared=0), by("graph"), by("waiting"), by("waiting", seed=3, holds=1)):
        assert other[0] == losses
        assert all(torch.equal(one, two) for one, two in zip(numbers, other[1], strict=True))


def test_the_fastest_way_is_kept_and_its_trial_leaves_no_trace() -> None:
    case = recurrent()
    wanted = trained(lambda model: played(model, case.loss, with_momentum, 1), case)
    kernels = SampleKernels("", NARROW)
    found = fused_on(Played(), kernels, copy.deepcopy(case.model), case.loss, with_momentum, 1)
    tried = trained(lambda model: _with_model(found, model), case)
    assert set(kernels.tried) == {"kernels", "graph", "waiting"}
    assert kernels.way in kernels.tried
    assert tried[0] == wanted[0]
    assert "an update, launched in each way: kernels" in found.explain()


def test_ways_are_timed_once_and_not_by_few_updates() -> None:
    case = recurrent()
    device, kernels = Played(), SampleKernels("", NARROW)
    fused = fused_on(device, kernels, case.model, case.loss, with_momentum, 2)
    fused.train_epoch(case.x, case.y, torch.arange(30))
    assert not kernels.tried
    fused.train_epoch(case.x, case.y, torch.arange(40))
    assert kernels.way in kernels.tried
    before = len(device.launched)
    kernels.way = "kernels"
    fused.train_epoch(case.x, case.y, torch.arange(40))
    assert len(device.launched) == before + 2 * 20


def _with_model(fused: Fused, model: nn.Module) -> Fused:
    model.load_state_dict(fused.model.state_dict())
    return fused


# --- as published -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps", ["outputs", "inputs"])
def test_as_published_it_trains_the_same_network(keeps: str) -> None:
    x, y = CNN.data(4)
    order = torch.arange(4)
    torch.manual_seed(0)
    study = study_on(Gpu(Played(), LayerKernels(keeps, 32)), CNN)
    twin = copy.deepcopy(study.model)
    loss = study.train_epoch(x, y, order)
    wanted = fuse(twin, nn.CrossEntropyLoss(), partial(torch.optim.SGD, lr=0.05), 1).train_epoch(x, y, order)
    assert loss == pytest.approx(wanted, rel=1e-5)
    for one, other in zip(study.model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


# --- the device that is played ----------------------------------------------------------------------------------------


def test_a_wait_that_is_missing_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the orders drawn here would prove nothing."""
    case = recurrent().double()

    kernels = SampleKernels("kernels", NARROW)

    def hasty(plan: Plan, rule: Rule, own: Own) -> str:
        layers, mark, rest = SampleKernels.text(kernels, plan, rule, own).partition("// --- what follows the gradients")
        return re.sub(r"^ +SYNC;$", "", layers, flags=re.MULTILINE) + mark + rest

    monkeypatch.setattr(kernels, "text", hasty)
    fused = fused_on(Played(), kernels, copy.deepcopy(case.model), case.loss, None, 8)
    with pytest.raises(WrongCode):
        fused.loss_and_gradients(case.x[:8], case.y[:8])


def test_blocks_that_are_not_there_at_once_wait_for_ever() -> None:
    case = recurrent()
    fused = played(case.model, case.loss, with_momentum, 4)
    made, gpu = fused.compiled(case.x), fused.processor
    assert isinstance(gpu, Gpu)
    call, kept = fused.call_for(made, case.x, case.y)
    updates = gpu.launched(made, call)
    with pytest.raises(AssertionError, match="wait for each other for ever"):
        updates.program.launch("paceline_updates", Launch(4, 64, updates.phase.shared), updates.call, 0, 1)
    del kept


def test_barriers_let_all_through() -> None:
    case = recurrent()
    fused = played(case.model, case.loss, None, 4)
    assert barriers(fused, case.x, case.y, 500)[0] == 500


# --- on a GPU, where there is one -------------------------------------------------------------------------------------

GPU = pytest.mark.skipif(bool(lacking()), reason=lacking())
ON_A_GPU = examples(40)


def on_a_gpu(model: nn.Module, loss: nn.Module, optimizer: Optimizer | None, batch: int, way: str = "") -> Fused:
    runner = Runner(Gpu(nvidia(0), SampleKernels(way)))
    return Fused(OneModel(model.to("cuda"), optimizer), loss_kind(loss), batch, runner)


def moved_check(case: Case, tolerance: float) -> None:
    """Gradients are compared on the CPU."""
    twin = copy.deepcopy(case.model)
    fused = on_a_gpu(twin, case.loss, None, len(case.x), "kernels")
    loss, gradients = fused.loss_and_gradients(case.x, case.y)
    compare(case, loss, {name: gradient.cpu() for name, gradient in gradients.items()}, twin.to("cpu"), tolerance)


@GPU
@ON_A_GPU
@given(images())
def test_images_on_a_gpu(case: Case) -> None:
    moved_check(case.double(), 1e-10)


@GPU
@ON_A_GPU
@given(sequences())
def test_sequences_on_a_gpu(case: Case) -> None:
    moved_check(case.double(), 1e-10)


@GPU
@pytest.mark.parametrize("case", [small, recurrent])
def test_every_way_gives_the_same_bits_on_a_gpu(case: Callable[[], Case]) -> None:
    given_case = case()
    optimizer = partial(torch.optim.Adam, lr=0.01)
    one = on_a_gpu(copy.deepcopy(given_case.model), given_case.loss, optimizer, 2)
    ways = Gpu(nvidia(0)).ways(one.compiled(given_case.x))
    assert {"kernels", "graph", "waiting"} <= set(ways)
    found = [trained(lambda m, w=way: on_a_gpu(m, given_case.loss, optimizer, 2, w), given_case) for way in ways]  # type: ignore[misc]
    for other in found[1:]:
        assert other[0] == found[0][0]
        assert all(torch.equal(one, two) for one, two in zip(found[0][1], other[1], strict=True))


@GPU
def test_a_million_barriers_on_a_gpu() -> None:
    through, _ = many_barriers(nvidia(0), 1_000_000)
    assert through == 1_000_000


@GPU
@pytest.mark.timeout(560)
@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="no compute-sanitizer here")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_the_text_is_clean_under_compute_sanitizer(tool: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "from functools import partial\n"
        "from tests.kernels.test_cuda import on_a_gpu, recurrent, small\n"
        "for case in (small(), recurrent()):\n"
        "    for way in ('kernels', 'waiting'):\n"
        "        fused = on_a_gpu(case.model, case.loss, partial(torch.optim.Adam, lr=0.01), 8, way)\n"
        "        fused.train_epoch(case.x, case.y, torch.arange(16))\n"
    )
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, str(script)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
