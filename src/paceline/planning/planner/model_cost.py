"""The cost of a model: one step in fake mode, without memory for tensors and without a GPU.

PyTorch's fake tensors have shapes and no numbers. The step's operations go by a dispatch mode that records them:
forward and loss, backward, and the optimizer's update. A model whose Python looks at numbers (`.item()`, a branch on a
loss) cannot run so; it runs once with real tensors instead, with the same record. So does a small model that will be
trained here anyway: fake mode takes a second to import, and longer than the step.

This is the only file that knows PyTorch's dispatcher and its counters of floating-point operations.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry
from torch.utils.module_tracker import ModuleTracker

from paceline.planning.planner.card import BACKWARD, FORWARD, UPDATE, DispatchedCall, figures
from paceline.training.data.opening import open_source
from paceline.training.gradients.loss import loss_function
from paceline.training.jobs.job import PRECISIONS, Job
from paceline.training.parameters.layout import trainable
from paceline.training.parameters.optimizers import bare_step, without_the_compiler
from paceline.training.stages.memory_estimate import OPERATION, Live

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

SMALL = 1 << 26  # bytes of the parameters of a model whose step is made with real tensors
VIEWS = {
    "view",
    "_unsafe_view",
    "t",
    "transpose",
    "permute",
    "expand",
    "select",
    "slice",
    "squeeze",
    "unsqueeze",
    "detach",
    "alias",
    "as_strided",
    "split",
    "split_with_sizes",
    "unbind",
    "empty",
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "empty_strided",
    "reshape",
    "lift_fresh",
    "is_same_size",
    "unfold",
}
MATMULS = {"mm", "addmm", "bmm", "baddbmm", "mv", "dot", "linear"}
RANDOM = {"bernoulli_", "native_dropout", "rand_like", "randn_like", "uniform_", "normal_", "rrelu_with_noise"}
SLOW = ("softmax", "exp", "tanh", "sigmoid", "gelu", "erf", "log", "sin", "cos", "pow", "sqrt", "silu", "elu", "mish")
NORMS = ("norm",)
POOLS = ("pool",)
GATHERS = ("embedding", "index", "gather", "scatter")


@dataclass(frozen=True)
class ModelCost:
    """What one step of a model costs, with a batch of so many samples."""

    samples: int
    operations: tuple[DispatchedCall, ...]
    #: Bytes of trainable parameters.
    parameter_bytes: int
    #: Tensors that are trained.
    tensors: int
    #: Bytes that the forward pass keeps for the backward pass, besides parameters.
    activation_bytes: int
    #: Bytes of the optimizer's state.
    state_bytes: int
    #: Bytes of one batch.
    batch_bytes: int
    #: The most bytes of tensors during forward and backward that the step itself makes; gradients are among them.
    peak_bytes: int = 0
    #: Why the step ran with real tensors; empty where fake ones did.
    real: str = ""

    @functools.cached_property
    def kinds(self) -> dict[str, float]:
        """Bytes read and written by each kind of operation, forward and backward."""
        bytes_by_kind: dict[str, float] = {}
        for op in self.operations:
            if op.phase != UPDATE:
                bytes_by_kind[op.kind] = bytes_by_kind.get(op.kind, 0.0) + op.bytes
        return bytes_by_kind

    @property
    def flops(self) -> float:
        """Floating-point operations of forward and backward."""
        return sum(op.flops for op in self.operations if op.phase != UPDATE)

    def figures(self, *phases: str) -> dict[str, float]:
        """The figures of these phases."""
        return {**figures(op for op in self.operations if op.phase in phases), "step": 1.0}

    @property
    def layers(self) -> dict[str, dict[str, float]]:
        """Return operations, bytes and calls, forward and backward, of each module that has parameters or computes."""
        by_module: dict[str, dict[str, float]] = {}
        for op in self.operations:
            if op.phase != UPDATE and op.kind != "view":
                row = by_module.setdefault(op.module or "(loss)", {"flops": 0.0, "bytes": 0.0, "calls": 0.0})
                row["flops"] += op.flops
                row["bytes"] += op.bytes
                row["calls"] += 1
        return by_module


def cost_of(job: Job, samples: int, here: bool = False) -> ModelCost:
    """Run one step of the job on so many samples, and return what it costs.

    The step runs in fake mode; `here` says that this machine will train the job, so that a small model may run.
    """
    source = open_source(job.data, job.seed)
    batch = source.batch(torch.arange(samples) % len(source), 0)
    if job.batch_transform is not None:
        batch = job.batch_transform(batch)
    if here and 0 < parameter_bytes(job) <= SMALL:
        with torch.random.fork_rng(devices=[]):
            return _recorded(job, job.make_model(), batch, samples, None, "it is small")
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        mode = FakeTensorMode()
        return _recorded(job, _fake_module(job, mode), batch, samples, mode)
    except Exception as error:
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return _recorded(job, job.make_model(), batch, samples, None, why)


def parameter_bytes(job: Job) -> int:
    """Return the bytes of the model's trainable parameters, without memory for them; 0 where that is not possible."""
    if isinstance(job.model, nn.Module):
        return sum(_bytes(p) for p in trainable(job.model).values())
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as of weights that are loaded into nothing
            return sum(_bytes(p) for p in trainable(job.model()).values())
    except Exception:
        return 0  # it will be made for real, and fail for its own reason if it does


def _recorded(
    job: Job, module: nn.Module, batch: Any, samples: int, mode: FakeTensorMode | None, why: str = ""
) -> ModelCost:
    """Run the step, with fake tensors if there is a mode."""
    module.train()
    batch = batch if mode is None else tree_map(lambda v: mode.from_tensor(v) if isinstance(v, Tensor) else v, batch)
    parameters = list(trainable(module).values())
    optimizer = job.make_optimizer(module, parameters)
    recorder, tracker, live = Recorder(), ModuleTracker(), Live()
    saved_tensors = _KeptBytes({p.untyped_storage()._cdata for p in parameters})
    precision = PRECISIONS[job.precision]
    autocast = contextlib.nullcontext() if precision is None else torch.autocast("cpu", dtype=precision)
    with mode or contextlib.nullcontext(), live, recorder, tracker:
        recorder.tracker = tracker
        with autocast, torch.autograd.graph.saved_tensors_hooks(saved_tensors.keep, lambda value: value):
            loss = loss_function(job)(module, batch)
        graph = OPERATION * live.operations
        recorder.phase = BACKWARD
        loss.backward()
        peak = live.most + graph
        _step(recorder, optimizer)
    state = [v for values in optimizer.state.values() for v in values.values() if isinstance(v, Tensor)]
    inputs = [v for v in tree_leaves(batch) if isinstance(v, Tensor)]
    return ModelCost(
        samples,
        tuple(recorder.operations),
        sum(_bytes(p) for p in parameters),
        len(parameters),
        saved_tensors.bytes,
        sum(map(_bytes, state)),
        sum(map(_bytes, inputs)),
        peak,
        why,
    )


def _step(recorder: Recorder, optimizer: torch.optim.Optimizer) -> None:
    """Record an update by the optimizer, its second: the first one also makes its state."""
    before, step = len(recorder.operations), bare_step(optimizer)
    recorder.phase = UPDATE
    step()
    del recorder.operations[before:]
    step()


def _fake_module(job: Job, mode: FakeTensorMode) -> nn.Module:
    """Make the job's model with fake parameters and buffers, without memory for real ones; tied ones stay tied."""
    if not isinstance(job.model, nn.Module):
        with mode:
            model = job.model()
        return model if all(p.device.type == "cpu" for p in model.parameters()) else _faked(model, mode)
    return _faked(copy.deepcopy(job.model), mode)


def _faked(module: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Return the module with fake parameters and buffers on the CPU in place of its own."""
    replacements: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")

    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                if id(parameter) not in replacements:
                    replacements[id(parameter)] = nn.Parameter(fake(parameter), requires_grad=parameter.requires_grad)
                owner._parameters[name] = replacements[id(parameter)]  # type: ignore[assignment]
        for name, buffer in owner._buffers.items():
            if buffer is not None:
                owner._buffers[name] = fake(buffer)
    return module


class _KeptBytes:
    """Counts the bytes that autograd keeps, each storage once."""

    def __init__(self, storages: set[int]) -> None:
        self.known, self.bytes = storages, 0

    def keep(self, value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage._cdata not in self.known:
            self.known.add(storage._cdata)
            self.bytes += storage.nbytes()
        return value


class Recorder(TorchDispatchMode):
    """Records every operation of the block, with its phase and its module."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[DispatchedCall] = []
        self.phase = FORWARD
        self.tracker: ModuleTracker | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "aten":
            self.operations.append(_operation(func, args, kwargs or {}, result, self.phase, self._module()))
        return result

    def _module(self) -> str:
        """The innermost module that runs."""
        paths = self.tracker.parents if self.tracker is not None else set()
        deepest = max((path for path in paths if path != "Global"), key=lambda path: path.count("."), default="")
        return deepest.partition(".")[2]


without_the_compiler(Recorder.__torch_dispatch__)


def _operation(func: Any, args: Any, kwargs: Mapping[str, Any], result: Any, phase: str, module: str) -> DispatchedCall:
    """Describe one call."""
    packet = func._overloadpacket
    name = packet.__name__
    inputs = [v for v in tree_leaves((args, dict(kwargs))) if isinstance(v, Tensor)]
    outputs = [v for v in tree_leaves(result) if isinstance(v, Tensor)]
    input_ids = {id(v) for v in inputs}
    fresh = [v for v in outputs if id(v) not in input_ids]
    elements = max((float(v.numel()) for v in (*inputs, *outputs)), default=0.0)
    moved = float(sum(_bytes(v) for v in (*inputs, *(fresh or outputs))))
    kind = _kind(name)
    flops, extent = 0.0, 0
    if kind == "recurrent":
        flops, extent, elements = _recurrent(name, inputs)
    elif packet in flop_registry:
        flops = float(flop_registry[packet](*args, **kwargs, out_val=result))
    if kind == "convolution":
        weight = next(v for v in reversed(inputs) if v.dim() >= 3)
        extent = min(weight.shape[:2])
    if kind == "matmul":
        sizes = [size for v in inputs[-2:] for size in v.shape[-2:]]
        extent = min(sizes, default=0)
    if kind == "gather":
        moved = _gathered(name, inputs, fresh)
    return DispatchedCall(
        f"aten.{name}", phase, module, kind, flops, moved, elements, extent, float(sum(map(_bytes, outputs)))
    )


def _kind(name: str) -> str:
    if name in VIEWS:
        return "view"
    if name in MATMULS:
        return "matmul"
    if "convolution" in name:
        return "convolution"
    if "rnn" in name or "lstm" in name or "gru" in name:
        return "recurrent"
    if name in RANDOM:
        return "random"
    if name.startswith(GATHERS) or "embedding" in name:
        return "gather"
    for kind, words in (("pool", POOLS), ("norm", NORMS), ("slow", SLOW)):
        if any(word in name for word in words):
            return kind
    return "plain"


def _gathered(name: str, inputs: list[Tensor], fresh: list[Tensor]) -> float:
    """Return the bytes that are moved: a lookup reads the rows that it returns, not the whole table."""
    smaller = min((_bytes(v) for v in inputs if v.is_floating_point()), default=0)
    output_bytes = sum(map(_bytes, fresh))
    return float(
        output_bytes + smaller if "backward" in name or "put" in name or "scatter" in name else 2 * output_bytes
    )


def _recurrent(name: str, inputs: list[Tensor]) -> tuple[float, int, float]:
    """Return the floating-point operations, the time steps and the cells of one recurrent layer."""
    weights = [v for v in inputs if v.dim() == 2]
    steps = max((v.shape[0] for v in inputs if v.dim() == 3), default=1)
    batch = next((v.shape[1] for v in inputs if v.dim() == 3), 1)
    flops = 2.0 * steps * batch * sum(float(v.numel()) for v in weights[:2])
    cells = float(steps * batch * max((v.shape[0] for v in weights[:2]), default=0))
    return flops * (2 if "backward" in name else 1), steps, cells


def _bytes(tensor: Tensor) -> int:
    if tensor.is_sparse:
        return 0 if hasattr(tensor, "fake_mode") else int(tensor._nnz()) * tensor.element_size()
    return math.prod(tensor.shape) * tensor.element_size()
