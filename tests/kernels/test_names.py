"""Modules and parameters of any name: nothing of it is code, and no two values are one."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.compression.building import compiled
from paceline.compression.emission.c_file import float_file, integer_file, program_file
from paceline.compression.emission.kernels import PLAIN
from paceline.compression.integers import Precision, integers, ranges
from paceline.compression.network import LayerProgram
from paceline.compression.reading import network_of, read
from paceline.kernels import CannotFuse, fuse
from tests.test_names import HOSTILE

SGD = partial(torch.optim.SGD, lr=0.1)
#: Of these names is each text; `add_module` refuses the others.
NAMES = ["a\nthis is no C++;\n//", "*/ nor C; /*", *(name for name in HOSTILE if name and "." not in name)]
X, Y = torch.randn(20, 6), torch.randint(4, (20,))


class Named(nn.Module):
    """Two layers of these names side by side, and perhaps a parameter of another."""

    def __init__(self, first: str, second: str, parameter: str = "") -> None:
        super().__init__()
        self.names = first, second, parameter
        for name in (first, second):
            self.add_module(name, nn.Linear(6, 4))
        if parameter:
            self.register_parameter(parameter, nn.Parameter(torch.randn(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, parameter = self.names
        y: torch.Tensor = torch.tanh(getattr(self, first)(x) * getattr(self, second)(x))
        return y * getattr(self, parameter) if parameter else y


def trained_alike(model: nn.Module) -> bool:
    """Whether generated code trains a model as PyTorch does."""
    twin, loss = copy.deepcopy(model), nn.CrossEntropyLoss()
    fuse(model, loss, SGD, 10).train_epoch(X, Y, torch.arange(20))
    optimizer = SGD(twin.parameters())
    for start in (0, 10):
        optimizer.zero_grad()
        loss(twin(X[start : start + 10]), Y[start : start + 10]).backward()
        optimizer.step()
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    return all(torch.allclose(one, other, atol=1e-5) for one, other in pairs)


def deep(names: list[str]) -> nn.Sequential:
    """Layers of these names, one after another."""
    model = nn.Sequential()
    for name in names:
        model.add_module(name, nn.Linear(6, 6))
    model.add_module("last", nn.Linear(6, 4))
    return model


@pytest.mark.usefixtures("quickly_compiled")
def test_a_name_of_a_module_is_no_code() -> None:
    assert trained_alike(deep(NAMES))


@pytest.mark.parametrize("form", ["floats", "bytes", "loops"])
def test_a_name_of_a_module_is_no_code_in_a_c_file(form: str, tmp_path: Path) -> None:
    model = deep(NAMES).eval()
    if form == "loops":
        model.add_module("norm\n", nn.LayerNorm(4))  # which has no form in whole numbers
        found = network_of(model, X)
        assert isinstance(found, LayerProgram)
        file = program_file(found, model, X)
    else:
        network = read(model, (6,))
        whole = integers(network, ranges(network, X), Precision(8))
        file = float_file(network, X) if form == "floats" else integer_file(whole, PLAIN, X)
    assert compiled(file, tmp_path / "net.o").exists()
    assert all(ord(character) < 128 for character in file.text)


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize(
    "names", [("a b", "a_b"), ("input", "scores"), ("rows_of_scores", "share"), ("p", "q", "mul"), ("p", "q", "d_tanh")]
)
def test_names_that_generated_code_has_itself_are_not_mistaken(names: tuple[str, ...]) -> None:
    assert trained_alike(Named(*names))


@pytest.mark.parametrize(
    "names", [("p", "d_p"), ("p", "q", "input"), ("p", "q", "share"), ("p", "q", "scores"), ("p", "q", "d_mul")]
)
def test_a_name_that_could_be_mistaken_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(CannotFuse, match=r"two values called '\w+(\.\w+)?': rename the layer or the parameter"):
        trained_alike(Named(*names))
