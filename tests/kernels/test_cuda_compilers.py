"""CUDA C is taken by nvcc and by NVRTC, and cuda-core asks the driver for what is meant; no GPU is needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paceline.kernels.cuda.gpu import Gpu
from paceline.kernels.measure.gpu import LayerKernels
from paceline.kernels.measure.networks import CNN, LastState
from paceline.kernels.measure.study import study_on
from tests.kernels.played import Played, played
from tests.kernels.test_printers import small

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
from paceline.kernels.cuda import device, ways
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
