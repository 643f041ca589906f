"""What compiles a text and launches its kernels: a GPU, by NVRTC and the driver, on PyTorch's stream and memory.

All kernels of a text are called alike: with the address of the call, which lies in the device's memory, and two whole
numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

from paceline.kernels.build import ABI, CannotCompile, keep, kept, path_of
from paceline.kernels.layers.base import CannotFuse

OPTIONS = {"std": "c++17", "fma": True, "diag_suppress": [177]}  # a text does not use every word that it has


@dataclass(frozen=True)
class Launch:
    """The blocks that a kernel is started with."""

    blocks: int
    threads: int
    shared: int = 0  # bytes of a block's own memory
    together: bool = False  # all blocks are resident at once, and may wait for each other
    cluster: bool = False  # and they are one cluster


class CompiledText(Protocol):
    """A text, compiled."""

    file: Path
    cached: bool

    def launch(self, kernel: str, how: Launch, call: int, first: int = 0, second: int = 0) -> None: ...

    def resident(self, kernel: str, how: Launch) -> int:
        """How many such blocks the device holds at once; 0 where it has no such kernel."""
        ...


class Device(Protocol):
    """What compiles texts and launches their kernels."""

    where: torch.device
    shared: int  # bytes of memory that a block may have for itself

    def load(self, text: str) -> CompiledText: ...

    def capture(self, record: Callable[[], None]) -> Callable[[], None]:
        """A function that launches again what `record` launches now."""
        ...

    def wait(self) -> None: ...

    def __str__(self) -> str: ...


def lacking() -> str:
    """The reason why no GPU can be used here; empty if one can."""
    if not torch.cuda.is_available():
        return "PyTorch finds no GPU here"
    try:
        nvidia(torch.cuda.current_device())
    except CannotFuse as error:
        return str(error)
    return ""


@cache
def nvidia(index: int) -> Nvidia:
    """The NVIDIA device of this number."""
    return Nvidia(index)


class Nvidia:
    """An NVIDIA GPU, by the driver and PyTorch's context."""

    def __init__(self, index: int) -> None:
        try:
            import cuda.core as core
        except ImportError as error:
            raise CannotFuse(
                f"kernels for a GPU need cuda-core and NVRTC ({error}): pip install 'paceline[cuda]'; "
                "compute='autograd' does without"
            ) from error
        self.where = torch.device("cuda", index)
        with torch.cuda.device(index):  # whichever others use meanwhile
            torch.cuda.init()
            self._core, self.own = core, core.Device(index)
            self.own.set_current()
            self.name, self.architecture = self.own.name, f"sm_{self.own.arch}"
            self.clusters = self.own.compute_capability >= (9, 0)
            self.processors = int(self.own.properties.multiprocessor_count)
            self.shared = self.own.properties.max_shared_memory_per_block_optin

    def __str__(self) -> str:
        return f"{self.name} ({self.architecture})"

    def load(self, text: str) -> NvidiaProgram:
        code, file, cached = cubin(text, self.architecture)
        with torch.cuda.device(self.where):
            return NvidiaProgram(self, self._core, self._core.ObjectCode.from_cubin(code), file, cached)

    def capture(self, record: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.where), torch.cuda.graph(graph):
            record()
        return graph.replay

    def wait(self) -> None:
        torch.cuda.synchronize(self.where)


class NvidiaProgram:
    """A text compiled for an NVIDIA GPU."""

    def __init__(self, device: Nvidia, core: Any, code: Any, file: Path, cached: bool) -> None:
        self.file, self.cached = file, cached
        self._device, self._core, self._code = device, core, code
        self._kernels: dict[tuple[str, int], Any] = {}
        self._configs: dict[Launch, Any] = {}

    def launch(self, kernel: str, how: Launch, call: int, first: int = 0, second: int = 0) -> None:
        with torch.cuda.device(self._device.where):
            self._core.launch(self._stream(), self._config(how), self.kernel(kernel, how.shared), call, first, second)

    def resident(self, kernel: str, how: Launch) -> int:
        if how.cluster and not self._device.clusters:
            return 0
        with torch.cuda.device(self._device.where):
            occupancy = self.kernel(kernel, how.shared).occupancy
            if how.cluster:
                fits = int(occupancy.max_active_clusters(self._config(how), stream=self._stream()))
                return how.blocks * min(1, fits)
            each = int(occupancy.max_active_blocks_per_multiprocessor(how.threads, how.shared))
            return self._device.processors * each

    def _stream(self) -> Any:
        return self._core.Stream.from_handle(torch.cuda.current_stream(self._device.where).cuda_stream)

    def _config(self, how: Launch) -> Any:
        if how not in self._configs:
            self._configs[how] = launch_config(self._core.LaunchConfig, how)
        return self._configs[how]

    def kernel(self, name: str, shared: int) -> Any:
        """A kernel that is loaded and may use so much shared memory.

        It is loaded here since nothing may be loaded while a graph is being captured.
        """
        if (name, shared) not in self._kernels:
            from cuda.bindings import driver

            function = self._code.get_kernel(name)
            word = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            handle = function._handle
            (failed,) = driver.cuKernelSetAttribute(word, shared, handle, self._device.where.index)
            if failed == driver.CUresult.CUDA_SUCCESS:
                failed, _ = driver.cuKernelGetFunction(handle)
            if failed != driver.CUresult.CUDA_SUCCESS:
                raise CannotFuse(f"{self._device} gives no block of {name} {shared:,} bytes of memory ({failed.name})")
            self._kernels[name, shared] = function
        return self._kernels[name, shared]


def launch_config(kind: Any, how: Launch) -> Any:
    """The launch as cuda-core describes it: where there are clusters, a grid is counted in them."""
    shape = {"grid": 1, "cluster": how.blocks} if how.cluster else {"grid": how.blocks}
    together = "is_cooperative" if hasattr(kind, "is_cooperative") else "cooperative_launch"  # before version 1
    alike = {together: True} if how.together and not how.cluster else {}
    return kind(**shape, **alike, block=how.threads, shmem_size=how.shared)


def cubin(text: str, architecture: str) -> tuple[bytes, Path, bool]:
    """Compiles a text, for which no GPU is needed: (machine code, its file, whether it was in the cache)."""
    import cuda.core as core
    from cuda.bindings import nvrtc

    try:
        version = "{1}.{2}".format(*nvrtc.nvrtcVersion())
    except Exception as error:  # of the finder of libraries' own kind
        raise CannotFuse(
            f"kernels for a GPU need NVRTC, which was not found ({str(error).strip()[:200]}): pip install "
            "nvidia-cuda-nvrtc, for the CUDA that PyTorch was built for; compute='autograd' does without"
        ) from error
    key = "\0".join((str(ABI), text, architecture, version, str(OPTIONS)))
    file = path_of(f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.cubin")
    if (cached_code := kept(file)) is not None:
        return cached_code, file, True
    try:
        program = core.Program(text, code_type="c++", options=core.ProgramOptions(arch=architecture, **OPTIONS))
        code = bytes(program.compile("cubin").code)
    except Exception as error:  # of NVRTC's own kind
        raise CannotCompile(
            f"NVRTC {version} refused the generated text; this is a fault of Paceline's, compute='autograd' goes on "
            f"without.\n{str(error)[:2000]}"
        ) from error
    return code, keep(file, code, file.with_suffix(".cu"), text), False
