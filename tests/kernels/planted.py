"""Faults that are planted in what prints a text, to show that each way to try texts out finds them.

`python -m tests.kernels.planted WAY` prints which faults a way finds. Each is tried in a process of its own, since a
text that leaves its memory may end it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

import paceline.kernels.printers.cpp as cpp
import paceline.kernels.printers.nests as nests
from paceline.kernels import build
from paceline.kernels.comparison import WrongCode
from paceline.kernels.fused import Fused
from paceline.kernels.losses import loss_kind
from paceline.kernels.memory import Memory, Target
from paceline.kernels.printers.access import OneThread
from paceline.kernels.printers.nests import PixelNests, RegisterNests
from paceline.kernels.printers.printer import Others
from paceline.kernels.processors import Cpu, Form, Runner
from paceline.kernels.weights import OneModel
from tests.kernels.conftest import precompiled, unoptimised
from tests.kernels.networks import Case, Last
from tests.kernels.sanitized import WATCHED, differs, too_short

NONE = "nothing"
SHOWN, BROKEN = 3, 9  # how a process ends
FIRST_LOOP = re.compile(r"(for \(int \w+ = \d+; \w+ < )(\d+)(; \w+(?:\+\+| \+= (\d+)))")


rounds = 1  # too many: what is left out leaves no array, and what is written beyond one may be overwritten


def images() -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1),
        nn.GELU(),
        nn.MaxPool2d(2, padding=1),
        nn.Flatten(),
        nn.Linear(80, 18),
        nn.Softmax(1),
        nn.Linear(18, 4),
    )
    return Case(model, torch.randn(5, 2, 7, 7), torch.randint(4, (5,)), nn.CrossEntropyLoss()).double()


def words() -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 5), Last(nn.LSTM(5, 9, batch_first=True), 4))
    return Case(model, torch.randint(7, (5, 6)), torch.randint(4, (5,)), nn.CrossEntropyLoss()).double()


def off_by_one(line: str) -> str:
    """A line whose first loop makes one round too many, or too few."""

    def bound(found: re.Match[str]) -> str:
        return f"{found[1]}{int(found[2]) + rounds * int(found[4] or 1)}{found[3]}"

    return FIRST_LOOP.sub(bound, line, count=1)


def wronged(owner: Any, method: str) -> None:
    """Let what a method prints have loops that are off by one."""
    real = getattr(owner, method)

    def wrong(*given: Any) -> Iterator[Any]:
        for each in real(*given):
            yield off_by_one(each) if isinstance(each, str) else (off_by_one(each[0]), *each[1:])

    setattr(owner, method, wrong)


def opened_wrongly(thread: OneThread, *given: Any) -> Any:
    lines, braces = OPENED(thread, *given)
    return [*lines[:-1], *map(off_by_one, lines[-1:])], braces


OPENED, WEIGHT = OneThread.opened, Memory._weight
SAMPLES, NUMBERS = Target(64, "double", 32), Target(64, "double", 32, pixels=True)
#: By the printer: the network, the form of its text, and how the fault is planted.
PLANTED: dict[str, tuple[Callable[[], Case], Target, Callable[[], None]]] = {
    "nests.py, sums": (images, SAMPLES, partial(wronged, nests, "parts")),
    "nests.py, functions": (images, SAMPLES, partial(wronged, RegisterNests, "apply")),
    "pixels.py, sums": (images, NUMBERS, partial(wronged, PixelNests, "_places")),
    "pixels.py, functions": (images, NUMBERS, partial(wronged, PixelNests, "apply")),
    "others.py": (images, SAMPLES, partial(wronged, Others, "lines")),
    "threads.py, loops": (images, SAMPLES, lambda: setattr(OneThread, "opened", opened_wrongly)),
    "threads.py, rows of a table": (words, SAMPLES, partial(wronged, OneThread, "scatter")),
    "cpp.py, sums over lanes": (images, SAMPLES, partial(wronged, cpp, "_chunk_end")),
    "memory.py, a missing pad": (
        images,
        SAMPLES,
        lambda: setattr(Memory, "_weight", lambda memory, buffer, lanes: WEIGHT(memory, buffer, 1)),
    ),
}


def shows(name: str, way: str) -> bool:
    """Whether a way finds a fault; "sanitizers" ends the process where it does."""
    make, target, plant = PLANTED[name]
    case = make()
    plant()
    form = Form(target=lambda real, batch: target)
    fused = Fused(OneModel(case.model), loss_kind(case.loss), len(case.x), Runner(Cpu(1, form)))
    made = fused.compiled(case.x)
    made.compared = way != "guard"
    try:
        loss, gradients = fused.loss_and_gradients(case.x, case.y)
    except WrongCode:
        return True
    if way == "numbers":
        return bool(differs(case, loss, gradients, single=False))
    return way == "sanitizers" and bool(too_short(made.plan))


def main(way: str) -> None:
    global rounds
    rounds = 1 if way == "sanitizers" else -1
    build.FLAGS = (*unoptimised(build.FLAGS), *(WATCHED if way == "sanitizers" else ()))
    os.environ["CXX"] = f"g++ -include {precompiled(build.folder() / 'headers', build.FLAGS)}"
    build.compiler.cache_clear()
    torch.set_num_threads(1)
    PLANTED[NONE] = (images, SAMPLES, lambda: None)
    ends = {name: os.waitstatus_to_exitcode(_tried(name, way)) for name in PLANTED}
    stopped = (1, -signal.SIGABRT) if way == "sanitizers" else ()  # by a sanitizer, or by a buffer
    print(json.dumps({name: end in (SHOWN, *stopped) for name, end in ends.items() if end != BROKEN}))


def _tried(name: str, way: str) -> int:
    """Try a fault in a process of its own; return how that ends."""
    if (child := os.fork()) == 0:
        try:
            os._exit(SHOWN if shows(name, way) else 0)
        except Exception:
            traceback.print_exc()
            os._exit(BROKEN)
    return os.waitpid(child, 0)[1]


if __name__ == "__main__":
    main(sys.argv[1])
