"""C files compute what their references compute: the same bits in whole numbers, and float32 but for rounding."""

from __future__ import annotations

import platform
import shutil
import subprocess
from math import prod
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.compression.building import STRICT, Built, compiler, libraries
from paceline.compression.emission.c_file import CFile, float_file, integer_file
from paceline.compression.emission.kernels import PLAIN, SMALL, WIDE, Kernel
from paceline.compression.integers import IntegerModel, IntegerNetwork, Precision, compute, integers, ranges
from paceline.compression.network import ENDS, CannotEmit, Network
from paceline.compression.reading import read
from tests.compression.networks import Case, drawn

PRECISIONS = (Precision(8), Precision(4), Precision(8, True), Precision(4, True))
#: (network, kernel, precision); gcc once thought that number 17, with all its loops unrolled, wrote beyond its values.
FEW = ((0, SMALL, 0), (1, WIDE, 1), (2, SMALL, 2), (3, WIDE, 3), (17, PLAIN, 0))
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
#: Compilers that are there, at every level of optimisation.
LEVELS = [(name, level) for name in filter(shutil.which, ("gcc", "clang")) for level in ("-O0", "-O2", "-O3")]


def whole(network: Network, case: Case, precision: Precision) -> IntegerNetwork:
    return integers(network, ranges(network, case.x), precision)


def results(file: CFile, network: Network, x: torch.Tensor) -> torch.Tensor:
    with Built(file, prod(network.inputs), prod(network.last.shape)) as built:
        return built.run(x)


def check(seed: int, kernels: tuple[Kernel, ...], precisions: tuple[Precision, ...]) -> None:
    case = drawn(seed)
    network = read(case.model, tuple(case.x.shape[1:]))
    with torch.no_grad():
        expected = case.model(case.x).reshape(len(case.x), -1)
    torch.testing.assert_close(compute(network, case.x).reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)
    found = results(float_file(network, case.x), network, case.x)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    for precision in precisions:
        made = whole(network, case, precision)
        numbers = IntegerModel(made)(case.x).reshape(expected.shape)
        for kernel in kernels:
            found = results(integer_file(made, kernel, case.x), network, case.x)
            assert bool((found == numbers).all()), f"seed {seed}, {precision}, {kernel.name}"


@pytest.mark.parametrize(("seed", "kernel", "precision"), FEW, ids=[f"{few[0]}" for few in FEW])
def test_random_networks_give_the_same_bits(seed: int, kernel: Kernel, precision: int) -> None:
    check(seed, (kernel,), (PRECISIONS[precision],))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(60))
def test_sixty_random_networks_give_the_same_bits(seed: int) -> None:
    check(seed, (SMALL, PLAIN, WIDE), PRECISIONS)


class Written(nn.Module):
    """What people write around layers: numbers that are scaled, a mean over pixels, a softmax, an empty dimension."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(2, 5, 3), nn.Linear(5, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = nn.functional.selu(self.body(2 * x.float() / 255 - 1))
        highest = nn.functional.adaptive_max_pool2d(seen, 1).flatten(1)
        scores: torch.Tensor = self.head(torch.tanh(seen.mean((-2, -1))) + highest)
        return torch.softmax(scores, 1) if self.head.out_features > 1 else scores.squeeze(-1)


@pytest.mark.parametrize("outputs", [1, 4])
def test_what_is_written_around_layers_gives_the_same_bits(outputs: int) -> None:
    torch.manual_seed(0)
    model, x = Written(outputs).eval(), torch.randint(256, (30, 2, 7, 6), dtype=torch.uint8)
    network = read(model, (2, 7, 6))
    expected = compute(network, x)
    torch.testing.assert_close(ENDS[network.end](expected) if network.end else expected, model(x).detach())
    made = integers(network, ranges(network, x), Precision(8))
    assert bool((results(integer_file(made, SMALL, x), network, x) == IntegerModel(made)(x).reshape(30, -1)).all())
    torch.testing.assert_close(
        results(float_file(network, x), network, x), expected.reshape(30, -1), rtol=1e-3, atol=1e-4
    )


def test_eight_bits_are_close_to_the_model() -> None:
    torch.manual_seed(1)
    case = Case(nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 10)), torch.randn(200, 30))
    network = read(case.model, (30,))
    expected = compute(network, case.x)
    span = float(expected.max() - expected.min())
    error = {str(p): float((IntegerModel(whole(network, case, p))(case.x) - expected).abs().max()) for p in PRECISIONS}
    assert error["int8"] < 0.03 * span
    assert error["int8"] < error["int4"] < 0.4 * span


def built_program(
    file: CFile, folder: Path, *options: str, by: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    source, program = folder / "net.c", folder / "net"
    source.write_text(file.text)
    command = [*(by or compiler()), *STRICT, *file.flags, *options, str(source), "-o", str(program), *libraries(file)]
    subprocess.run(command, check=True)
    return subprocess.run([str(program)], capture_output=True, text=True)


@pytest.mark.parametrize("kernel", [SMALL, WIDE], ids=lambda kernel: kernel.name)
def test_the_file_checks_itself_under_sanitizers(kernel: Kernel, tmp_path: Path) -> None:
    case = drawn(7)
    network = read(case.model, tuple(case.x.shape[1:]))
    file = integer_file(whole(network, case, Precision(4)), kernel, case.x)
    done = built_program(file, tmp_path, *SANITIZERS)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("the recorded results: 0 wrong")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(60))
def test_sixty_files_check_themselves(seed: int, tmp_path: Path) -> None:
    """Each in floats and in whole numbers: under sanitizers, and by one compiler at one level, in turn."""
    case, (name, level) = drawn(seed), LEVELS[seed % len(LEVELS)]
    network = read(case.model, tuple(case.x.shape[1:]))
    made = whole(network, case, PRECISIONS[seed // 3 % len(PRECISIONS)])
    for file in (float_file(network, case.x), integer_file(made, (SMALL, PLAIN, WIDE)[seed % 3], case.x)):
        done = built_program(file, tmp_path, *SANITIZERS)
        assert (done.returncode, done.stderr) == (0, "")
        done = built_program(file, tmp_path, level, by=(name,))
        assert (done.returncode, done.stderr) == (0, ""), (name, level, done.stdout)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names a processor of another kind")
def test_floats_compile_for_a_processor_whose_vectors_are_narrow(tmp_path: Path) -> None:
    case = drawn(7)
    file = float_file(read(case.model, tuple(case.x.shape[1:])), case.x)
    done = built_program(file, tmp_path, "-march=x86-64")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_changed_weight_is_noticed(tmp_path: Path) -> None:
    case = drawn(7)
    network = read(case.model, tuple(case.x.shape[1:]))
    file = integer_file(whole(network, case, Precision(8)), SMALL, case.x)
    head, _, rest = file.text.partition("net_test_scores[NET_TESTS][NET_OUTPUTS] = {\n    {")
    first, _, rest = rest.partition(",")
    wrong = CFile(
        f"{head}net_test_scores[NET_TESTS][NET_OUTPUTS] = {{\n    {{{int(first) + 1},{rest}", file.flags, 0, True
    )
    done = built_program(wrong, tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("1 of ")


def test_whole_numbers_need_neither_malloc_nor_libm() -> None:
    case = drawn(7)
    network = read(case.model, tuple(case.x.shape[1:]))
    text = integer_file(whole(network, case, Precision(8)), WIDE, case.x).text
    assert "malloc" not in text
    assert "math.h" not in text


@pytest.mark.parametrize(
    ("model", "shape", "says"),
    [
        (nn.LSTM(3, 4, batch_first=True), (5, 3), "the model returns more than one tensor"),
        (
            nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)),
            (8,),
            "layer 1 .layer_norm. has no form in whole numbers",
        ),
        (nn.Linear(4, 4), (3, 4), "a dense layer on each step of a sequence, which has no form in whole numbers"),
    ],
    ids=["lstm", "layer norm", "sequence"],
)
def test_what_cannot_be_emitted_is_refused_by_name(model: nn.Module, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(CannotEmit, match=says):
        read(model, shape)
