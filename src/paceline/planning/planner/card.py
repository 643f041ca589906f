"""A card: what a machine can do, as measured by `paceline calibrate`.

It is a JSON file that can be carried to another machine. All seconds are of this machine; what they are multiplied by
(operations, bytes, workers) belongs to the job and the plan.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline import user_cache
from paceline.errors import UsageError, suggest
from paceline.runtime.runs.schema import write_json

SCHEMA = 1


@dataclass(frozen=True)
class Operations:
    """The seconds of operations while so many workers, of so many threads each, compute at once."""

    busy: int
    threads: int
    #: Seconds of each figure of a step's forward and backward passes (`operations.FIGURES`).
    compute: dict[str, float]
    #: Seconds of each figure of an optimizer's update.
    update: dict[str, float]
    #: Half the 90% interval of a prediction, as a logarithm, from jobs that were left out of the fit.
    error: float
    #: Quantiles of a computation's seconds over their median, at evenly spaced shares: how much steps differ.
    jitter: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class ExchangeSeconds:
    """The seconds of an exchange between so many workers."""

    #: "meeting": a table of a collective; "push": to a server; "ddp": PyTorch's all-reduce; "message": to a neighbour.
    kind: str
    workers: int
    #: Seconds of each step of a meeting's table, or of each push or message.
    latency: float
    #: Bytes per second of each step.
    bandwidth: float
    #: Half the 90% interval, as a logarithm.
    error: float
    #: Seconds of Python in each update besides, which the trace does not divide.
    between: float = 0.0
    #: Seconds of each tensor of the model besides the first.
    tensor: float = 0.0
    #: Bytes and seconds of each step, as they were measured; between them seconds are interpolated.
    points: tuple[tuple[float, float], ...] = ()

    def at(self, size: float) -> tuple[float, float]:
        """Return latency and bandwidth of steps of about so many bytes: small ones stay in caches."""
        if len(self.points) < 2:
            return self.latency, self.bandwidth
        place = next((n for n, (most, _) in enumerate(self.points) if size <= most), len(self.points) - 1)
        if place == 0:
            return self.points[0][1], math.inf
        (low, first), (high, last) = self.points[place - 1], self.points[place]
        slope = (last - first) / (high - low)
        return first - slope * low, 1 / slope if slope > 0 else math.inf


@dataclass(frozen=True)
class Overhead:
    """What plans of one family take besides computing and updating, measured over predicted."""

    #: "meeting", "push", "ddp", "stages", "parts" or "gathers": see `Method.family`.
    family: str
    workers: int
    factor: float
    #: Half the 90% interval, as a logarithm.
    error: float

    @staticmethod
    def nearest(overheads: Sequence[Overhead], family: str, workers: int) -> Overhead | None:
        """Return the one of this family with the nearest number of workers, the larger of two; None: none is known."""
        matches = [each for each in overheads if each.family == family]
        return min(matches, key=lambda each: (abs(each.workers - workers), -each.workers)) if matches else None


@dataclass(frozen=True)
class Card:
    """What a machine can do."""

    processor: str
    cores: int
    #: Bytes of memory.
    memory: int
    operations: tuple[Operations, ...]
    exchanges: tuple[ExchangeSeconds, ...] = ()
    #: How far predicted exchanges of small networks were off.
    overheads: tuple[Overhead, ...] = ()
    #: Seconds of Python in each update of one process, besides computing and updating.
    between: float = 0.0
    torch: str = ""
    date: str = ""
    #: "card" where two figures of a data sheet stand for all operations, else "calibrated".
    level: str = "calibrated"
    #: How many times as long a machine of another speed takes; cluster files may change it.
    slowness: float = 1.0
    schema: int = field(default=SCHEMA)

    def fit(self, busy: int, threads: int) -> tuple[Operations, float]:
        """Return the operations of the nearest measured case, and the factor of taking turns on too few cores."""
        demand = busy * threads
        turns = max(1.0, demand / self.cores)
        exact = [o for o in self.operations if o.threads == threads] or list(self.operations)
        fitting = [o for o in exact if o.busy * o.threads <= max(self.cores, exact[0].busy * exact[0].threads)]
        operations = min(fitting or exact, key=lambda o: abs(o.busy - min(busy, max(1, self.cores // threads))))
        return operations, turns

    def exchange(self, kind: str, workers: int) -> ExchangeSeconds | None:
        """Return the exchange of this kind that was measured with the nearest number of workers; None: none was."""
        matches = [each for each in self.exchanges if each.kind == kind]
        return min(matches, key=lambda each: (abs(each.workers - workers), each.workers)) if matches else None

    def write(self, file: Path) -> None:
        """Write the card, replacing the file atomically."""
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, dataclasses.asdict(self))

    def keep(self) -> None:
        """Write the card to where `kept` reads it; raise OSError where other users could exchange it."""
        user_cache.write(default_file(), json.dumps(dataclasses.asdict(self), indent=1).encode())

    @staticmethod
    def kept() -> Card:
        """Read the card of this machine; raise OSError if there is none that only its user can have written."""
        return Card.parse(user_cache.read(default_file()), str(default_file()))

    @staticmethod
    def read(file: Path) -> Card:
        """Read a card. Raise UsageError if the file is not a card."""
        try:
            return Card.parse(file.read_bytes(), str(file))
        except OSError as error:
            raise UsageError(
                f"the card {file} cannot be read: {error.strerror}; make one: paceline calibrate"
            ) from None

    @staticmethod
    def parse(content: bytes, where: str) -> Card:
        """Make a card of the content of a file. Raise UsageError if it is not a card."""
        try:
            document = json.loads(content)
        except ValueError as error:
            raise UsageError(f"the card {where} is damaged: {error}; make another: paceline calibrate") from None
        return Card.of(document, where)

    @staticmethod
    def of(document: object, where: str = "the card") -> Card:
        """Make a card of what JSON holds, and check it."""
        if not isinstance(document, dict):
            raise UsageError(
                f"{where} is not a card: it holds {type(document).__name__}, and a card is one JSON object"
            )
        if document.get("schema") != SCHEMA:
            raise UsageError(
                f"{where} has schema {document.get('schema')!r}, and this version reads {SCHEMA}; calibrate again"
            )
        values = dict(document)
        values["operations"] = tuple(_part(Operations, each, where) for each in document.get("operations", ()))
        values["exchanges"] = tuple(_part(ExchangeSeconds, each, where) for each in document.get("exchanges", ()))
        values["overheads"] = tuple(_part(Overhead, each, where) for each in document.get("overheads", ()))
        card: Card = _part(Card, values, where)
        card.check(where)
        return card

    def check(self, where: str) -> None:
        """Raise UsageError for what no machine has."""
        if self.cores < 1:
            raise UsageError(f"{where}: cores={self.cores}; a machine has at least one")
        if not self.operations:
            raise UsageError(f"{where} has no operations; calibrate again")
        for operations in self.operations:
            for name, value in (*operations.compute.items(), *operations.update.items()):
                if name not in FIGURES:
                    raise UsageError(f"{where} has a figure {name!r}; {suggest(name, FIGURES)}")
                if not 0 <= value < math.inf:
                    raise UsageError(f"{where}: {name}={value} is not a number of seconds")
        for each in self.exchanges:
            if not each.bandwidth > 0 or each.latency < 0:
                raise UsageError(
                    f"{where}: {each.kind} of {each.workers} workers has latency={each.latency} and "
                    f"bandwidth={each.bandwidth}; the first cannot be negative, the second must be positive"
                )


def _part(kind: Any, mapping: Mapping[str, Any], where: str) -> Any:
    """Make a record of a dictionary; name what is unknown or missing."""
    fields = {each.name: each for each in dataclasses.fields(kind)}
    for name in mapping:
        if name not in fields:
            raise UsageError(f"{where} has an unknown key {name!r}; {suggest(name, fields)}")
    missing = [
        name
        for name, each in fields.items()
        if name not in mapping and each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UsageError(f"{where} lacks {', '.join(missing)}")
    values = dict(mapping)
    if "jitter" in values:
        values["jitter"] = tuple(values["jitter"])
    if "points" in values:
        values["points"] = tuple((float(size), float(took)) for size, took in values["points"])
    return kind(**values)


def of_data_sheet(gflops: float, gigabytes: float, cores: int, memory: int, name: str = "data sheet") -> Card:
    """Make a card of two figures of a data sheet: peak GFLOP/s and GB/s of memory, of one core each.

    Matrix products are taken to reach half the peak and everything else a fraction that is usual on CPUs; the interval
    is a factor of three.
    """
    flop, byte = 1e-9 / gflops, 1e-9 / gigabytes
    compute = {
        "call": 4e-6,
        "view": 1.5e-6,
        "matmul.small": 5 * flop,
        "matmul.middle": 3 * flop,
        "matmul.large": 2 * flop,
        "convolution.forward": 3 * flop,
        "convolution.backward": 4 * flop,
        "recurrent.forward": 3 * flop,
        "recurrent.backward": 3 * flop,
        "near": byte / 3,
        "far": byte,
        "slow": 10 * flop,
        "random": 20 * flop,
        "gather": 2 * byte,
        "step": 5e-5,
    }
    update = {"step": 5e-5, "call": 4e-6, "near": byte / 3, "far": byte}
    cases = tuple(Operations(busy, 1, compute, update, math.log(3.0)) for busy in sorted({1, cores}))
    return Card(name, cores, memory, cases, between=5e-5, level="card")


def usual(name: str, cores: int, memory: int) -> Card:
    """Make a card of what is usual on CPUs: enough to find the plans that are to be measured."""
    one = {"step": USUAL["step"], "call": USUAL["call"], "near": USUAL["near"], "far": USUAL["far"]}
    error = math.log(3.0)
    cases = [Operations(busy, 1, USUAL, one, error) for busy in sorted({1, cores})]
    if cores > 1:
        threaded = {
            figure: value * (1.0 if figure in ("step", "call", "view") else 0.6) for figure, value in USUAL.items()
        }
        cases.append(Operations(1, cores, threaded, one, error))
    exchanges = tuple(ExchangeSeconds(kind, 2, *figures, error, 3e-5) for kind, figures in EXCHANGES.items())
    return Card(name, cores, memory, tuple(cases), exchanges, between=3e-5, level="card")


def default_file() -> Path:
    """Return where the card of this machine is kept."""
    return user_cache.folder() / "card.json"


# --- One operation of a model's step, and the figures of a step by which its time is predicted ------------------------
# The seconds of a step are taken to be linear in these figures. Their coefficients are a machine's: see `card`.
#
#     step                    one for each phase of a step: what it costs before the first operation
#     call, view              operations that compute, and operations that only make another view: dispatch and Python
#     matmul.*                floating-point operations, by the least dimension; calls
#     convolution.*           floating-point operations forward and backward, apart for few channels; calls and elements
#     recurrent.*             floating-point operations of an LSTM or GRU; calls, time steps, cells
#     near, far               bytes of all other operations, where they fit into a cache and where they do not
#     slow, norm, pool        elements of exp, tanh, softmax and the like, of normalisation, of pooling
#     random                  elements drawn, as by dropout
#     gather                  bytes moved row by row, as by an embedding

NEAR = 1 << 22  # bytes of one operation that are taken to lie in a core's cache
SMALL, MIDDLE = 16, 64  # least dimensions of a matrix product, between buckets
THIN = 8  # channels of a convolution below which vector units are not filled

#: Seconds of each figure on a usual core: what a fit falls back to where measurements do not tell figures apart.
USUAL = {
    "step": 5e-5,
    "call": 8e-6,
    "view": 1e-6,
    "matmul.call": 3e-6,
    "matmul.small": 2.4e-11,
    "matmul.middle": 1e-11,
    "matmul.large": 6e-12,
    "convolution.call": 1e-4,
    "convolution.elements": 1e-9,
    "convolution.forward": 1.5e-11,
    "convolution.backward": 1.5e-11,
    "convolution.forward.thin": 3e-11,
    "convolution.backward.thin": 3e-11,
    "recurrent.call": 1.5e-4,
    "recurrent.steps": 4e-6,
    "recurrent.cells": 1e-9,
    "recurrent.forward": 2e-11,
    "recurrent.backward": 2e-11,
    "near": 4e-11,
    "far": 8e-11,
    "slow": 1e-9,
    "norm": 1e-9,
    "pool": 1e-9,
    "random": 4e-9,
    "gather": 1.5e-10,
}
#: Figures of a step, each with a coefficient in seconds.
FIGURES = tuple(USUAL)

#: Latency and bytes a second of exchanges between two workers on a usual machine.
EXCHANGES = {
    "meeting": (1e-5, 1e10),
    "push": (1e-5, 2e10),
    "ddp": (4e-4, 9e8),
    "stage": (6e-5, 7e8),
    "part": (2e-4, 1e10),
}


@dataclass(frozen=True)
class DispatchedCall:
    """One call of the dispatcher."""

    #: Its name, such as `aten.addmm`.
    name: str
    #: One of `FORWARD`, `BACKWARD` and `UPDATE`.
    phase: str
    #: The path of the module that called it, "" outside of one.
    module: str
    #: A class of operations: view, matmul, convolution, recurrent, gather, random, slow, norm, pool or plain.
    kind: str
    #: Floating-point operations; 0 where they are not counted.
    flops: float = 0.0
    #: Bytes read and written.
    bytes: float = 0.0
    #: Elements of the largest tensor, or cells of a recurrent layer.
    elements: float = 0.0
    #: The least dimension of a matrix product, the least channels of a convolution, or a recurrent layer's time steps.
    extent: int = 0
    #: Bytes of what it returns.
    made: float = 0.0


FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


def figures(operations: Iterable[DispatchedCall]) -> dict[str, float]:
    """Add up the figures of these operations, which are those of one step or of a part of one."""
    totals = dict.fromkeys(FIGURES, 0.0)
    for operation in operations:
        _add(totals, operation)
    return totals


def _add(totals: dict[str, float], op: DispatchedCall) -> None:
    if op.kind == "view":
        totals["view"] += 1
        return
    totals["call"] += 1
    way = "backward" if op.phase == BACKWARD else "forward"
    if op.kind == "matmul":
        size = "small" if op.extent < SMALL else "middle" if op.extent < MIDDLE else "large"
        totals["matmul.call"] += 1
        totals[f"matmul.{size}"] += op.flops
    elif op.kind == "convolution":
        totals["convolution.call"] += 1
        totals["convolution.elements"] += op.elements
        totals[f"convolution.{way}{'.thin' if op.extent < THIN else ''}"] += op.flops
    elif op.kind == "recurrent":
        totals["recurrent.call"] += 1
        totals["recurrent.steps"] += op.extent
        totals["recurrent.cells"] += op.elements
        totals[f"recurrent.{way}"] += op.flops
        return
    elif op.kind == "gather":
        totals["gather"] += op.bytes
        return
    elif op.kind in ("slow", "norm", "pool", "random"):
        totals[op.kind] += op.elements
    totals["near" if op.bytes < NEAR else "far"] += op.bytes


def seconds(coefficients: Mapping[str, float], step_figures: Mapping[str, float]) -> float:
    """Return the seconds of a step with these figures."""
    return sum(coefficients.get(name, 0.0) * value for name, value in step_figures.items())
