"""A device for kernels, played by the CPU: the very text that a GPU runs, its threads as fibres in a drawn order."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import nn

from paceline import user_cache
from paceline.kernels.build import compiler, folder
from paceline.kernels.cuda.device import Launch
from paceline.kernels.cuda.gpu import Gpu, Kernels, SampleKernels
from paceline.kernels.fused import Fused
from paceline.kernels.losses import loss_kind
from paceline.kernels.processors import Runner
from paceline.kernels.weights import OneModel
from tests.compiled import one_at_a_time

HERE = Path(__file__).parent
SCREEN = 48 << 10  # bytes of a block's own memory, as every GPU has
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-w")
NARROW = 64  # threads of a block, so that fibres are few

Optimizer = Callable[..., torch.optim.Optimizer]


@cache
def header() -> Path:
    """The header that plays the device, precompiled where the compiler can do that."""
    text = (HERE / "played.hpp").read_bytes()
    key = hashlib.sha256(text + repr((FLAGS, compiler().version)).encode()).hexdigest()[:24]
    there = folder() / f"played-{key}.hpp"
    compiled((*FLAGS, "-x", "c++-header", str(HERE / "played.hpp")), there.with_suffix(".hpp.gch"))
    user_cache.write(there, text)
    return there


def compiled(words: tuple[str, ...], file: Path) -> None:
    """Compiles to a file, unless another process has."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(file.with_name(f"{file.name}.lock")):
        if file.exists():
            return
        draft = file.with_name(f"{file.name}.draft")
        done = subprocess.run((compiler().command[0], *words, "-o", str(draft)), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:3000]
        draft.replace(file)


class Played:
    where = torch.device("cpu")

    def __init__(self, shared: int = SCREEN, seed: int = 0, holds: int = 1 << 20) -> None:
        self.shared, self.seed, self.holds = shared, seed, holds
        self.launched: list[str] = []

    def __str__(self) -> str:
        return "a CPU that plays a device"

    def load(self, text: str) -> PlayedProgram:
        key = hashlib.sha256((text + (HERE / "played.hpp").read_text()).encode()).hexdigest()[:24]
        file = folder() / f"played-{key}.so"
        cached = file.exists()
        if not cached:
            source = file.with_suffix(".cu")
            user_cache.write(source, text.encode())
            compiled((*FLAGS, "-shared", "-x", "c++", "-include", str(header()), str(source)), file)
        return PlayedProgram(self, ctypes.CDLL(str(file)), file, cached)

    def capture(self, record: Callable[[], None]) -> Callable[[], None]:
        return record

    def wait(self) -> None:
        """A launch here returns when it is over."""


class PlayedProgram:
    def __init__(self, device: Played, loaded: ctypes.CDLL, file: Path, cached: bool) -> None:
        self.device, self.loaded, self.file, self.cached = device, loaded, file, cached

    def launch(self, kernel: str, how: Launch, call: int, first: int = 0, second: int = 0) -> None:
        self.device.launched.append(kernel)
        self.device.seed += 1
        arguments = (ctypes.c_int64 * 3)(call, first, second)
        whole = [ctypes.c_int64(n) for n in (how.blocks, how.threads, how.shared, how.together)]
        entry = ctypes.cast(getattr(self.loaded, kernel), ctypes.c_void_p)
        failed = self.loaded.played_launch(entry, *whole, ctypes.c_uint64(self.device.seed), arguments)
        assert not failed, f"{kernel}: threads wait for each other for ever"

    def resident(self, kernel: str, how: Launch) -> int:
        return self.device.holds if hasattr(self.loaded, kernel) else 0


def fused_on(
    device: Played, kernels: Kernels, model: nn.Module, loss: nn.Module, optimizer: Optimizer | None, batch: int
) -> Fused:
    return Fused(OneModel(model, optimizer), loss_kind(loss), batch, Runner(Gpu(device, kernels)))


def played(
    model: nn.Module, loss: nn.Module, optimizer: Optimizer | None, batch: int, way: str = "kernels", **device: int
) -> Fused:
    """The network on a played device, with blocks of few threads."""
    return fused_on(Played(**device), SampleKernels(way, NARROW), model, loss, optimizer, batch)
