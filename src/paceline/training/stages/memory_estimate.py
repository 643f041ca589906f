"""The memory of a pipeline's stages: bytes of tensors, counted while one micro-batch goes forward and backward.

The count covers the storage of tensors, from allocation to release, and a constant for every operation that autograd
keeps. What a worker takes besides for its stages was measured: 0.5 to 3 MiB, for the workspace of MKL and oneDNN and
for small objects.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.schedules import Back, Table, Weighed, peaks
from paceline.training.data.source import Reader
from paceline.training.jobs.job import Job
from paceline.training.parameters.optimizers import bare_step, optimizer_over, without_the_compiler
from paceline.training.stages.cutting import Blueprint, skeleton
from paceline.training.stages.segment import Segment
from paceline.training.stages.stage import Stage, run_alone

# Measures the workspace of oneDNN's LSTM: it allocates three times what its forward writes, and pages that are never
# written take no memory.
#
# The kernel is asked which pages are resident. Memory that is reused is resident from the start, so the layer is run
# again, and the pages of the run before are released in between.

FORWARD = torch.ops.aten.mkldnn_rnn_layer.default
BACKWARD = torch.ops.aten.mkldnn_rnn_layer_backward.default
PLACE = 3  # of the workspace in the forward's results
DONT_NEED = 4
TRIES = 8  # until the allocator reuses memory whose pages were released

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def run(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the layer with a workspace of which only the written pages are resident."""
    outputs, released = function(*args, **kwargs), set[int]()
    if outputs[PLACE] is None:  # no backward will follow
        return outputs
    for _ in range(TRIES):
        start, size = _pages(outputs[PLACE])
        if start in released or not size:
            break
        _libc.madvise(start, size, DONT_NEED)
        released.add(start)
        del outputs
        outputs = function(*args, **kwargs)
    return outputs


def written(workspace: Tensor) -> int:
    """Return the workspace's resident bytes; all of it where the kernel does not say."""
    start, size = _pages(workspace)
    resident = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    if _libc.mincore(start, size, resident):
        return workspace.nbytes
    return workspace.nbytes - size + mmap.PAGESIZE * sum(page & 1 for page in resident)


def _pages(tensor: Tensor) -> tuple[int, int]:
    """Return the start of the whole pages in a tensor, and their bytes."""
    start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    return start, max(0, stop - start)


BESIDES = 3 << 19
OPERATION = 1 << 10  # bytes that autograd keeps of each, besides tensors; measured


def _has_storage(value: Any) -> bool:
    """Whether a value is a tensor with memory of its own; a sparse one refers to others, which are counted."""
    return isinstance(value, Tensor) and value.layout is torch.strided


class Live(TorchDispatchMode):
    """Counts the bytes of all tensors that are made in its context, until they are released."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.most = 0
        self.operations = 0
        self._known, self._counts = dict[int, int](), True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if _has_storage(leaf)}
        partly = func is FORWARD and not any(isinstance(v, FakeTensor) for v in args)
        result = run(func, args, kwargs or {}) if partly else func(*args, **(kwargs or {}))
        self.operations += 1
        for place, leaf in enumerate(tree_leaves(result)):
            if _has_storage(leaf):
                storage = leaf.untyped_storage()
                size = written(leaf) if partly and place == PLACE else storage.nbytes()
                self._see(storage, size, inputs)
        if func is BACKWARD and not isinstance(args[-1], FakeTensor):
            self._grown(args[-1])
        return result

    def _see(self, storage: torch.UntypedStorage, size: int, inputs: set[int]) -> None:
        key = storage._cdata
        if key in self._known or key in inputs or not self._counts:
            return
        self._known[key] = size
        self._add(size)
        weakref.finalize(storage, self._gone, key)

    def _add(self, size: int) -> None:
        self.bytes += size
        self.most = max(self.most, self.bytes)

    def _grown(self, value: Any) -> None:
        """Count the part of a workspace that the backward writes; while it runs, about all of it is used."""
        if isinstance(value, Tensor) and (key := value.untyped_storage()._cdata) in self._known:
            previous = self._known[key]
            self.most = max(self.most, self.bytes + value.nbytes - previous)
            self._known[key] = max(previous, written(value))
            self._add(self._known[key] - previous)

    def _gone(self, key: int) -> None:
        self.bytes -= self._known.pop(key)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Count a storage whose memory was given back, or taken again, while tensors still refer to it."""
        if (key := storage._cdata) in self._known:
            before, self._known[key] = self._known[key], storage.nbytes()
            self._add(self._known[key] - before)

    def begin(self) -> int:
        """Restart the count of the most from here; return the bytes at present."""
        self.most = self.bytes
        return self.bytes

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Do not count what is made in this context, which belongs to another worker."""
        self._counts = False
        yield
        self._counts = True


without_the_compiler(Live.__torch_dispatch__)


def resize(tensor: Tensor, size: int) -> None:
    """Give a tensor's memory back (0 bytes), or take it again; a count in whose context it happens knows of it."""
    storage = tensor.untyped_storage()
    storage.resize_(size)
    if isinstance(counting := _get_current_dispatch_mode(), Live):
        counting.resized(storage)


def needed(table: Table, weighed: Sequence[Weighed]) -> list[int]:
    """Return the most bytes that each worker will take for its stages."""
    return [BESIDES + each for each in peaks(table, weighed)]


def weigh_all(job: Job, module: nn.Module, blueprint: Blueprint, reader: Reader, chunk: Chunk) -> list[Weighed]:
    """Weigh every stage of a blueprint, on segments that are made for it."""
    holdings = blueprint.holdings(module)
    twins = [skeleton(module, mine) for mine in holdings]
    return weigh([Segment(w, job, twin, blueprint, reader) for w, twin in enumerate(twins)], chunk)


def weigh(segments: Sequence[Segment], chunk: Chunk) -> list[Weighed]:
    """Weigh every stage by two micro-batches like this one: the second finds gradients to add to."""
    live, stages = Live(), [s for segment in segments for s in segment.stages.values()]
    stages = sorted(stages, key=lambda stage: stage.code.number)
    with live:
        first, later = (_there_and_back(live, segments[0], stages, chunk) for _ in range(2))
    weighed = []
    for stage, (saved_bytes, forward, begun), (_, _, back) in zip(stages, first, later, strict=True):
        always, moment = _always(live, stage)
        weighed.append(Weighed(always, saved_bytes, forward, begun, back, moment))
    return weighed


def _there_and_back(live: Live, segment: Segment, stages: Sequence[Stage], chunk: Chunk) -> list[tuple[int, int, Back]]:
    """Return for each stage what its forward keeps, the most during it, and its backward.

    What arrives is a copy, as a message is, and what is sent is released.
    """
    message: list[Tensor] = []
    forwards, backwards = list[tuple[int, int, int]](), list[tuple[int, int, Back]]()
    for stage in stages:
        before = live.begin()
        batch = segment.reader.batch(chunk) if segment.reads(stage) else None
        inputs = [value.clone() for value in message]
        earlier = live.operations
        sent = run_alone(stage.forward(0, chunk, inputs, batch, 0, 0))
        most, graph = live.most - before, OPERATION * (live.operations - earlier)
        with live.elsewhere():
            message = [value.clone() for value in sent]
        del sent, batch, inputs
        forwards.append((live.bytes - before, most, graph))
    gradients: list[Tensor | None] = []
    for stage, (saved_bytes, forward, graph) in zip(reversed(stages), reversed(forwards), strict=True):
        before = live.begin() - saved_bytes
        back = run_alone(stage.backward_inputs(0, [None if g is None else g.clone() for g in gradients], 0))
        most = live.most - before + graph
        with live.elsewhere():
            gradients = [None if g is None else g.clone() for g in back]
        del back
        remaining = live.begin() - before
        stage.backward_weights(0)
        lies = 0 if stage.recompute else graph
        backwards.append(
            (saved_bytes + lies, forward + lies, Back(most, remaining, live.most - before, live.bytes - before))
        )
    return backwards[::-1]


def _always(live: Live, stage: Stage) -> tuple[int, int]:
    """Return the bytes held all the time, and those that an update needs for a moment."""
    weights = stage.weights
    state, moment = step_bytes(live, weights.store.optimizer, weights.versions.masters)
    values = sum(p.nbytes for p in weights.parameters) * weights.versions.copies
    for parameter in weights.parameters:
        parameter.grad = None
    return values + state + sum(b.nbytes for b in stage.moving.values), moment


def step_bytes(live: Live, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> tuple[int, int]:
    """Return the bytes of the optimizer's state, and those that a step needs for a moment, by steps on copies."""
    copies = {p: nn.Parameter(p.detach().clone()) for p in parameters}
    if not copies:
        return 0, 0
    stepped = optimizer_over(optimizer, copies)
    with live:
        for copied in copies.values():
            copied.grad = torch.zeros_like(copied)
        before = live.begin()
        bare_step(stepped)()
        state = live.bytes - before
        before = live.begin()
        bare_step(stepped)()
        moment = live.most - before
    return state, moment
