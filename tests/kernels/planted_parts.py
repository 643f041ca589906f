"""Parts of texts that are no network's: whether their numbers are those of what they stand for in Python."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

from paceline.algorithms.collectives.rings import Ring
from paceline.algorithms.rules.gradients import Plain
from paceline.algorithms.server.gates import StaleSynchronous
from paceline.algorithms.server.shard import Shard
from paceline.algorithms.server.version_slots import VersionSlots
from paceline.kernels.compiled import CompiledCall
from paceline.kernels.exchange import PLACE
from paceline.kernels.one_pass import ServedStep, one_pass, served_step, spans_for
from paceline.kernels.replicas import Forward
from paceline.kernels.resident import Clipping, norm, ways
from paceline.kernels.serve import SPAN, Served
from paceline.runtime.engines.servers.shard_memory import ShardMemory
from paceline.runtime.engines.workers.arena import DoubleBuffer
from paceline.runtime.engines.workers.methods.native_pushes import shard_in_memory
from paceline.runtime.links import waiting
from paceline.runtime.links.membership import Locks
from paceline.runtime.links.memory import Memory
from paceline.runtime.runs.trace import TraceRing
from paceline.training.gradients.fastest_stack import close
from paceline.training.gradients.fused_replica import native_clipping
from paceline.training.gradients.native_step import PLAIN, agrees
from paceline.training.gradients.replica import clipped
from tests.kernels.networks import Case
from tests.kernels.test_printers import reference
from tests.runtime.engines import test_native_exchange as exchanges
from tests.runtime.engines import test_native_server as servers

COUNTS = (601, 63)  # numbers of parameters: more than a block has, and fewer


def clips() -> bool:
    """Of gradients in padded rows, in one of the ways in which PyTorch may sum squares."""
    places = np.array([(0, 0, 1, 1024, 1024), (0, 1029, 1, 601, 601), (0, 1635, 9, 7, 12)], PLACE)
    draws = torch.randn(20, 1635 + 8 * 12 + 7, generator=torch.Generator().manual_seed(0))  # no pad at the end

    def views(padded: Tensor) -> list[Tensor]:
        rows = padded.as_strided((9, 7), (12, 1), padded.storage_offset() + 1635)
        return [padded[:1024].view(1, 1024), padded[1029:1630].view(1, 601), rows]

    def has_torchs_bits(way: int, memory: Tensor) -> bool:
        theirs, mine = clipped([view.clone() for view in views(memory)], 0.7), memory.clone()
        Clipping.of(places, torch.float32, 0.7, way).apply(mine)
        squares = memory[-7:]  # whose sum begins where no vector is full
        return norm(way, squares) == float(torch.linalg.vector_norm(squares)) and all(
            map(torch.equal, views(mine), theirs)
        )

    return any(all(has_torchs_bits(way, memory) for memory in draws) for way in range(ways(torch.float32)))


def clipping_is_accepted() -> bool:
    shapes = [torch.Size((count,)) for count in COUNTS]
    return native_clipping(np.zeros(len(COUNTS), PLACE), shapes, torch.float32, 0.7) is not None


def _momentum() -> tuple[torch.optim.Optimizer, ServedStep]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(count)) for count in COUNTS], lr=0.1, momentum=0.5)
    step = served_step(optimizer)
    assert step is not None
    return optimizer, step


def steps() -> bool:
    """The first step of SGD with momentum."""
    optimizer, step = _momentum()
    run = one_pass(torch.float32, step, PLAIN)
    assert run is not None
    values, gradients, momenta = ([torch.full((count,), x) for count in COUNTS] for x in (1.0, 2.0, 0.0))
    spans = spans_for(list(COUNTS))
    spans["old"] = spans["fresh"] = [value.data_ptr() for value in values]
    spans["gradient"] = [gradient.data_ptr() for gradient in gradients]
    spans["remembered"][:, 0] = spans["kept"][:, 0] = [momentum.data_ptr() for momentum in momenta]
    settings = np.array([step.row(group) for group in optimizer.param_groups])
    run(settings.ctypes.data, spans.ctypes.data, len(spans))
    return all(torch.allclose(value, torch.tensor(0.8)) for value in values) and all(
        map(torch.equal, momenta, gradients)
    )


def step_is_accepted() -> bool:
    optimizer, step = _momentum()
    return agrees(optimizer, torch.float32, step, PLAIN, Plain())


def evaluates() -> bool:
    """The scores of a network, a row for each sample."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 19), nn.Tanh(), nn.Linear(19, 5)), torch.randn(21, 6)
    return close(Forward(model, nn.CrossEntropyLoss(), x).scores(model, x), model.eval()(x))


def sums() -> bool:
    """Three workers that walk a ring's table, and the same in Python."""
    return _as_python_does(exchanges.all_sums)


def mixes() -> bool:
    """Three workers that mix their weights with their neighbours', and the same in Python."""
    return _as_python_does(exchanges.all_mixtures)


def _as_python_does(each: object) -> bool:
    def results(native: bool) -> list[object]:
        world = exchanges.World(Memory(1 << 16), 3, Ring())
        return exchanges.in_threads(3, lambda rank: each(world, rank, lambda update: native))

    return exchanges.same(results(True), results(False))


def leases() -> bool:
    """What the desk answers in every state that it can reach."""
    try:
        servers.test_the_desk_answers_as_the_machine_does_or_leaves_it_to_python(StaleSynchronous(0), Locks(), Memory)
    except AssertionError:
        return False
    return True


def pushes() -> bool:
    """The version that a push makes of several parameters, and where the worker computes with it."""
    memory, machine, cancelled = Memory(TraceRing.size() + (1 << 14)), Shard(1), np.zeros(1, np.int64)
    slots = VersionSlots(1, at=machine.ints)
    integers, ring = DoubleBuffer(memory, machine.ints + slots.ints), TraceRing(memory.take(TraceRing.size()))
    versions = [torch.ones(8 + 2) for _ in range(slots.count)]  # the last two: whether anything is remembered
    addresses = np.array([version.data_ptr() for version in versions], np.int64)
    spans = np.zeros(2, SPAN)
    spans["value"], spans["place"], spans["present"], spans["rows"] = (0, 12), (0, 3), 32, 1
    spans["width"] = spans["stride"] = 3, 5
    shared = ShardMemory(machine, slots, integers, [SimpleNamespace(values=versions[0])] * slots.count, None)
    shared.init()
    shard = shard_in_memory(0, shared, addresses, spans)
    sent, taken, rows = map(waiting.address_of, ring.memory)
    settings, gradients, own = np.array([0.1]), torch.full((8,), 2.0), torch.zeros(8)
    served = Served(
        shards=ctypes.addressof(shard),
        workers=1,
        locks=Locks().descriptor,
        sent=sent,
        taken=taken,
        rows=rows,
        room=TraceRing.ROWS,
        cancelled=cancelled.ctypes.data,
        settings=settings.ctypes.data,
        scale=1.0,
    )
    call = CompiledCall(gradients=gradients.data_ptr(), weights=own.data_ptr())
    assert servers.functions().one_push(ctypes.byref(call), ctypes.byref(served))
    made = versions[shard.own][:8]
    return all(torch.allclose(each, torch.tensor(0.8)) for each in (made, own))


def interpreted() -> bool:
    """The loss and the gradients of loops over NumPy, and PyTorch's."""
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4), nn.Softmax(1)
    case = Case(nn.Sequential(*layers), torch.randn(5, 2, 6, 6), torch.randn(5, 4), nn.MSELoss()).double()
    value, gradients = reference(case)
    loss = case.loss(case.model(case.x), case.y)
    loss.backward()
    return all(
        np.allclose(gradients[name].reshape(weight.shape), weight.grad)
        for name, weight in case.model.named_parameters()
    ) and np.allclose(value, loss.item())


#: A name, what compares its numbers, what training compares them by before it uses them, a file, a loop and its bound.
PARTS = (
    ("clip.hpp, squares", clips, clipping_is_accepted, "clip", "for (; q < size; q++)", "q < size"),
    ("clip.hpp, rows", clips, clipping_is_accepted, "clip", "q < p->width; q++", "q < p->width"),
    ("rows.hpp, runs", clips, clipping_is_accepted, "rows", "for (int64_t k = 0; k < some; k++)", "k < some"),
    ("scores.hpp, scores", evaluates, evaluates, "scores", "o < SCORES_LENGTH; o++", "o < SCORES_LENGTH"),
    ("exchange.hpp, sums", sums, None, "exchange", "for (int64_t q = 0; q < count; q++)", "q < count"),
    ("exchange.hpp, rows", sums, None, "exchange", "q < p->width; q++", "q < p->width"),
    ("exchange.hpp, mixtures", mixes, None, "exchange", "for (int64_t q = 0; q < length; q++)", "q < length"),
    ("serve.hpp, parameters", pushes, None, "serve", "span < shard.spans + shard.parameters;", "shard.parameters"),
    ("serve.hpp, clocks", leases, None, "serve", "for (int64_t worker = 0; worker < s.workers", "worker < s.workers"),
)
