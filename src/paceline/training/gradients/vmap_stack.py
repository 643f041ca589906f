"""Jobs of one shape trained side by side by PyTorch: torch.func.vmap over all members, for networks without kernels.

The parameters of a member are a row of a matrix, and the optimizer steps all rows at once. What draws random numbers or
changes buffers during training is refused: under vmap it would not have the numbers of a separate training.
"""

from __future__ import annotations

import functools
import hashlib
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from paceline.algorithms.agenda import Agenda
from paceline.training.data.opening import open_source
from paceline.training.data.source import Order, TensorSource
from paceline.training.jobs.job import Job

# Which jobs can be trained in one vectorised pass: those that differ in data only, not in what is computed.

# The members of a stack: jobs of one shape on the same samples, each with its own module and order of samples.


class Members:
    """Members that have all made the same number of updates; a stack says how they are trained."""

    def __init__(self, jobs: Sequence[Job], source: TensorSource, agenda: Agenda) -> None:
        self.x, self.y = source.tensors
        self.agenda = agenda
        #: Updates that every member has made.
        self.updates = 0
        self.jobs = list(jobs)
        self.modules = [job.make_model().train() for job in jobs]
        self.orders = [Order(len(source), job.seed, job.shuffle) for job in jobs]

    def choose(self, places: Sequence[int]) -> None:
        """Keep only the members at these places."""
        self.jobs = [self.jobs[place] for place in places]
        self.modules = [self.modules[place] for place in places]
        self.orders = [self.orders[place] for place in places]


# What a module or a function computes besides its tensors, as a text: equal texts compute the same.
#
# Of modules it is the class and the attributes, of functions the code and what it closes over. An object of which
# nothing is known is equal to itself alone.

PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
DEEPEST = 6  # objects within objects that are looked into
OWN = frozenset(nn.Module().__dict__)  # what every module has


def of_module(module: nn.Module) -> str:
    """Return what a module computes; the rates of its layers of dropout may differ."""
    return repr([(name, _part(part)) for name, part in module.named_modules()])


def _part(part: nn.Module) -> list[Any]:
    """Return a module's class and attributes, without its tensors and its modules."""
    theirs = type(part).__module__.startswith("torch.")
    left_out = {"p"} if isinstance(part, nn.modules.dropout._DropoutNd) else set[str]()
    hooks = [name for name in OWN if name.endswith("hooks") and getattr(part, name)]
    attributes = {
        name: canonical(value)
        for name, value in vars(part).items()
        if name not in OWN and name not in left_out and not (theirs and name.startswith("_"))
    }
    return [canonical(type(part)), attributes, [(name, id(part)) for name in hooks]]


def canonical(value: Any, depth: int = 0) -> Any:
    """Return a value as something whose repr is the same for equal values."""
    if isinstance(value, PLAIN_TYPES):
        return value
    if isinstance(value, Tensor):
        numbers = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return [tuple(value.shape), str(value.dtype), hashlib.sha256(numbers).hexdigest()]
    if depth > DEEPEST or isinstance(value, type | types.BuiltinFunctionType | types.ModuleType):
        return [getattr(value, "__qualname__", type(value).__qualname__), id(value)]
    if isinstance(value, Mapping):
        return [[canonical(key, depth + 1), canonical(part, depth + 1)] for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [canonical(part, depth + 1) for part in value]
    if isinstance(value, functools.partial):
        return [canonical(part, depth + 1) for part in (value.func, value.args, value.keywords)]
    if isinstance(value, types.FunctionType):
        return _function(value, depth)
    if isinstance(value, types.MethodType):
        return [canonical(value.__func__, depth + 1), canonical(value.__self__, depth + 1)]
    if isinstance(value, nn.Module):
        return [of_module(value), [canonical(tensor) for tensor in value.state_dict().values()]]
    if type(value).__module__ != "builtins" and hasattr(value, "__dict__"):
        return [canonical(type(value)), canonical(vars(value), depth + 1)]
    return [type(value).__qualname__, id(value)]


def _function(value: types.FunctionType, depth: int) -> list[Any]:
    code = value.__code__
    constants = [part.co_code if isinstance(part, types.CodeType) else part for part in code.co_consts]
    closure = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
    return [
        value.__module__,
        value.__qualname__,
        code.co_code,
        repr(constants),
        code.co_names,
        *(canonical(part, depth + 1) for part in (value.__defaults__, value.__kwdefaults__, closure)),
    ]


class CannotStack(Exception):
    """A job that has to be trained separately; the message says why."""


#: Fields of a job that a stack does not know, and the value that asks for nothing.
PLAIN: dict[str, Any] = {
    "lr_scheduler": None,
    "gradient_clip_norm": None,
    "accumulate_grad_batches": 1,
    "batch_transform": None,
    "step": None,
    "loss_denominator": None,
    "precision": "32-true",
}


def shape_of(job: Job) -> tuple[str, TensorSource]:
    """Return what the members of a stack have in common, as a text, and the job's data. Raise CannotStack."""
    for field, plain in PLAIN.items():
        if getattr(job, field) != plain:
            raise CannotStack(f"{field}= is not stacked")
    if job.on_nan == "skip":
        raise CannotStack("on_nan='skip' is not stacked")
    source = open_source(job.data, job.seed)
    if not isinstance(source, TensorSource) or len(source.tensors) != 2:
        raise CannotStack("the data are not a pair of tensors")
    with torch.random.fork_rng(devices=[]):
        module = job.make_model()
        optimizer = job.make_optimizer(module, list(module.parameters()))
    groups = [len(group["params"]) for group in optimizer.param_groups]
    flags = [{k: v for k, v in group.items() if isinstance(v, bool | str)} for group in optimizer.param_groups]
    parts = (
        _structure(module),
        type(optimizer).__name__,
        groups,
        flags,
        canonical(job.loss),
        job.batch_size,
        job.device,
        source.fingerprint(),
    )
    return repr(parts), source


def _structure(module: nn.Module) -> list[Any]:
    """Return what the module computes, and the shapes of its tensors; rates of dropout may differ."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return [of_module(module), [(name, tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in tensors]]


# SGD, Adam and AdamW for several members at once: each member is a row of a matrix, with settings of its own.
#
# The formulas are those of torch.optim, element by element, so that a row has the numbers of its own optimizer.

#: Flags of an optimizer that change what it computes, and are not known here.
UNKNOWN = ("maximize", "amsgrad", "capturable", "differentiable")


class RowOptimizer(Protocol):
    """Steps all rows of a matrix of parameters."""

    #: What is remembered between steps: matrices of the parameters' shape.
    memory: list[Tensor]

    def step(self, values: Tensor, gradient: Tensor, updates: int) -> None:
        """Change the values, by a gradient that may be overwritten. `updates` were made before."""


class Settings:
    """The settings of the members' optimizers, as columns, or as matrices where groups of parameters differ.

    They are in double precision, since what is left of 1 - 0.999 in single precision is not what torch.optim computes.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], like: Tensor) -> None:
        self.groups = [optimizer.param_groups for optimizer in optimizers]
        self.sizes = [sum(p.numel() for p in group["params"]) for group in self.groups[0]]
        self.like = like

    def column(self, name: str, place: int | None = None) -> Tensor:
        """Return a setting of all members; `place` is where it lies in a setting that is a tuple."""

        def value(group: dict[str, Any]) -> float:
            return float(group[name] if place is None else group[name][place])

        rows = [[value(group) for group in groups] for groups in self.groups]
        tensor = torch.tensor(rows, dtype=torch.float64)
        return tensor if tensor.shape[1] == 1 else tensor.repeat_interleave(torch.tensor(self.sizes), 1)


class RowSgd:
    """SGD with momentum."""

    def __init__(self, settings: Settings) -> None:
        lr, decay, momentum, dampening = (
            settings.column(name).to(settings.like.dtype) for name in ("lr", "weight_decay", "momentum", "dampening")
        )
        self.lr, self.decay, self.momentum = lr, decay, momentum
        self.nesterov = settings.column("nesterov").bool()
        self.taken = torch.where(momentum == 0, 1.0, 1 - dampening)  # without momentum there is no dampening
        self.memory = [torch.zeros_like(settings.like)] if bool(self.momentum.any()) else []

    def step(self, values: Tensor, gradient: Tensor, updates: int) -> None:
        gradient.addcmul_(values, self.decay)
        if not self.memory:
            values.addcmul_(gradient, -self.lr)
            return
        (momentum,) = self.memory
        momentum.mul_(self.momentum).addcmul_(gradient, self.taken if updates else torch.ones_like(self.taken))
        ahead = torch.addcmul(gradient, momentum, self.momentum)
        values.addcmul_(torch.where(self.nesterov, ahead, momentum), -self.lr)


class RowAdam:
    """Adam, whose decay of weights is part of the gradient, and AdamW, which decays the weights themselves."""

    def __init__(self, settings: Settings, decoupled: bool) -> None:
        self.lr, self.decay, self.eps = (settings.column(name) for name in ("lr", "weight_decay", "eps"))
        self.beta1, self.beta2 = settings.column("betas", 0), settings.column("betas", 1)
        self.decoupled, self.dtype = decoupled, settings.like.dtype
        self.memory = [torch.zeros_like(settings.like), torch.zeros_like(settings.like)]

    def step(self, values: Tensor, gradient: Tensor, updates: int) -> None:
        mean, square = self.memory
        if self.decoupled:
            values.mul_(self._cast(1 - self.lr * self.decay))
        else:
            gradient.addcmul_(values, self._cast(self.decay))
        mean.lerp_(gradient, self._cast(1 - self.beta1).expand_as(gradient))
        square.mul_(self._cast(self.beta2)).addcmul_(gradient * gradient, self._cast(1 - self.beta2))
        root = square.sqrt().div_(self._cast((1 - self.beta2 ** (updates + 1)).sqrt())).add_(self._cast(self.eps))
        values.addcdiv_(mean * self._cast(-self.lr / (1 - self.beta1 ** (updates + 1))), root)

    def _cast(self, column: Tensor) -> Tensor:
        return column.to(self.dtype)


def row_optimizer(optimizers: Sequence[torch.optim.Optimizer], like: Tensor) -> RowOptimizer:
    """Return the optimizer of all rows of a matrix like this one. Raise CannotStack for other kinds."""
    kind = type(optimizers[0])
    for group in optimizers[0].param_groups:
        for flag in UNKNOWN:
            if group.get(flag):
                raise CannotStack(f"{flag}=True of {kind.__name__} is not vectorised")
    settings = Settings(optimizers, like)
    if kind is torch.optim.SGD:
        return RowSgd(settings)
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        decoupled = kind is torch.optim.AdamW or bool(optimizers[0].param_groups[0].get("decoupled_weight_decay"))
        return RowAdam(settings, decoupled)
    raise CannotStack(f"{kind.__name__} is not vectorised; SGD, Adam and AdamW are")


#: (parameters, buffers, inputs, targets) of all members -> (gradients by name, losses).
Gradients = Callable[[dict[str, Tensor], dict[str, Tensor], Tensor, Tensor], tuple[dict[str, Tensor], Tensor]]


class VmapStack(Members):
    """Trains all members at once by torch.func."""

    def __init__(self, jobs: Sequence[Job], source: TensorSource, agenda: Agenda) -> None:
        super().__init__(jobs, source, agenda)
        self._arrange()
        self._probe()

    def _arrange(self) -> None:
        """Copy the members' parameters into the rows of a matrix, in the order of their optimizers."""
        optimizers = [
            job.make_optimizer(m, list(m.parameters())) for job, m in zip(self.jobs, self.modules, strict=True)
        ]
        names = {id(p): name for name, p in self.modules[0].named_parameters()}
        #: Each parameter that is trained: its name and its shape.
        self.trained = [(names[id(p)], p.shape) for group in optimizers[0].param_groups for p in group["params"]]
        parameters = [dict(module.named_parameters()) for module in self.modules]
        self.values = torch.stack(
            [torch.cat([each[n].detach().flatten() for n, _ in self.trained]) for each in parameters]
        )
        rest = [name for name in parameters[0] if name not in dict(self.trained)]
        buffers = [dict(module.named_buffers()) for module in self.modules]
        #: What is not trained: buffers, and parameters that the optimizer does not have.
        self.fixed = {name: torch.stack([each[name] for each in buffers]) for name in buffers[0]} | {
            name: torch.stack([each[name].detach() for each in parameters]) for name in rest
        }
        self.optimizer = row_optimizer(optimizers, self.values)
        self.gradients = self._vectorised(self._shared())

    def _shared(self) -> bool:
        """Whether all members see the same samples in the same order."""
        return len({(job.seed, job.shuffle) for job in self.jobs}) == 1

    def _vectorised(self, shared: bool) -> Gradients:
        skeleton, loss = self.modules[0], self.jobs[0].loss
        if loss is None:
            raise CannotStack("the job has no loss= of an output and a target")

        def value(parameters: dict[str, Tensor], fixed: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            batch_loss: Tensor = loss(functional_call(skeleton, {**parameters, **fixed}, (x,)), y)
            return batch_loss

        data = None if shared else 0
        gradients: Gradients = vmap(grad_and_value(value), in_dims=(0, 0, data, data), randomness="error")
        return gradients

    def _probe(self) -> None:
        """Refuse a network that vmap does not take, or that is more than a function of its parameters."""
        before = {name: value.clone() for name, value in self.fixed.items()}
        try:
            with warnings.catch_warnings():  # an operation that vmap only repeats for each member
                warnings.filterwarnings("error", "There is a performance drop")
                self._gradient(0)
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CannotStack(f"torch.func does not take the network: {reason:.200}") from error
        changed = [name for name, value in self.fixed.items() if not torch.equal(value, before[name])]
        if changed:
            raise CannotStack(f"the buffer {changed[0]} changes during training")

    # --- training ---

    def advance(self, updates: int) -> list[float]:
        """Train until so many updates are made; return the mean loss of the new ones for each member."""
        total = torch.zeros(len(self.jobs), dtype=torch.float64)
        begun = self.updates
        while self.updates < updates:
            gradient, losses = self._gradient(self.updates)
            self.optimizer.step(self.values, gradient, self.updates)
            total += losses
            self.updates += 1
        means: list[float] = (total / max(1, updates - begun)).tolist()
        return means

    def _gradient(self, update: int) -> tuple[Tensor, Tensor]:
        """Return the gradients of an update's batches as a matrix, and the losses."""
        span = self.agenda.span(update)
        if self._shared():
            samples = self.orders[0].span(*span)
        else:
            samples = torch.stack([order.span(*span) for order in self.orders])
        with sdpa_kernel(SDPBackend.MATH):  # of scaled dot products, vmap takes the formula alone
            gradients, losses = self.gradients(self._parameters(), self.fixed, self.x[samples], self.y[samples])
        return torch.cat([gradients[name].flatten(1) for name, _ in self.trained], 1), losses.detach()

    def _parameters(self) -> dict[str, Tensor]:
        """Return views of the matrix, by name."""
        parts = self.values.split([shape.numel() for _, shape in self.trained], 1)
        return {
            name: part.unflatten(1, shape) if shape else part[:, 0]
            for (name, shape), part in zip(self.trained, parts, strict=True)
        }

    # --- members ---

    def keep(self, places: Sequence[int]) -> None:
        """Keep these members alone."""
        memory = [part[list(places)] for part in self.optimizer.memory]
        for place in places:
            self.module(place)
        self.choose(places)
        self._arrange()
        for mine, source in zip(self.optimizer.memory, memory, strict=False):
            mine.copy_(source)

    def state(self, place: int) -> dict[str, Any]:
        """Return what a member goes on from."""
        memory = [part[place].clone() for part in self.optimizer.memory]
        return {"updates": self.updates, "values": self.values[place].clone(), "memory": memory}

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Let all members go on from states of the same number of updates."""
        self.updates = int(states[0]["updates"])
        for place, state in enumerate(states):
            self.values[place] = state["values"]
            for part, source in zip(self.optimizer.memory, state["memory"], strict=False):
                part[place] = source

    def module(self, place: int) -> nn.Module:
        """Return a member's module with its parameters as they are now."""
        mine = dict(self.modules[place].named_parameters())
        with torch.no_grad():
            for name, value in self._parameters().items():
                mine[name].copy_(value[place])
        return self.modules[place]
