"""All printers say the same: the slow one is the reference; the sequential text, lanes of several widths, and the text
under sanitizers agree with it.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn

import paceline.kernels.machine as machine
from paceline.kernels import fuse
from paceline.kernels.compiled import canonical, tensors_of
from paceline.kernels.cpu import Cpu, Form
from paceline.kernels.fused import Fused
from paceline.kernels.graph import describe
from paceline.kernels.losses import loss_kind
from paceline.kernels.lower import lower
from paceline.kernels.printers import numpy as slow
from paceline.kernels.runner import Runner
from paceline.kernels.weights import OneModel
from tests.kernels.networks import Case, encoders, examples, sequences


def reference(case: Case, seed: int = 0) -> tuple[float, dict[str, np.ndarray]]:
    model = copy.deepcopy(case.model).double()
    graph = canonical(describe(model, tuple(case.x.shape[1:]), not case.x.is_floating_point()), model)
    tensors = tensors_of(graph, model)
    trained = {name for name, _ in model.named_parameters()} & set(tensors)
    program = lower(graph, {n: tuple(t.shape) for n, t in tensors.items()}, trained, loss_kind(case.loss))
    weights = {name: tensor.detach().numpy().copy() for name, tensor in tensors.items()}
    return slow.run(program, weights, case.x.numpy(), case.y.numpy(), seed)


def agree(case: Case, seed: int = 0, make: Callable[..., Fused] = fuse) -> None:
    double = case.double()
    loss, gradients = make(double.model, case.loss, None, len(case.x)).loss_and_gradients(double.x, double.y, seed)
    wanted, slowly = reference(double, seed)
    assert loss == pytest.approx(wanted, rel=1e-10)
    for name, gradient in gradients.items():
        assert np.allclose(gradient.numpy(), slowly[name].reshape(gradient.shape), rtol=1e-9, atol=1e-11), name


@pytest.mark.usefixtures("quickly_compiled")
@examples(4)
@given(sequences())
def test_numpy_says_the_same_of_sequences(case: Case) -> None:
    agree(case)


@pytest.mark.usefixtures("quickly_compiled")
@examples(4)
@given(encoders())
def test_numpy_says_the_same_of_encoders(case: Case) -> None:
    agree(case)


def small() -> Case:
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1), nn.BatchNorm2d(5), nn.GELU(), nn.MaxPool2d(2, padding=1), nn.Dropout(0.3),
        nn.Conv2d(5, 3, 2, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(3, 18), nn.Tanh(), nn.Linear(18, 4),
    )  # fmt: skip
    return Case(model, torch.randn(21, 2, 7, 6), torch.randint(4, (21,)), nn.CrossEntropyLoss())


@pytest.mark.usefixtures("quickly_compiled")
def test_numpy_draws_the_same_dropout() -> None:
    agree(small(), seed=12345678901234)


@pytest.mark.usefixtures("quickly_compiled")
def test_numpy_says_the_same_of_every_activation() -> None:
    torch.manual_seed(3)
    kinds = (nn.ReLU(), nn.Sigmoid(), nn.Tanh(), nn.GELU(), nn.GELU("tanh"))
    parts = [part for kind in kinds for part in (nn.Linear(5, 5), kind)]
    agree(Case(nn.Sequential(*parts), torch.randn(4, 5), torch.randint(5, (4,)), nn.CrossEntropyLoss()))


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize(
    "change", [{"bytes": 16, "registers": 16}, {"bytes": 32, "registers": 16}, {"scalar": True}, {"pixels": True}]
)
def test_any_width_of_vector_is_the_same_program(change: dict[str, object]) -> None:
    here = machine.target("double")
    form = Form(target=lambda real, batch: replace(here, **change))

    def make(model: nn.Module, loss: nn.Module, optimizer: None, batch: int) -> Fused:
        return Fused(OneModel(model), loss_kind(loss), batch, Runner(Cpu(2, form)))

    agree(small(), make=make)


@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizers' libraries are Linux's")
@pytest.mark.parametrize(
    "runs",
    [
        pytest.param("(images, 21), (words, 16)", id="some"),
        pytest.param(
            ", ".join(f"({name}, {batch})" for name in ("images", "words") for batch in (1, 2, 3, 16, 17, 21)),
            marks=pytest.mark.soak,
            id="all",
        ),
    ],
)
def test_the_text_is_clean_under_sanitizers(runs: str, tmp_path: Path) -> None:
    """Of addresses and undefined behaviour, in a process of its own: a whole training and a single batch."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "from functools import partial\n"
        "from torch import nn\n"
        "from paceline.kernels import build, fuse\n"
        "build.FLAGS = (*build.FLAGS, '-O0', '-fsanitize=address,undefined', '-fno-sanitize-recover=all')\n"
        "from tests.kernels.networks import Last\n"
        "from tests.kernels.test_printers import small\n"
        "case = small()\n"
        "words = nn.Sequential(nn.Embedding(7, 5), Last(nn.LSTM(5, 9, batch_first=True), 4))\n"
        "tokens = torch.randint(7, (21, 6))\n"
        "images, words = (case.model, case.x), (words, tokens)\n"
        f"for (model, x), batch in ({runs}):\n"
        "    fused = fuse(model, case.loss, partial(torch.optim.Adam, lr=0.01), batch, threads=2)\n"
        "    batch > 1 and fused.train_epoch(x, case.y, torch.randperm(21))\n"
        "    fused.loss_and_gradients(x[:batch + 1], case.y[:batch + 1])\n"
        "print('clean')\n"
    )
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True)
    environment = {
        "LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0", "PACELINE_CACHE": str(tmp_path),
        "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(filter(None, sys.path)),
    }  # fmt: skip
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "clean\n"), done.stderr[-3000:]
