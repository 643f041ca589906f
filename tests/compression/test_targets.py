"""A Cortex-M4 in QEMU, ONNX Runtime and PyTorch's own precisions."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

from paceline.compression.integers import IntegerModel, Precision, integers, ranges
from paceline.compression.network import Network
from paceline.compression.onnx_file import check, onnx_model
from paceline.compression.precision import precisions
from paceline.compression.reading import read
from paceline.compression.result import Bounds
from paceline.compression.samples import Samples, score_of
from paceline.compression.search import GCC, QEMU, Candidate, CortexM4, Made
from paceline.errors import MachineError, RunFailed
from tests.compression.networks import drawn

CROSS = shutil.which(GCC) is not None and shutil.which(QEMU) is not None


def small(seed: int = 3) -> tuple[nn.Module, Network, torch.Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(6 * 16, 10),
    ).eval()
    x = torch.randn(200, 1, 8, 8)
    return model, read(model, (1, 8, 8)), x


@pytest.mark.skipif(not CROSS, reason="needs gcc-arm-none-eabi and qemu-system-arm")
def test_a_cortex_computes_the_same_and_is_counted() -> None:
    _, network, x = small()
    made = []
    for precision in (Precision(8), Precision(4)):
        whole = integers(network, ranges(network, x), precision)
        candidate = Candidate(1.0, network, whole, nn.Identity())
        made += [Made(k, file, network, candidate.module) for k, file in CortexM4().files(candidate, x)]
    found = CortexM4().measure(made, x)
    by_small, by_cortex = found[0], found[1]
    assert by_small.instructions is not None
    assert by_cortex.instructions is not None
    assert network.products() < by_cortex.instructions < by_small.instructions
    assert all(0 < each.stack < 1000 for each in found)


def test_a_machine_without_the_tools_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MachineError, match=r"needs arm-none-eabi-gcc and qemu-system-arm.*apt-get install"):
        CortexM4()


@pytest.mark.parametrize("precision", [None, Precision(8), Precision(4, True)], ids=str)
def test_onnx_runtime_finds_the_same_labels(precision: Precision | None) -> None:
    pytest.importorskip("onnxruntime")
    model, network, x = small()
    whole = None if precision is None else integers(network, ranges(network, x), precision)
    module = model if whole is None else IntegerModel(whole)
    assert check(onnx_model(network, whole), module, x) >= 0.98


def test_another_network_in_onnx_is_noticed() -> None:
    pytest.importorskip("onnxruntime")
    model, _, x = small()
    _, other, _ = small(seed=4)
    with pytest.raises(RunFailed, match="the same label for only"):
        check(onnx_model(other), model, x)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(60))
def test_sixty_random_networks_are_the_same_in_onnx(seed: int) -> None:
    case = drawn(seed)
    same_in_onnx(case.model, case.x)


@pytest.mark.parametrize("padding", [0, 1])
def test_a_kernel_as_large_as_its_image_is_the_same_in_onnx(padding: int) -> None:
    torch.manual_seed(0)
    same_in_onnx(nn.Sequential(nn.Conv2d(2, 4, 3, padding=padding), nn.Flatten()).eval(), torch.randn(5, 2, 3, 3))


def same_in_onnx(model: nn.Module, x: torch.Tensor) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    network = read(model, tuple(x.shape[1:]))
    session = onnxruntime.InferenceSession(onnx_model(network), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"input": x.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), model(x), rtol=1e-3, atol=1e-4)


class Attention(nn.Module):
    """A model that has no form in C."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.body(x).mean(1))
        return scores


def test_any_model_is_measured_in_pytorchs_own_precisions() -> None:
    torch.manual_seed(0)
    model = Attention().eval()
    x = torch.randn(60, 5, 16)
    with torch.no_grad():
        samples = Samples(x, model(x).argmax(1))
    score = score_of(nn.CrossEntropyLoss(), samples.y)
    found = precisions("attention", model, samples, x, score, Bounds(within=20.0))
    assert [point.precision for point in found.points] == ["float32", "bfloat16", "int8"]
    sizes = {point.precision: point.size for point in found.points}
    assert sizes["bfloat16"] < sizes["float32"]
    assert found.trained == 1.0
    assert found.chosen is not None
    assert found.model is found.models[found.chosen.precision]
    assert precisions("attention", model, samples, x, score, Bounds(size=1)).chosen is None


class Residual(nn.Module):
    """Convolutions around which a value goes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        scores: torch.Tensor = self.head(torch.relu(x + self.norm(self.inner(x))).mean((2, 3)))
        return scores


def test_convolutions_are_in_int8_as_a_whole() -> None:
    torch.manual_seed(0)
    model, x = Residual().eval(), torch.randn(60, 1, 6, 6)
    with torch.no_grad():
        samples = Samples(x, model(x).argmax(1))
    found = precisions("residual", model, samples, x, score_of(nn.CrossEntropyLoss(), samples.y), Bounds(within=20.0))
    assert list(found.models) == ["float32", "bfloat16", "int8"]
    assert "Quantized" in type(found.models["int8"].get_submodule("first")).__module__ + str(found.models["int8"])
    assert {point.precision: point.accuracy for point in found.points}["int8"] > 0.9
