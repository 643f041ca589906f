"""Networks without a form in whole numbers: their programs as C, in float32, against PyTorch."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import paceline as pl
from paceline.compression.building import STRICT, Built, compiler, libraries
from paceline.compression.emission.c_file import program_file
from paceline.compression.network import ENDS, CannotEmit, LayerProgram
from paceline.compression.reading import network_of
from paceline.errors import UsageError

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")


class Recurrent(nn.Module):
    """A layer over a sequence, and a head on its last step."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.layer(x)
        scores: Tensor = self.head(states[:, -1])
        return scores


class Words(nn.Module):
    """A transformer over words, which ends in logarithms."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 24, activation="gelu", batch_first=True, norm_first=norm_first)
        self.words, self.body = nn.Embedding(20, 16), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.places, self.head = nn.Parameter(torch.randn(1, 7, 16)), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.log_softmax(self.head(self.body(self.words(x) + self.places).mean(1)), 1)


def images() -> nn.Module:
    """Margins, statistics and a norm over channels' pixels."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.SiLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Flatten(2),
        nn.LayerNorm(9),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(36, 3),
    )


NETWORKS = {
    "lstm": (lambda: Recurrent(nn.LSTM(3, 5, 2, batch_first=True, dropout=0.1), 5), torch.randn(30, 6, 3)),
    "gru": (lambda: Recurrent(nn.GRU(3, 5, bidirectional=True, batch_first=True), 10), torch.randn(30, 6, 3)),
    "words": (lambda: Words(False), torch.randint(20, (30, 7))),
    "norm first": (lambda: Words(True), torch.randint(20, (30, 7))),
    "images": (images, torch.randn(30, 2, 6, 5)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_program_computes_what_pytorch_computes(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, x = NETWORKS[name]
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean, module.running_var = torch.randn(4), torch.rand(4) + 0.5
    model.eval()
    network = network_of(model, x)
    assert isinstance(network, LayerProgram)
    file = program_file(network, model, x)
    with Built(file, network.numbers_in, network.numbers_out) as built, torch.no_grad():
        found = torch.cat([built.run(x[15:]), built.run(x[:15])]).roll(15, 0)  # a call leaves nothing behind
        found = ENDS[network.end](found) if network.end else found
        torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)
    if name in ("gru", "norm first"):
        return  # one file of each kind under the sanitizers is enough
    source, program = tmp_path / "net.c", tmp_path / "net"
    source.write_text(file.text)
    command = [*compiler(), *STRICT, *file.flags, *SANITIZERS, str(source), "-o", str(program), *libraries(file)]
    subprocess.run(command, check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_recurrent_run_is_compressed_in_float32() -> None:
    torch.manual_seed(0)
    x = torch.randn(400, 6, 3)
    y = (x.sum((1, 2)) > 0).long() + (x[:, :, 0].sum(1) > 0).long()
    job = pl.Job(
        lambda: Recurrent(nn.GRU(3, 8, batch_first=True), 8),
        (x, y),
        nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=0.01),
        batch_size=50,
        epochs=2,
    )
    said: list[str] = []
    found = pl.compress(pl.train(job, folder=None), say=said.append)
    assert [(point.precision, point.kernel) for point in found.points] == [("float32", "loops")]
    assert found.chosen is not None
    assert "in float32 only: layer layer (gru) has no form in whole numbers" in said
    with pytest.raises(UsageError, match=r"torch\.onnx\.export"):
        found.onnx()


def test_what_has_no_kernel_is_refused_by_name() -> None:
    with pytest.raises(CannotEmit, match=r"PixelShuffle.* has no kernel.*`--precision-only`"):
        network_of(nn.Sequential(nn.PixelShuffle(2)), torch.randn(3, 4, 4, 4))
