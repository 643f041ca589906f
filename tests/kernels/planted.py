"""Faults that are planted in what prints a text, to show that each way to try texts out finds them.

`python -m tests.kernels.planted sanitizers,numbers [PART...]` prints which faults these ways find, of all or of those
whose name begins so. Each is tried in a process of its own, since a text that leaves its memory may end it.
"""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod
from typing import Any

import torch
from torch import nn

import paceline.kernels.one_pass as one_pass
import paceline.kernels.printers.block as block
import paceline.kernels.printers.cpp as cpp
import paceline.kernels.printers.nests as nests
import paceline.kernels.printers.numpy as slow
import paceline.kernels.printers.printer as printer
import paceline.kernels.printers.study as study
from paceline.kernels.comparison import WrongCode
from paceline.kernels.cuda.gpu import Gpu, SampleKernels
from paceline.kernels.fused import Fused
from paceline.kernels.graph import describe
from paceline.kernels.ir import Loop, Repeat, Softmax
from paceline.kernels.layers import LOWER
from paceline.kernels.losses import loss_kind
from paceline.kernels.memory import Memory, Target
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan
from paceline.kernels.printers.access import OneThread
from paceline.kernels.printers.block import BlockNests, BlockThreads
from paceline.kernels.printers.nests import PixelNests, RegisterNests
from paceline.kernels.printers.printer import Others
from paceline.kernels.printers.study import GATHER, AmongRanks, among_ranks
from paceline.kernels.processors import Cpu, Form, Runner
from paceline.kernels.weights import OneModel
from tests.kernels.networks import Case, Encoder, Last
from tests.kernels.played import NARROW, Played
from tests.kernels.sanitized import Printed, differs, networks, numbers_of, too_short, written

NONE = "nothing"
ENDED, BROKEN = 0, 9  # how a process ends
SOME, TRIED = 12, 4  # numbers of a layer whose loops have more than one round; networks of a kind
BOUND = re.compile(r"(\w+ < )([1-9]\d*)(?=[;) ])(; \w+ \+= (\d+))?")

rounds = 1  # too many: what is left out leaves no array, and what is written beyond one may be overwritten


class NoLoop(Exception):
    """A layer of this kind is another view of its numbers, or the gradient of another one's."""


# --- networks ---


def images() -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1),
        nn.BatchNorm2d(5),
        nn.GELU(),
        nn.MaxPool2d(2, padding=1),
        nn.Flatten(),
        nn.Linear(80, 18),
        nn.Softmax(1),
        nn.Dropout(0.3),
        nn.Linear(18, 4),
    )
    return Case(model, torch.randn(5, 2, 7, 7), torch.randint(4, (5,)), nn.CrossEntropyLoss()).double()


def words() -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 5), Last(nn.LSTM(5, 9, batch_first=True), 4))
    return Case(model, torch.randint(7, (5, 6)), torch.randint(4, (5,)), nn.CrossEntropyLoss()).double()


def causal() -> Case:
    torch.manual_seed(0)
    model = Encoder(nn.TransformerEncoderLayer(6, 2, 9, 0.0, batch_first=True), 1, 5, 4, True)
    return Case(model, torch.randint(11, (5, 5)), torch.randint(4, (5,)), nn.CrossEntropyLoss()).double()


def errors() -> Case:
    torch.manual_seed(0)
    return Case(nn.Sequential(nn.Linear(6, 19)), torch.randn(5, 6), torch.randn(5, 19), nn.MSELoss()).double()


def padded() -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.ZeroPad2d(1), nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(75, 4))
    return Case(model, torch.randn(5, 2, 5, 5), torch.randint(4, (5,)), nn.CrossEntropyLoss()).double()


@cache
def _by_kind() -> dict[str, list[Case]]:
    """For each kind of layer, networks that have it: those first in which it gives some numbers, and that are small.

    There are several, because what follows a layer may leave out its last numbers, as a wide stride does.
    """
    ranked: dict[str, list[tuple[int, int, Case]]] = {}
    for case in (*networks(80), *written(), images(), padded()):
        layers = describe(case.model, tuple(case.x.shape[1:]), not case.x.is_floating_point()).layers
        most = {layer.kind: min(SOME, prod(layer.shape)) for layer in layers}
        for kind, count in most.items():
            ranked.setdefault(kind, []).append((-count, len(layers), case))
    return {kind: [each[-1] for each in sorted(some, key=lambda row: row[:2])[:TRIED]] for kind, some in ranked.items()}


# --- how a fault is planted ---


def off_by_one(line: str) -> str:
    """A line whose first loop makes one round too many, or too few."""

    def bound(match: re.Match[str]) -> str:
        return f"{match[1]}{int(match[2]) + rounds * int(match[4] or 1)}{match[3] or ''}"

    return BOUND.sub(bound, line, count=1)


def wronged(owner: Any, method: str) -> None:
    """Let what a method prints have loops that are off by one."""
    real = getattr(owner, method)

    def wrong(each: Any) -> Any:
        return off_by_one(each) if isinstance(each, str) else (off_by_one(each[0]), *each[1:])

    def printed(*given: Any, **named: Any) -> Any:
        lines = real(*given, **named)
        return off_by_one(lines) if isinstance(lines, str) else _each(wrong, lines)

    setattr(owner, method, printed)


def _each(wrong: Callable[[Any], Any], lines: Any) -> Any:
    """Lines as they were given: one after another, in a list, or in a list beside the number of braces."""
    if isinstance(lines, tuple):
        return [*lines[0][:-1], *map(wrong, lines[0][-1:])], lines[1]
    return list(map(wrong, lines)) if isinstance(lines, list) else map(wrong, lines)


def shifted(owner: Any, function: str) -> None:
    """Let a function be told of a loop that is longer or shorter by one."""
    real = getattr(owner, function)
    setattr(
        owner,
        function,
        lambda loop, *more: real(
            Loop(loop.name, loop.extent + rounds) if isinstance(loop, Loop) else loop + rounds, *more
        ),
    )


def lowered(kind: str) -> None:
    """Let a loop of the last statement of a kind of layer be off by one."""
    real = LOWER[kind]

    def wrong(program: Any, layer: Any, sources: list[str], number: int) -> str:
        begin = len(program.forward)
        result = real(program, layer, sources, number)
        for place, statement in list(enumerate(program.forward[begin:], begin))[::-1]:
            if (other := _other_loop(statement)) is not None:
                program.forward[place] = other
                return result
        raise NoLoop(kind)

    LOWER[kind] = wrong


def _other_loop(statement: Any) -> Any:
    """The statement, its longest loop off by one; None where there is no loop."""
    if isinstance(statement, Repeat):
        return replace(statement, body=(_other_loop(statement.body[0]), *statement.body[1:]))
    if isinstance(statement, Softmax):
        return replace(statement, along=Loop(statement.along.name, statement.along.extent + rounds))
    loops = [loop for loop in getattr(statement, "loops", ()) if loop.extent > 1]
    if not loops:
        return None
    longest = max(loops, key=lambda loop: loop.extent)
    extent = longest.extent + rounds
    return replace(statement, loops=tuple(Loop(o.name, extent) if o == longest else o for o in statement.loops))


def reworded(file: str, text: str, bound: str) -> None:
    """Let a loop of a part that is the same in all texts be off by one."""
    real = cpp.part

    def part(name: str) -> str:
        text_of = real(name)
        if name != file:
            return text_of
        assert text in text_of
        step = "LANES" if "+= LANES" in text else "1"
        return text_of.replace(text, text.replace(bound, f"{bound} {'+' if rounds > 0 else '-'} {step}"))

    everywhere(real, part)


def everywhere(real: Callable[..., Any], wrong: Callable[..., Any]) -> None:
    """Let every module that has a function call another one instead."""
    for module in list(sys.modules.values()):
        if getattr(module, real.__name__, None) is real:
            setattr(module, real.__name__, wrong)


def blocks_of_steps() -> None:
    """Let the loops over a block of an optimizer's step be off by one."""
    real = one_pass.step_text
    everywhere(real, lambda *given: real(*given).replace("q < size; q++", f"q < size + {rounds}; q++"))


def interpreted_loops() -> None:
    """Let every loop over NumPy be off by one."""
    real = slow._open
    slow._open = lambda loops, indent: real(tuple(Loop(o.name, o.extent + rounds) for o in loops), indent)


# --- the faults ---


@dataclass(frozen=True)
class Fault:
    """A network, what runs its text, and how the fault is planted."""

    case: Callable[[], Case]
    runner: Callable[[], Runner]
    plant: Callable[[], None]
    #: Networks that are tried one after another until the fault shows, in the place of one.
    some: tuple[Callable[[], Case], ...] = ()

    def tries(self) -> list[Fault]:
        return [replace(self, case=case) for case in self.some or (self.case,)]

    def sanitizers(self) -> dict[str, bool]:
        """What is found where a text ends its process, or a buffer is longer than its memory."""
        fused, case = self._fused()
        numbers_of(fused, case.x, case.y)
        return {"sanitizers": bool(too_short(fused.compiled(case.x).plan))}

    def numbers(self) -> dict[str, bool]:
        """What is found by comparing with float64, and by what every training compares before its first update."""
        fused, case = self._fused()
        (found,) = numbers_of(fused, case.x, case.y)
        shown = {"numbers": bool(differs(case, found, torch.float64)), "guard": False}
        try:
            fused.compiled(case.x).compared = False
            fused.prepare(case.x, case.y)
        except WrongCode:
            shown["guard"] = True
        return shown

    def _fused(self) -> tuple[Fused, Case]:
        case = self.case()
        self.plant()
        return Fused(OneModel(case.model), loss_kind(case.loss), len(case.x), self.runner()), case


@dataclass(frozen=True)
class PartFault:
    """A part of a text that is no network's, what compares it with Python, and how the fault is planted."""

    agrees: Callable[[], bool]
    #: What training compares it by before it uses it, if it does.
    is_accepted: Callable[[], bool] | None
    plant: Callable[[], None]

    def tries(self) -> list[PartFault]:
        return [self]

    def sanitizers(self) -> dict[str, bool]:
        self.plant()
        try:
            self.agrees()
        except IndexError:  # NumPy knows the bounds of its arrays
            return {"sanitizers": True}
        return {"sanitizers": False}

    def numbers(self) -> dict[str, bool]:
        self.plant()
        return {"numbers": not self.agrees(), "guard": self.is_accepted is not None and not self.is_accepted()}


def _printed(target: Target, keeps: str = "") -> Callable[[], Runner]:
    return lambda: Runner(Cpu(1, Printed(target, 0, 1, "", keeps).form()))


def _of_rank() -> Runner:
    def text(plan: Plan, rule: Rule) -> str:
        return GATHER.read_text() + cpp.text(plan, rule, among_ranks(plan, "outputs", 1))

    return Runner(Cpu(1, Form(target=lambda real, batch: APART, text=text)))


def _on_a_device() -> Runner:
    return Runner(Gpu(Played(), SampleKernels("", NARROW)))


def _last_part(dealing: AmongRanks, *given: Any) -> Iterator[str]:
    for line in DEALT(dealing, *given):
        yield re.sub(r"last_part\((\d+)\);", rf"last_part(\1) + {rounds};", line)


DEALT, WEIGHT = AmongRanks.dealt, Memory._weight
VECTORS = Target(64, "double", 32, shares=True)
NUMBERS, APART = replace(VECTORS, pixels=True), replace(VECTORS, scalar=True, apart=True)
SAMPLES = _printed(VECTORS)


def _faults(layers: bool) -> Iterator[tuple[str, Fault | PartFault]]:
    yield "nests.py, sums", Fault(images, SAMPLES, partial(wronged, nests, "parts"))
    yield "nests.py, functions", Fault(images, SAMPLES, partial(wronged, RegisterNests, "apply"))
    yield "nests.py, sums of pixels", Fault(images, _printed(NUMBERS), partial(wronged, PixelNests, "_places"))
    yield "nests.py, functions of pixels", Fault(images, _printed(NUMBERS), partial(wronged, PixelNests, "apply"))
    yield "nests.py, vectors of pixels", Fault(images, _printed(NUMBERS), partial(shifted, nests, "_vectors"))
    methods = {images: ("highest", "route", "shares", "passes", "noise", "meet", "track", "turn")}
    for case, names in (methods | {words: ("lookup",), causal: ("causal",)}).items():
        for name in names:
            yield f"printer.py, {name}", Fault(case, SAMPLES, partial(wronged, Others, f"_{name}"))
    yield "access.py, loops", Fault(images, SAMPLES, partial(wronged, OneThread, "opened"))
    yield "access.py, counts", Fault(words, SAMPLES, partial(wronged, OneThread, "each"))
    yield "access.py, rows of a table", Fault(words, SAMPLES, partial(wronged, OneThread, "scatter"))
    yield "printer.py, steps", Fault(words, SAMPLES, partial(wronged, printer, "opening"))
    yield "cpp.py, sums over lanes", Fault(images, SAMPLES, partial(wronged, cpp, "_chunk_end"))
    for keeps in ("outputs", "inputs"):
        yield f"study.py, {keeps}", Fault(images, _printed(APART, keeps), partial(wronged, study, "loops_of"))
    yield "study.py, parts of ranks", Fault(images, _of_rank, lambda: setattr(AmongRanks, "dealt", _last_part))
    yield "block.py, rounds", Fault(images, _on_a_device, partial(wronged, block, "dealt_out"))
    yield "block.py, sums of neighbours", Fault(images, _on_a_device, partial(wronged, BlockNests, "_together"))
    yield "block.py, counts", Fault(images, _on_a_device, partial(wronged, BlockThreads, "each"))
    yield "block.py, rows of a table", Fault(words, _on_a_device, partial(wronged, BlockThreads, "scatter"))
    yield "block.py, spans", Fault(images, _on_a_device, partial(shifted, block, "spans_of"))
    for name, case, target, file, text, bound in PARTS:
        yield name, Fault(case, _printed(target), partial(reworded, file, text, bound))
    from tests.kernels import planted_parts  # which imports the engines

    for name, agrees, is_accepted, file, text, bound in planted_parts.PARTS:
        yield name, PartFault(agrees, is_accepted, partial(reworded, file, text, bound))
    yield "one_pass.py, blocks", PartFault(planted_parts.steps, planted_parts.step_is_accepted, blocks_of_steps)
    yield "numpy.py, loops", PartFault(planted_parts.interpreted, None, interpreted_loops)
    yield (
        "memory.py, a missing pad",
        Fault(
            images,
            SAMPLES,
            lambda: setattr(Memory, "_weight", lambda memory, buffer, lanes: WEIGHT(memory, buffer, 1)),
        ),
    )
    for kind in LOWER:
        some = [partial(copy.copy, case) for case in _by_kind()[kind]] if layers else []
        yield f"layers, {kind}", Fault(images, SAMPLES, partial(lowered, kind), tuple(some))


#: Loops of the parts that are the same in all texts: a name, network, target, file, the loop and its bound.
PARTS = (
    ("group.hpp, inputs", images, VECTORS, "group", "for (; q < size; q++)", "q < size"),
    ("group.hpp, rows", images, VECTORS, "group", "for (int q = 0; q < WIDE; q += LANES)", "q < WIDE"),
    (
        "group.hpp, classes",
        images,
        VECTORS,
        "group",
        "k < N; k++) {\n            const V power",
        "k < N",
    ),
    ("group.hpp, errors", errors, VECTORS, "group", "for (int k = 0; k < count; k++)", "k < count"),
    ("functions.hpp, lanes", causal, VECTORS, "functions", "l < LANES; l++) set_lane(y", "l < LANES"),
    ("wide.hpp, numbers", images, NUMBERS, "wide", "X{(Q < N ? numbers[Q]", "Q < N"),
    ("team.hpp, groups", images, VECTORS, "team", "k < (chunk + 1) * groups / chunks; k++", "/ chunks"),
)


# --- trying them ---


def main(ways: Iterable[str], parts: Iterable[str]) -> None:
    torch.set_num_threads(1)
    parts = tuple(parts)
    layers = not parts or any(part.startswith("layers") for part in parts)
    faults: dict[str, Fault | PartFault] = {NONE: Fault(images, SAMPLES, lambda: None), **dict(_faults(layers))}
    chosen = [name for name in faults if name.startswith((NONE, *parts)) or not parts]
    found: dict[str, dict[str, bool | str]] = {name: {} for name in chosen}
    for way in ways:
        for name in chosen:
            for fault in faults[name].tries():
                shown = _tried(fault, way)
                if all(each is True for each in shown.values()):
                    break
            found[name] |= shown
    print(json.dumps(found))


def _tried(fault: Fault | PartFault, way: str) -> dict[str, bool | str]:
    """Try a fault in a process of its own: what it shows, or how it ended."""
    global rounds
    rounds = 1 if way == "sanitizers" else -1
    end, write_end = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(write_end, json.dumps(getattr(fault, way)()).encode())
            os._exit(ENDED)
        except NoLoop:
            os.write(write_end, json.dumps({way: "no loop"}).encode())
            os._exit(ENDED)
        except Exception:
            traceback.print_exc()
            os._exit(BROKEN)
    os.close(write_end)
    with os.fdopen(end, "rb") as said:
        shown = said.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == ENDED:
        found: dict[str, bool | str] = json.loads(shown)
        return found
    if way == "sanitizers" and status in (1, -signal.SIGABRT):  # by a sanitizer, or by a buffer
        return {way: True}
    return {way: f"ended with {status}"}


if __name__ == "__main__":
    main(sys.argv[1].split(","), sys.argv[2:])
