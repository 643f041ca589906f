"""The whole text of a plan in CUDA C: a block of threads works on one sample, blocks on the samples of a batch.

The statements are those of C++, and so is their arithmetic; `block.py` prints how the threads of a block share them.
"""

from __future__ import annotations

from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan
from paceline.kernels.printers.access import Access
from paceline.kernels.printers.block import CALL, BlockNests, BlockThreads, DeviceThreads, Own
from paceline.kernels.printers.cpp import constants, losses, part, phases
from paceline.kernels.printers.printer import Printer
from paceline.kernels.printers.study import PublishedNests

CHUNKS = 128  # of a batch: blocks whose gradients are summed apart, on any device
THREADS = 512  # of a block, which has a sample to itself
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
