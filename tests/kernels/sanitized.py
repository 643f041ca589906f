"""Texts that are tried out: each buffer knows how many numbers it has, the compiler's sanitizers watch everything else.

A text that was built so may end its process, so this is done in a child: `python -m tests.kernels.sanitized` draws
networks, prints each in the form that its number chooses, trains it and compares its gradients with PyTorch's.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import nn

from paceline.kernels import CannotFuse, build, fuse_replicas
from paceline.kernels.comparison import _Rounded
from paceline.kernels.fused import Fused
from paceline.kernels.losses import loss_kind
from paceline.kernels.memory import Target
from paceline.kernels.plan import Plan
from paceline.kernels.processors import Cpu, Form, Runner
from paceline.kernels.replicas import Forward
from paceline.kernels.weights import OneModel
from tests.kernels.conftest import precompiled, unoptimised
from tests.kernels.networks import Case, drawn, encoders, images, operations, sequences
from tests.kernels.programs import PROGRAMS

WATCHED = ("-DCHECKED", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
#: Rounding that is no fault: multiples of what PyTorch's own float32 is wrong by, and of float32's last place.
ROUNDING = 16
#: Times that PyTorch's float32 is asked, since it is right by chance: of weights that differ by their rounding.
SHAKEN = 4


def in_child(arguments: list[str], cache: Path, watched: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Python, with the sanitizers' library if it is watched, which has to come before all others."""
    environment = {**os.environ, "PACELINE_CACHE": str(cache), "PYTHONPATH": ":".join(filter(None, sys.path))}
    environment.pop("CXX", None)
    if watched:
        library = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
        environment |= {"LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=3000)


# --- the forms of a text ---


@dataclass(frozen=True)
class Printed:
    """How a network's text is printed and called."""

    target: Target
    samples: int  # of a batch; 0 for all
    threads: int
    ends: str  # what is done besides the gradient: "training", "scores" or "stack"

    def form(self) -> Form:
        return Form(target=lambda real, batch: self.target)


def forms() -> list[Printed]:
    """Every width in both types, alone and side by side; batches, threads and ends go round."""
    samples, ends = (1, 2, 3, 0), ("training", "scores", "stack")
    kinds: tuple[dict[str, bool], ...] = ({}, {"pixels": True})
    targets = [
        Target(width, real, 32 if width == 64 else 16, shares=True, **kind)
        for width, real, kind in product((16, 32, 64), ("float", "double"), kinds)
    ]
    targets += [Target(64, real, scalar=True, shares=True) for real in ("float", "double")]
    return [
        Printed(target, samples[number % 4], 1 + number % 2, ends[number % 3]) for number, target in enumerate(targets)
    ]


def networks(count: int) -> list[Case]:
    """So many networks of all layers, each kind in turn."""
    each = math.ceil(count / 4)
    by_kind = [drawn(strategy(), each) for strategy in (images, sequences, encoders, operations)]
    return [case for row in zip(*by_kind, strict=False) for case in row][:count]


def written() -> list[Case]:
    """Networks as people write them."""
    return [_written(name) for name in PROGRAMS]


def _written(name: str) -> Case:
    torch.manual_seed(0)
    model, x, y, loss = PROGRAMS[name]()
    return Case(model, x, y, loss.double() if isinstance(loss, nn.Module) else loss).double()


# --- trying a network out ---


def tried(case: Case, printed: Printed) -> str:
    """What is wrong with a network's numbers, in words; empty if nothing is."""
    case = _of_batch(case, printed.samples)
    single = printed.target.real == "float"
    model = copy.deepcopy(case.model).float() if single else copy.deepcopy(case.model)
    x, y = (t.float() if single and t.is_floating_point() else t for t in (case.x, case.y))
    processor = Cpu(printed.threads, printed.form())
    fused = Fused(OneModel(model, partial(torch.optim.Adam, lr=0.01)), loss_kind(case.loss), len(x), Runner(processor))
    fault = too_short(fused.compiled(x).plan) or differs(case, *fused.loss_and_gradients(x, y), single=single)
    if printed.ends == "training":
        fused.train_epoch(x, y, torch.arange(len(x)))
    elif printed.ends == "scores":
        fault = fault or _scores_differ(case, model, x)
    elif len(x) > 1:
        stacked = [copy.deepcopy(model) for _ in range(3)]
        rates = [partial(torch.optim.SGD, lr=0.01)] * 3
        orders = torch.stack([torch.arange(len(x))] * 3)
        with contextlib.suppress(CannotFuse):  # some networks are not trained in a stack
            fuse_replicas(stacked, case.loss, rates, len(x)).train_epochs(x, y, orders=orders)
    return fault


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


def differs(case: Case, loss: float, gradients: dict[str, torch.Tensor], single: bool) -> str:
    """Which number is further from float64's than PyTorch's own is, beyond rounding."""
    place = torch.finfo(torch.float32 if single else torch.float64).eps
    case = copy.deepcopy(case)
    for part in case.model.modules():
        if (
            isinstance(part, nn.RMSNorm) and part.eps is None
        ):  # it follows the type, which is the text's in all of these
            part.eps = place
    exact = _by_autograd(case, torch.float64)
    own = [_by_autograd(case, torch.float32, 2.0**-24 * shaken) for shaken in range(SHAKEN)] if single else []
    # Approximations of a tanh or an exponential are right to a unit in the last place, which 1 - tanh^2 magnifies.
    own += [_by_autograd(case, torch.float64, unpack=_Rounded(torch.float32))] if single else []
    # Where the loss has one class, it and all gradients are nothing: what rounding leaves is of the terms that cancel.
    largest = max(float(g.abs().max()) for g in exact.values()) or 1.0
    for name, wanted in exact.items():
        computed = torch.tensor(loss, dtype=torch.float64) if name == "loss" else gradients[name]
        gap = float((computed.double() - wanted).abs().max())
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
    shaken: float = 0.0,
    unpack: Callable[[torch.Tensor], torch.Tensor] = lambda saved: saved,
) -> dict[str, torch.Tensor]:
    """PyTorch's loss and gradients; of weights that are changed by this share of themselves at most."""
    model = copy.deepcopy(case.model).to(dtype)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for weight in model.parameters():
            weight.mul_(1 + shaken * (2 * torch.rand(weight.shape, generator=generator) - 1))
    x, y = (t.to(dtype) if t.is_floating_point() else t for t in (case.x, case.y))
    loss_of = copy.deepcopy(case.loss).to(dtype) if isinstance(case.loss, nn.Module) else case.loss
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = loss_of(model(x), y)
        loss.backward()
    return {"loss": loss.detach()} | {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def _scores_differ(case: Case, model: nn.Module, x: torch.Tensor) -> str:
    try:
        scores = Forward(model, case.loss, x).scores(model, x)
    except CannotFuse:
        return ""  # batch-norm computes something else in evaluation mode
    with torch.no_grad():
        wanted = case.model.eval()(case.x)
    case.model.train()
    if scores.shape != wanted.shape:
        return f"scores of shape {tuple(scores.shape)} instead of {tuple(wanted.shape)}"
    scale = max(1.0, float(wanted.abs().max()))
    gap = float((scores.double() - wanted).abs().max())
    return "" if gap <= 1e-3 * scale else f"scores: {gap:.2e} from float64's"


def sweep(cases: Sequence[Case], first: int, choose: Callable[[int], Printed]) -> Iterator[str]:
    """What is wrong with each network, in the form that its number chooses."""
    for number, case in enumerate(cases, first):
        printed = choose(number)
        print(number, printed, file=sys.stderr, flush=True)  # which one it was, if the process ends
        try:
            fault = tried(case, printed)
        except Exception as error:
            fault = repr(error)
        if fault:
            yield f"network {number}, {printed}: {fault}\n{case.model}"


def main(count: int, first: int, last: int, *flags: str) -> None:
    build.FLAGS = (*unoptimised(build.FLAGS), *(flags or WATCHED))
    os.environ["CXX"] = f"g++ -include {precompiled(build.folder() / 'headers', build.FLAGS)}"
    build.compiler.cache_clear()
    choices = forms()
    cases, clean = [*networks(count), *written()][first:last], True
    for fault in sweep(cases, first, lambda number: choices[number % len(choices)]):
        print(fault, flush=True)
        clean = False
    print("clean" if clean else "faults", len(cases))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:])
