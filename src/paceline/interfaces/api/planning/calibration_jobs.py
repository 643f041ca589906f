"""The jobs that a card is fitted on: small networks of many shapes, drawn from a seed.

They are not meant to learn. Sizes are drawn on a logarithmic scale, so that each coefficient of a card is seen with
small and large figures.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.rules import GradientUpdate
from paceline.algorithms.rules.gradients import Plain
from paceline.errors import RunFailed
from paceline.runtime.engines.workers.process import become_worker, interrupts_wait, nameless_main, prepare
from paceline.training.data.opening import open_source
from paceline.training.data.source import Order, Reader
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Job
from paceline.training.parameters.store import LocalStore

SEED = 2026
OPTIMIZERS: Sequence[Callable[..., torch.optim.Optimizer]] = (
    partial(torch.optim.SGD, lr=1e-3),
    partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
    partial(torch.optim.Adam, lr=1e-3),
)


class _Draw:
    """Draws sizes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def size(self, low: int, high: int) -> int:
        return round(math.exp(self.random.uniform(math.log(low), math.log(high))))

    def one(self, values: Sequence[Any]) -> Any:
        return self.random.choice(values)


def _job(model: nn.Module, x: Tensor, draw: _Draw, batch: int, name: str, classes: int = 10) -> Job:
    target = torch.randint(classes, (len(x),), generator=torch.Generator().manual_seed(1))
    return Job(
        model,
        (x, target),
        nn.CrossEntropyLoss(),
        optimizer=draw.one(OPTIMIZERS),
        batch_size=batch,
        name=name,
        on_nan="ignore",
        device="cpu",
        compute="autograd",
    )


def _dense(draw: _Draw) -> Job:
    batch, width, depth = draw.size(8, 1024), draw.size(12, 768), draw.one((1, 2, 3))
    first = draw.size(8, 1024)
    middle: list[nn.Module] = []
    for number in range(depth):
        middle += [
            nn.Linear(first if number == 0 else width, width),
            draw.one((nn.Tanh, nn.ReLU, nn.Sigmoid, nn.GELU))(),
        ]
        if draw.one((True, False, False)):
            middle.append(nn.Dropout(0.1))
    return _job(nn.Sequential(*middle, nn.Linear(width, 10)), torch.randn(batch, first), draw, batch, "dense")


def _convolutional(draw: _Draw) -> Job:
    batch, channels, image = draw.size(8, 256), draw.size(4, 32), draw.one((8, 14, 16, 24, 28, 32))
    colours, kernel = draw.one((1, 3, 8)), draw.one((3, 5))
    layers: list[nn.Module] = [nn.Conv2d(colours, channels, kernel, padding=kernel // 2)]
    layers += [nn.BatchNorm2d(channels)] if draw.one((True, False)) else []
    layers += [nn.ReLU(), draw.one((nn.MaxPool2d, nn.AvgPool2d))(2)]
    more = draw.size(4, 48)
    layers += [nn.Conv2d(channels, more, 3, padding=1), nn.ReLU()] if draw.one((True, True, False)) else []
    more = more if isinstance(layers[-1], nn.ReLU) else channels
    layers += [nn.Flatten(), nn.Linear(more * (image // 2) ** 2, 10)]
    return _job(nn.Sequential(*layers), torch.randn(batch, colours, image, image), draw, batch, "convolutional")


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], features: int, width: int) -> None:
        super().__init__()
        self.body, self.head = kind(features, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.body(x)[0][:, -1])
        return result


def _recurrent(draw: _Draw) -> Job:
    batch, steps, features, width = draw.size(8, 256), draw.size(4, 40), draw.size(4, 64), draw.size(8, 128)
    model = _Recurrent(nn.LSTM, features, width)
    return _job(model, torch.randn(batch, steps, features), draw, batch, "recurrent")


class _Attention(nn.Module):
    def __init__(self, features: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(features, width), nn.Linear(width, 10)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.body(self.enter(x)).mean(1))
        return result


def _attention(draw: _Draw) -> Job:
    batch, tokens, heads = draw.size(4, 96), draw.size(4, 48), draw.one((1, 2, 4))
    width = heads * draw.size(8, 32)
    model = _Attention(draw.size(4, 32), width, heads, draw.one((1, 2)))
    return _job(model, torch.randn(batch, tokens, model.enter.in_features), draw, batch, "attention")


class _EmbeddingTable(nn.Module):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(rows, width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.table(x).mean(1))
        return result


def _table(draw: _Draw) -> Job:
    batch, rows, width, each = draw.size(8, 512), draw.size(300, 60_000), draw.size(8, 64), draw.size(2, 24)
    x = torch.randint(rows, (batch, each), generator=torch.Generator().manual_seed(2))
    return _job(_EmbeddingTable(rows, width), x, draw, batch, "table")


KINDS = (_dense, _convolutional, _dense, _attention, _convolutional, _recurrent, _table, _dense, _attention)


def calibration_job(number: int) -> Job:
    """Make the job of this number; the same number makes the same job on every machine."""
    draw = _Draw(SEED * 1000 + number)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        return KINDS[number % len(KINDS)](draw)


class Vector(nn.Module):
    """A parameter vector, whose gradient costs nothing but itself: what is left of a step is the exchange."""

    def __init__(self, length: int, tensors: int = 1) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.zeros(length // tensors)) for _ in range(tensors))

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = sum((part.sum() for part in self.parts), torch.zeros(()))
        return total * x.mean()


def vector_job(length: int, tensors: int = 1) -> Job:
    """Make a job that exchanges a vector of so many floats, in so many tensors."""
    return Job(
        Vector(length, tensors),
        torch.ones(64, 1),
        step=_mean,
        optimizer=partial(torch.optim.SGD, lr=1e-6),
        batch_size=8,
        epochs=10**6,
        name="vector",
        on_nan="ignore",
        device="cpu",
    )


def _mean(module: nn.Module, batch: Any) -> Tensor:
    result: Tensor = module(batch[0])
    return result


# --- Processes that compute steps of calibration jobs side by side, and say how long each took ------------------------
# The parent names a job, how many processes are to compute it at once, with how many threads, and for how long. Cases
# of one job alternate, so that another program on the machine slows all of them alike.

WARM, LEAST = 2, 3  # steps
PATIENCE = 60.0  # seconds for an answer


class Case(NamedTuple):
    """A number of processes that compute at once, each with a number of threads."""

    busy: int
    threads: int


class Steps(NamedTuple):
    """Seconds of steps, of all processes."""

    compute: list[float]
    update: list[float]


class BusyCores:
    """A pool of processes; a context manager that ends them."""

    def __init__(self, processes: int) -> None:
        self.count = processes
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> BusyCores:
        context = multiprocessing.get_context("forkserver")
        with nameless_main():
            prepare()
            for _ in range(self.count):
                mine, theirs = context.Pipe()
                process = context.Process(target=_main, args=(theirs,))
                with interrupts_wait():
                    process.start()
                theirs.close()
                self._processes.append(process)
                self._pipes.append(mine)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(1.0)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()

    def prepare_job(self, number: int) -> None:
        """Let every process make the job of this number, and warm it up."""
        self._ask(range(self.count), ("make", number, 0.0))

    def steps(self, case: Case, seconds: float) -> Steps:
        """Let so many processes compute at once for so long; return all their steps."""
        answers = self._ask(range(case.busy), ("steps", case.threads, seconds))
        return Steps([t for a in answers for t in a.compute], [t for a in answers for t in a.update])

    def _ask(self, processes: Sequence[int], request: tuple[str, int, float]) -> list[Steps]:
        for number in processes:
            self._pipes[number].send(request)
        timings = []
        for number in processes:
            try:
                if not self._pipes[number].poll(PATIENCE):
                    raise RunFailed(
                        f"a calibration process did not answer for {PATIENCE:.0f} s; is the machine stopped?"
                    )
                timings.append(self._pipes[number].recv())
            except (EOFError, OSError):
                raise RunFailed("a calibration process died; was it killed, or is there too little memory?") from None
        return timings


def _main(pipe: Connection) -> None:
    """Answer requests until the parent closes the pipe."""
    become_worker(memory_bounded=False)
    trainer: Trainer | None = None
    try:
        while True:
            what, number, seconds = pipe.recv()
            if what == "make":
                trainer = Trainer(calibration_job(number))
                trainer.steps(1, 0.0, WARM)
                pipe.send(Steps([], []))
            else:
                assert trainer is not None
                pipe.send(trainer.steps(number, seconds, LEAST))
    except EOFError:
        pass
    finally:
        os._exit(0)


class Trainer:
    """A worker's learner and store for one job, without an engine."""

    def __init__(self, job: Job) -> None:
        module = job.make_model().train()
        source = open_source(job.data, job.seed)
        replica = Replica(job, module, ())
        optimizer = job.make_optimizer(module, replica.parameters)
        self.chunk = Chunk(0, 0, 0, 0, len(source), 1.0)
        order = Order(len(source), job.seed, job.shuffle)
        self.learner = Learner(replica, Reader(source, order, 0, lambda _: None))
        self.store, self.rule = LocalStore(replica.parameters, optimizer, None, Plain()), Plain()

    def steps(self, threads: int, seconds: float, least: int) -> Steps:
        """Make steps for so long, and at least so many."""
        torch.set_num_threads(threads)
        timings, now = Steps([], []), time.perf_counter
        end = now() + seconds
        while now() < end or len(timings.compute) < least:
            first = now()
            computed = self.learner.compute([self.chunk])
            second = now()
            self.rule.update(self.store, GradientUpdate(self.learner.finalize(computed)))
            timings.compute.append(second - first)
            timings.update.append(now() - second)
        return timings
