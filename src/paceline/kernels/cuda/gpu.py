"""Generated kernels on a GPU: a block of threads per sample, launched in the way that is fastest."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.kernels.compiled import Compiled, CompiledCall
from paceline.kernels.cuda.device import CompiledText, Device, Launch
from paceline.kernels.memory import Target
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan
from paceline.kernels.printers.access import Access
from paceline.kernels.printers.block import CALL, BlockNests, BlockThreads, DeviceThreads, Own
from paceline.kernels.printers.cpp import constants, losses, part, phases
from paceline.kernels.printers.printer import Printer
from paceline.kernels.printers.study import PublishedNests
from paceline.kernels.processors import how_made

# The whole text of a plan in CUDA C: a block of threads works on one sample, blocks on the samples of a batch.
#
# The statements are those of C++, and so is their arithmetic; printers/block.py says how threads share them.

CHUNKS = 128  # of a batch: blocks whose gradients are summed apart, on any device
THREADS = 512  # of a block, which has a sample to itself

REGISTERS = 64  # numbers that a thread may keep, beside which there are addresses
WORDS = ctypes.sizeof(CompiledCall) // 8
FEW = 64  # threads of a block where all that they do is to load: many blocks bring more at once
TRIAL = 64  # updates by which the ways are timed, at most
CHANGED = ("weights", "state", "gradients", "losses", "team")  # what an update writes


class Kernels(Protocol):
    """The kernels that a network becomes, and how its updates are launched."""

    #: Threads of a block.
    threads: int

    def target(self, real: str) -> Target:
        """What the text is for; `real` is float or double."""
        ...

    def own(self, plan: Plan, room: int) -> Own:
        """What lies in a block's own memory of `room` bytes."""
        ...

    def text(self, plan: Plan, rule: Rule, shared_memory: Own) -> str:
        """The whole text."""
        ...

    def launch(self, updates: Updates, compiled: Compiled, call: CompiledCall) -> None:
        """All updates of a call, which lies in the device's memory already."""
        ...

    def explain(self) -> list[str]:
        """How updates are launched; no lines if there is no choice."""
        ...


class Gpu:
    """A device, and the kernels that run on it."""

    chunks = CHUNKS
    threads = 1  # of the host

    def __init__(self, device: Device, kernels: Kernels | None = None) -> None:
        self.device, self.where, self.kernels = device, device.where, kernels or SampleKernels()
        #: By a compiled network's id: its call's place in the device's memory, and how its kernels are launched.
        self._updates: dict[int, tuple[Tensor, Updates]] = {}

    def target(self, real: str, batch_size: int) -> Target:
        return self.kernels.target(real)

    def text(self, plan: Plan, rule: Rule) -> str:
        return self.kernels.text(plan, rule, self._own(plan))

    def load(self, text: str) -> CompiledText:
        return self.device.load(text)

    def arenas(self, plan: Plan, batch: int) -> int:
        """One per chunk; none where a block's own memory has room for its sample."""
        if len(plan.phases) > 1:
            return batch
        return 0 if self._own(plan).arena else self.chunks

    def _own(self, plan: Plan) -> Own:
        """What a block's own memory has room for."""
        return self.kernels.own(plan, self.device.shared)

    def run(self, compiled: Compiled, call: CompiledCall) -> None:
        self.kernels.launch(self.launched(compiled, call), compiled, call)

    def apply(self, compiled: Compiled, call: CompiledCall) -> None:
        updates = self.launched(compiled, call)
        updates.program.launch("paceline_apply", updates.change, updates.call)

    def launched(self, compiled: Compiled, call: CompiledCall) -> Updates:
        """How the kernels of a call are launched. Copies the call to where they read it."""
        memory, updates = self._updates_of(compiled)
        words = (ctypes.c_int64 * WORDS).from_buffer(call)
        memory.copy_(torch.tensor(list(words), dtype=torch.int64))
        return updates

    def ways(self, compiled: Compiled) -> list[str]:
        """The ways of launching that this device has for the network."""
        return possible(self._updates_of(compiled)[1])

    def _updates_of(self, compiled: Compiled) -> tuple[Tensor, Updates]:
        """The place of the network's calls, and how their kernels are launched."""
        if id(compiled) not in self._updates:
            call = torch.zeros(WORDS, dtype=torch.int64, device=self.where)
            plan, threads = compiled.plan, self.kernels.threads
            phase = Launch(min(self.chunks, compiled.batch_size), threads, self._own(plan).bytes(plan))
            change = Launch(max(1, -(-plan.sizes["weights"] // FEW)), FEW)
            program: Any = compiled.program
            updates = Updates(self.device, program, phase, change, len(plan.phases), call.data_ptr())
            self._updates[id(compiled)] = call, updates
        return self._updates[id(compiled)]

    def check_places(self, *tensors: Tensor) -> None:
        """Samples may lie anywhere: what is not on the device is copied there."""

    def explain(self, compiled: Compiled) -> list[str]:
        shared_memory = self._own(compiled.plan)
        near = "a sample's numbers" + (", the weights and their gradient" if shared_memory.weights else "")
        kib = shared_memory.bytes(compiled.plan) / 1024
        return [
            f"path: generated CUDA C, {how_made(compiled)}, for {self.device}",
            f"text: {compiled.program.file.with_suffix('.cu')}",
            f"blocks: one per sample, of {self.kernels.threads} threads, at most {self.chunks} to a batch; "
            + (
                f"{near} lie in the block's own {kib:,.0f} KiB"
                if shared_memory.arena
                else f"{near} lie in the device's memory"
            ),
            *self.kernels.explain(),
        ]

    def share(self, gflops: float) -> str:
        return ""


class SampleKernels:
    """All layers of a sample by one block.

    way       of launching, a row of `ways.WAYS`; default: the fastest in the first epoch that is long enough to tell
    threads   of a block
    """

    def __init__(self, way: str = "", threads: int = THREADS) -> None:
        self.way, self.threads = way, threads
        #: Seconds of an update by way of launching, once they were timed.
        self.tried: dict[str, float] = {}

    def target(self, real: str) -> Target:
        return gpu_target(real)

    def own(self, plan: Plan, room: int) -> Own:
        """What there is room for. Where samples read each other's numbers, these lie in the device's memory."""
        shared_memory = Own()
        for more in (Own(arena=True), Own(arena=True, weights=True)):
            if len(plan.phases) == 1 and more.bytes(plan) <= room:
                shared_memory = more
        return shared_memory

    def text(self, plan: Plan, rule: Rule, shared_memory: Own) -> str:
        return text(plan, rule, self.threads, shared_memory)

    def launch(self, updates: Updates, compiled: Compiled, call: CompiledCall) -> None:
        way = "kernels" if call.update < 0 else self.way or self._fastest(updates, compiled, call)
        WAYS[way](updates, call.updates)

    def _fastest(self, updates: Updates, compiled: Compiled, call: CompiledCall) -> str:
        """Times each way on the numbers of this call, which are put back, and keeps the fastest."""
        if call.updates < CAPTURED:  # so few updates tell nothing
            return "kernels"
        before = {name: compiled.memory[name].clone() for name in CHANGED}
        count = min(TRIAL, call.updates)
        for name in possible(updates):
            for _ in range(2):  # the first time prepares
                compiled.memory["team"].zero_()
                updates.device.wait()
                begin = time.perf_counter()
                WAYS[name](updates, count)
                updates.device.wait()
                self.tried[name] = (time.perf_counter() - begin) / count
        for name, numbers in before.items():
            compiled.memory[name].copy_(numbers)
        self.way = min(self.tried, key=self.tried.__getitem__)
        return self.way

    def explain(self) -> list[str]:
        if not self.tried:
            return []
        times = ", ".join(f"{name} {seconds * 1e6:,.1f} us" for name, seconds in self.tried.items())
        return [f"an update, launched in each way: {times}; taken: {self.way}"]


def gpu_target(real: str) -> Target:
    """One sample at a time, by threads that keep so many numbers in registers."""
    return Target(4 if real == "float" else 8, real, REGISTERS, scalar=True)


END = "}  // namespace paceline"


def text(plan: Plan, rule: Rule, threads: int, shared_memory: Own) -> str:
    """Fused: all layers of a sample by one block."""
    printer = blockwise(plan, threads, shared_memory)
    lines = _head(plan, rule, shared_memory, threads, printer)
    lines += [
        "#define THREAD ((int)threadIdx.x)\n#define THREADS THREADS_OF_BLOCK\n#define OWN_ARENA blockIdx.x",
        part("block"),
    ]
    lines += printer.functions(plan)
    lines += [*phases(plan, printer), *rule.lines(), part("change"), part("grid")]
    return "\n".join([*lines, END])


def text_of_layers(plan: Plan, rule: Rule, keeps: str) -> str:
    """The published form: a kernel per layer, dealt out to all threads of the device, one sample after the other."""
    printer = layerwise(plan, keeps)
    lines = _head(plan, rule, Own(), THREADS, printer)
    lines += ["#define THREAD GRID_THREAD\n#define THREADS GRID_THREADS\n#define OWN_ARENA 0", part("block")]
    lines += printer.functions(plan)
    begin, end = plan.zeroed
    lines += [
        f"#define INPUT(g) Array<V, INPUTS>{{{printer.access.pointer('input')}}}",
        f"#define ZEROED {begin}\n#define ZEROED_END {end}",
    ]
    lines += [*rule.lines(), part("change"), part("layers")]
    lines += [f"LAYER({number}, {step.name})" for number, step in enumerate(plan.steps())]
    return "\n".join([*lines, END])


def _head(plan: Plan, rule: Rule, shared_memory: Own, threads: int, printer: Printer) -> list[str]:
    words = constants(plan, rule) | {
        "CHUNKS": CHUNKS,
        "THREADS_OF_BLOCK": threads,
        "SYNC": "__syncthreads()",
        "OWN_CALL": CALL,
        "OWN_NUMBERS": int(shared_memory.arena),
        "OWN_WEIGHTS": int(shared_memory.weights),
    }
    return [
        *(f"#define {name} {value}" for name, value in words.items()),
        *(part(name) for name in ("device", "arrays", "call", "functions")),
        *losses(plan, printer),
        part("update"),
    ]


def blockwise(plan: Plan, threads: int, shared_memory: Own) -> Printer:
    """Prints the plan for blocks of so many threads, each block with a sample to itself."""
    access = Access(plan)
    block = BlockThreads(access)
    return Printer(access, BlockNests(access, block, threads, shared_memory), block)


def layerwise(plan: Plan, keeps: str) -> Printer:
    """Prints the plan as the study published it, its rounds dealt out to all threads of the device."""
    access = Access(plan)
    return Printer(access, PublishedNests(access, keeps, DeviceThreads()), BlockThreads(access))


# How the updates of an epoch are launched: a row each.
#
#     kernels   a kernel for each phase of an update and one for its change, one after the other
#     graph     the same, many updates captured in a CUDA graph
#     waiting   one kernel for many updates; its blocks wait for each other at a barrier of the text's own
#     cluster   the same with the blocks of one cluster, whose barrier is the device's (Hopper and later)
#
# The last two save what a launch costs, which matters where an update takes microseconds. They are kept only where they
# win: the first epoch of some length times each way on copies of the numbers.

CAPTURED = 16  # updates in a graph
UPDATES = 1000  # of one launch: a screen's watchdog, and others who share the device, wait for it
CLUSTER = 8  # blocks that any device with clusters takes


@dataclass
class Updates:
    """The kernels of a call's updates, as each way of launching needs them."""

    device: Device
    program: CompiledText
    phase: Launch  # a block per chunk
    change: Launch
    phases: int
    call: int  # the address of the call, in the device's memory
    captured: Callable[[], None] | None = None

    def one(self, number: int) -> None:
        """An update, kernel by kernel."""
        for phase in range(self.phases):
            self.program.launch("paceline_phase", self.phase, self.call, number, phase)
        self.program.launch("paceline_change", self.change, self.call, number)

    def together(self) -> Launch:
        """A launch of as many blocks as can wait for each other."""
        launch = replace(self.phase, together=True)
        return replace(launch, blocks=min(launch.blocks, self.program.resident("paceline_updates", launch)))

    def cluster(self) -> Launch:
        """A launch of one cluster."""
        return replace(self.phase, blocks=min(CLUSTER, self.phase.blocks), together=True, cluster=True)


Way = Callable[[Updates, int], None]


def kernels(updates: Updates, count: int) -> None:
    """Launches every kernel of every update on its own."""
    for number in range(count):
        updates.one(number)


def graph(updates: Updates, count: int) -> None:
    """A graph launches the same each time, so updates are counted from where the last graph ended."""

    def record() -> None:
        for number in range(CAPTURED):
            updates.one(number)
        updates.program.launch("paceline_advance", Launch(1, 1), updates.call, CAPTURED)

    replays, rest = divmod(count, CAPTURED)
    if replays:
        updates.captured = updates.captured or updates.device.capture(record)
        for _ in range(replays):
            updates.captured()
    for number in range(rest):
        updates.one(number)


def waiting(updates: Updates, count: int) -> None:
    """Launches one cooperative kernel for many updates."""
    for first, last in _stretches(count):
        updates.program.launch("paceline_updates", updates.together(), updates.call, first, last)


def cluster(updates: Updates, count: int) -> None:
    """Launches one cluster of blocks for many updates."""
    for first, last in _stretches(count):
        updates.program.launch("paceline_updates_of_cluster", updates.cluster(), updates.call, first, last)


def _stretches(count: int) -> Iterator[tuple[int, int]]:
    """The updates of each launch: (the first, the one after the last)."""
    for first in range(0, count, UPDATES):
        yield first, min(first + UPDATES, count)


WAYS: dict[str, Way] = {"kernels": kernels, "graph": graph, "waiting": waiting, "cluster": cluster}


def possible(updates: Updates) -> list[str]:
    """The ways that this device has."""
    ways = ["kernels", "graph"]
    if updates.program.resident("paceline_updates", replace(updates.phase, together=True)):
        ways.append("waiting")
    if updates.program.resident("paceline_updates_of_cluster", updates.cluster()):
        ways.append("cluster")
    return ways
