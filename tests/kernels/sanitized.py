"""Texts that are tried out: each buffer knows how many numbers it has, the compiler's sanitizers watch everything else.

A text that was built so may end its process, so this is done in a child: `python -m tests.kernels.sanitized` draws
networks, prints each in the form that its number chooses, trains it and compares its numbers with PyTorch's.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import cloudpickle
import torch
from torch import nn

import paceline.kernels.machine as machine
import paceline.kernels.processors as processors
import paceline.kernels.replicas as replicas
from paceline.kernels import CannotFuse, build, fuse_replicas
from paceline.kernels.comparison import Numbers, _Rounded, by_autograd, without_dropout
from paceline.kernels.fused import Fused
from paceline.kernels.losses import loss_kind
from paceline.kernels.memory import Target
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan
from paceline.kernels.printers import cpp
from paceline.kernels.printers.study import published
from paceline.kernels.processors import Cpu, Form, Runner
from paceline.kernels.replicas import Forward, Replicas
from paceline.kernels.weights import OneModel
from tests.compiled import one_at_a_time, precompiled
from tests.kernels.networks import Case, drawn, encoders, images, operations, sequences
from tests.kernels.programs import PROGRAMS

#: Flags that stand behind all others, so that a text is not optimised. The check of an address is a call: written out,
#: checks take as long to compile as the text itself.
WATCHED = (
    "-O0",
    "-DCHECKED",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "--param=asan-instrumentation-with-call-threshold=0",
)
#: The sanitizer of addresses does not say who allocated what, nor keep much of what was freed.
QUICKLY = "detect_leaks=0:malloc_context_size=0:quarantine_size_mb=16"
#: Rounding that is no fault: multiples of what PyTorch's own float32 is wrong by, and of float32's last place.
ROUNDING = 16
#: Times that PyTorch's float32 is asked, since it is right by chance: of weights that differ by their rounding.
SHAKEN = 4
#: Scores, relative to the largest.
SCORES = {torch.float32: 1e-3, torch.float64: 1e-10}
#: Networks whose texts are compiled at once, and the functions of a text.
AT_ONCE = 6
ENTRIES = ("paceline_run", "paceline_apply", "paceline_step", "paceline_scores", "paceline_among")


def in_child(
    arguments: list[str], common: Path, flags: tuple[str, ...] = WATCHED, timeout: float = 3000
) -> subprocess.CompletedProcess[str]:
    """Run Python; all processes that it starts compile with these flags, and have the library of the sanitizers.

    It has to come before all other libraries.
    """
    folder = common / f"with{''.join(flags)}"
    environment = {**os.environ, "PACELINE_CACHE": str(folder), "PYTHONPATH": ":".join(filter(None, sys.path))}
    environment["CXX"] = str(_compiler(folder, flags))
    if any(flag.startswith("-fsanitize=address") for flag in flags):
        # With the library of C++, in which the sanitizers look at once for what throws exceptions.
        files = [f"-print-file-name={name}" for name in ("libasan.so", "libstdc++.so.6")]
        found = [subprocess.run(["g++", file], capture_output=True, text=True).stdout.strip() for file in files]
        environment |= {"LD_PRELOAD": " ".join(found), "ASAN_OPTIONS": QUICKLY}
        environment["PYTHONPATH"] = f"{Path(__file__).with_name('poison')}:{environment['PYTHONPATH']}"
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout)


def _compiler(folder: Path, flags: tuple[str, ...]) -> Path:
    """A compiler that adds flags behind all others, with the headers of every text ready; without the sanitizers."""
    program = folder / "compiler"
    with one_at_a_time(folder.with_suffix(".lock")):
        if not program.exists():
            header = precompiled(folder, (*build.FLAGS, *flags))
            draft = program.with_suffix(".draft")
            draft.write_text(f'#!/bin/sh\nLD_PRELOAD= exec g++ -include {header} "$@" {" ".join(flags)}\n')
            draft.chmod(0o700)
            draft.rename(program)
    return program


# --- the forms of a text ---


@dataclass(frozen=True)
class Printed:
    """How a network's text is printed and called."""

    target: Target
    samples: int  # of a batch; 0 for all
    threads: int
    ends: str  # what is tried besides the gradient: "training", "scores" or a "stack"
    published: str = ""  # which numbers the published study's text keeps; empty where the text is Paceline's

    def form(self) -> Form:
        return Form(target=lambda real, batch: self.target, text=self._text)

    def _text(self, plan: Plan, rule: Rule) -> str:
        return cpp.text(plan, rule, published(plan, self.published, self.threads) if self.published else None)


def _targets() -> list[tuple[Target, str]]:
    """Every width in both types, samples side by side and one by one; scalar; and the published forms."""
    kinds: tuple[dict[str, bool], ...] = ({}, {"pixels": True})
    vectors = [
        Target(width, real, 32 if width == 64 else 16, shares=True, **kind)
        for width, real, kind in product((16, 32, 64), ("float", "double"), kinds)
    ]
    scalars = [Target(64, real, scalar=True, shares=True) for real in ("float", "double")]
    apart = [replace(scalar, apart=True) for scalar in scalars]
    return [*((target, "") for target in (*vectors, *scalars)), *zip(apart, ("outputs", "inputs"), strict=True)]


TARGETS = _targets()
WAYS = list(product(("training", "scores", "stack"), (1, 2), (1, 2, 3, 0)))


def form(number: int) -> Printed:
    """Of 384 numbers in a row, each has another target, end, threads or batch."""
    (target, keeps), row = TARGETS[number % len(TARGETS)], number // len(TARGETS)
    ends, threads, samples = WAYS[(row + 5 * number) % len(WAYS)]
    return Printed(target, samples, threads, ends, keeps)


def networks(count: int) -> list[Case]:
    """So many networks of all layers, each kind in turn; drawn once for all processes of a cache."""
    file = build.folder() / f"networks-{count}"
    file.parent.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(file.with_suffix(".lock")):
        if not file.exists():
            each = math.ceil(count / 4)
            by_kind = [drawn(strategy(), each) for strategy in (images, sequences, encoders, operations)]
            file.write_bytes(cloudpickle.dumps([case for row in zip(*by_kind, strict=True) for case in row]))
    cases: list[Case] = cloudpickle.loads(file.read_bytes())
    return cases[:count]


def written() -> list[Case]:
    """Networks as people write them."""
    return [_written(name) for name in PROGRAMS]


def _written(name: str) -> Case:
    torch.manual_seed(0)
    model, x, y, loss = PROGRAMS[name]()
    return Case(model, x, y, loss.double() if isinstance(loss, nn.Module) else loss).double()


# --- trying a network out ---


class Trial:
    """A network in a form, compiled; the copies of a stack differ in their weights."""

    def __init__(self, case: Case, printed: Printed) -> None:
        case = self.case = _of_batch(case, printed.samples)
        self.printed, self.dtype = printed, torch.float32 if printed.target.real == "float" else torch.float64
        self.x, self.y = (t.to(self.dtype) if t.is_floating_point() else t for t in (case.x, case.y))
        self.cases = [case]
        self.stack: Replicas | None = None
        self.forward: Forward | None = None
        if printed.ends == "stack":
            with contextlib.suppress(CannotFuse):  # some networks are not trained in a stack
                self._stack()
        if self.stack is None:
            self._alone()

    def _stack(self) -> None:
        cases = [
            replace(self.case, model=_shaken(self.case.model, 0.1 * k)) for k in range(min(3, self.printed.target.wide))
        ]
        models = [copy.deepcopy(each.model).to(self.dtype) for each in cases]
        rates = [partial(torch.optim.SGD, lr=0.01)] * len(models)
        with _vectors_of(self.printed.target):
            stack = fuse_replicas(models, self.case.loss, rates, len(self.x), threads=self.printed.threads)
            stack.fused.compiled(self.x)
        self.cases, self.stack, self.fused = cases, stack, stack.fused

    def _alone(self) -> None:
        self.model = copy.deepcopy(self.case.model).to(self.dtype)
        weights = OneModel(self.model, partial(torch.optim.Adam, lr=0.01))
        runner = Runner(Cpu(self.printed.threads, self.printed.form()))
        self.fused = Fused(weights, loss_kind(self.case.loss), len(self.x), runner)
        self.fused.compiled(self.x)
        if self.printed.ends == "scores":
            with contextlib.suppress(CannotFuse), _vectors_of(self.printed.target):
                self.forward = Forward(self.model, self.case.loss, self.x)  # batch-norm computes something else

    def fault(self) -> str:
        """What is wrong with its numbers, in words; empty if nothing is."""
        with _vectors_of(self.printed.target):
            words = too_short(self.fused.compiled().plan)
            for case, numbers in zip(self.cases, numbers_of(self.fused, self.x, self.y), strict=True):
                words = words or differs(case, numbers, self.dtype)
            return words or self._end(torch.arange(len(self.x)))

    def _end(self, order: torch.Tensor) -> str:
        """Train or evaluate; return what is wrong with scores."""
        if self.forward is not None:
            return self._scores_differ(self.forward)
        if self.stack is not None:
            self.stack.train_epochs(self.x, self.y, order.expand(len(self.cases), -1))
        else:
            self.fused.train_epoch(self.x, self.y, order)
        return ""

    def _scores_differ(self, evaluation: Forward) -> str:
        scores = evaluation.scores(self.model, self.x)
        with torch.no_grad():
            wanted = copy.deepcopy(self.case.model).eval()(self.case.x)
        if scores.shape != wanted.shape:
            return f"scores of shape {tuple(scores.shape)} instead of {tuple(wanted.shape)}"
        scale = max(1.0, float(wanted.abs().max()))
        gap = float((scores.double() - wanted).abs().max())
        return "" if gap <= SCORES[scores.dtype] * scale else f"scores: {gap:.2e} from float64's"


def numbers_of(fused: Fused, x: torch.Tensor, y: torch.Tensor) -> list[Numbers]:
    """Loss, gradients and statistics of each module, without dropout."""
    with torch.no_grad():
        fused.compiled(x)
        return fused._numbers(fused._twin(), x, y)


@contextlib.contextmanager
def _vectors_of(target: Target) -> Iterator[None]:
    """A context in which this machine has the vectors of a target."""
    with mock.patch.object(machine, "vector", return_value=(target.bytes, target.registers)):
        yield


def too_short(plan: Plan) -> str:
    """Which buffer is longer than the memory that it lies in."""
    lanes = plan.target.lanes
    for name, place in plan.places.items():
        each = lanes if place.element == "V" else 1
        base = plan.places.get(plan.program.base(name), place)
        if place.size * each > base.size * (lanes if base.element == "V" else 1):
            return f"{name} is longer than {plan.program.base(name)}, whose memory it is"
        numbers = plan.sizes[place.region] * (lanes if place.region in ("arena", "lanes") else 1)
        if (place.start + place.size) * each > numbers * (lanes if plan.target.replicas and numbers else 1):
            return f"{name} is longer than the {place.region}"
    return ""


def _of_batch(case: Case, samples: int) -> Case:
    """The first samples, but at least two where batch-norm needs them."""
    norms = (nn.BatchNorm1d, nn.BatchNorm2d)
    if any(isinstance(part, norms) for part in case.model.modules()):
        samples = max(samples, 2) if samples else 0
    if not samples or samples >= len(case.x):
        return case
    return replace(case, x=case.x[:samples], y=case.y[:samples])


def differs(case: Case, numbers: Numbers, dtype: torch.dtype) -> str:
    """Which number is further from float64's than PyTorch's own is, beyond rounding."""
    single, place = dtype is torch.float32, torch.finfo(dtype).eps
    case = copy.deepcopy(case)
    for part in case.model.modules():
        if isinstance(part, nn.RMSNorm) and part.eps is None:  # it follows the type, which is the text's here
            part.eps = place
    exact = _by_autograd(case, torch.float64)
    own = [_by_autograd(case, torch.float32, 2.0**-24 * shaken) for shaken in range(SHAKEN)] if single else []
    # Approximations of a tanh or an exponential are right to a unit in the last place, which 1 - tanh^2 magnifies.
    own += [_by_autograd(case, torch.float64, unpack=_Rounded(torch.float32))] if single else []
    # Where the loss has one class, it and all gradients are nothing: what rounding leaves is of the terms that cancel.
    largest = max(float(g.abs().max()) for name, g in exact.items() if not name.startswith("the buffer")) or 1.0
    for name, wanted in exact.items():
        gap = float((numbers[name].double() - wanted).abs().max())
        scale = max(float(wanted.abs().max()), 1e-2 * largest)
        if own:
            wrong = max(float((each[name].double() - wanted).abs().max()) for each in own)
            allowed = ROUNDING * (wrong + 4 * place * scale)
        else:
            allowed = 1e-10 * scale
        if not gap <= allowed:
            return f"{name}: {gap:.2e} from float64's, where {allowed:.2e} is allowed"
    return ""


def _by_autograd(
    case: Case,
    dtype: torch.dtype,
    share: float = 0.0,
    unpack: Callable[[torch.Tensor], torch.Tensor] = lambda saved: saved,
) -> Numbers:
    """PyTorch's numbers; of weights that are changed by this share of themselves at most."""
    model = without_dropout(_shaken(case.model, share))
    return by_autograd(model, case.loss, case.x, case.y, dtype, unpack)


def _shaken(model: nn.Module, share: float) -> nn.Module:
    """A copy whose weights are changed by this share of themselves at most."""
    model, generator = copy.deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters() if share else ():
            weight.mul_(1 + share * (2 * torch.rand(weight.shape, generator=generator) - 1))
    return model


# --- several texts, compiled at once ---


def together(texts: Sequence[str]) -> str:
    """One text of several: each in a namespace, its functions' names with its number behind them."""
    includes = dict.fromkeys(line for text in texts for line in re.findall(r"^#include <.*>", text, re.MULTILINE))
    # Outside the conditions under which texts include them: not every compiler has all.
    parts = [f"#if __has_include({line.split()[1]})\n{line}\n#endif" for line in includes]
    for number, text in enumerate(texts):
        words = dict.fromkeys((*ENTRIES, *re.findall(r"^#define (\w+)", text, re.MULTILINE)))
        renamed = [f"#define {entry} {entry}_{number}" for entry in ENTRIES]
        parts += [*renamed, f"namespace text_{number} {{", text, "}", *(f"#undef {word}" for word in words)]
    return "\n".join(parts)


class Together:
    """Texts that are compiled at once, when a function of one of them is first called."""

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._compiled: dict[str, tuple[Any, int]] = {}

    def library(self, text: str) -> tuple[SimpleNamespace, Path, bool]:
        """A text as a library, in the place of `build.library`."""
        if text not in self._compiled and text not in self._waiting:
            self._waiting.append(text)
        entries = SimpleNamespace(**{entry: Late(self, text, entry) for entry in ENTRIES})
        return entries, build.folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.so", False

    def function(self, text: str, entry: str) -> Any:
        if text not in self._compiled:
            functions, _, _ = build.library(together(self._waiting))
            self._compiled |= {each: (functions, number) for number, each in enumerate(self._waiting)}
            self._waiting = []
        functions, number = self._compiled[text]
        return getattr(functions, f"{entry}_{number}")


@dataclass
class Late:
    """A function of a library that may not be compiled yet; ctypes sets its types."""

    texts: Together
    text: str
    entry: str
    argtypes: Any = None
    restype: Any = None

    def __call__(self, *arguments: Any) -> Any:
        function = self.texts.function(self.text, self.entry)
        function.argtypes, function.restype = self.argtypes, self.restype
        return function(*arguments)


def sweep(cases: Sequence[Case], first: int) -> Iterator[str]:
    """What is wrong with each network, in the form that its number chooses."""
    for begin in range(0, len(cases), AT_ONCE):
        some = [(first + k, case, form(first + k)) for k, case in enumerate(cases)][begin : begin + AT_ONCE]
        library = Together().library
        with mock.patch.object(processors, "library", library), mock.patch.object(replicas, "library", library):
            trials = [_trial(case, printed) for _, case, printed in some]
            for (number, case, printed), trial in zip(some, trials, strict=True):
                print(number, printed, file=sys.stderr, flush=True)  # which one it was, if the process ends
                if fault := _fault(trial):
                    yield f"network {number}, {printed}: {fault}\n{case.model}"


def _trial(case: Case, printed: Printed) -> Trial | Exception:
    try:
        return Trial(case, printed)
    except Exception as error:
        return error


def _fault(trial: Trial | Exception) -> str:
    try:
        return trial.fault() if isinstance(trial, Trial) else repr(trial)
    except Exception as error:
        return repr(error)


def main(count: int, first: int, last: int) -> None:
    torch.set_num_threads(1)
    cases, clean = [*networks(count), *written()][first:last], True
    for fault in sweep(cases, first):
        print(fault, flush=True)
        clean = False
    print("clean" if clean else "faults", len(cases))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
