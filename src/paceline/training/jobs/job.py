"""The job: a model, its data and how to train it. A job does not know workers, and a plan nothing of models."""

from __future__ import annotations

import inspect
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.errors import JobError, is_positive, is_whole, plain, suggest, users_code
from paceline.errors.arguments import wrong_types
from paceline.errors.renames import JOB_FIELDS, JOB_VALUES, accepts_old_names, renames_fields
from paceline.text_table import TextList
from paceline.training.jobs.loaders import LoaderData, adopted, given, taken_apart
from paceline.training.jobs.metrics import RESERVED, by_name, goes_by_batches
from paceline.training.jobs.several import refuse_closures, together

Batch = Any  # a tuple of tensors for tensor data; whatever the data set's samples collate to otherwise
PRECISIONS = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
ON_NAN = ("stop", "skip", "ignore")
COMPUTES = ("autograd", "fused", "auto")
INTERVALS = ("update", "epoch")
#: Fields that are whole numbers, and the least of each.
LEAST = {"batch_size": 1, "epochs": 1, "accumulate_grad_batches": 1, "num_workers": 0, "evaluate_every": 1}
#: Fields that are functions, and what one looks like.
FUNCTIONS = {
    "loss": "nn.CrossEntropyLoss()",
    "step": "f(model, batch) -> loss",
    "lr_scheduler": "partial(torch.optim.lr_scheduler.StepLR, step_size=100)",
    "loss_denominator": "f(batch) -> number",
    "batch_transform": "f(batch) -> batch",
    "evaluate": "f(model, batch) -> (output, target)",
}


@renames_fields(JOB_FIELDS, JOB_VALUES)
@dataclass
class Job:
    """Describes a training: a model, its data, a loss and an optimizer.

    A job does not say how it is trained in parallel; a plan does.

    Args:
        model: The module, or a function that returns one.
        data: The training data: a tuple of tensors, NumPy arrays or data frames, a Dataset, a DataLoader, an
            IterableDataset, Shards, or a function that returns one of these. A DataLoader also sets `batch_size`,
            `shuffle` and `num_workers`.
        loss: Called as `loss(model(*inputs), target)` for batches `(*inputs, target)`.
        step: Called as `step(model, batch)` instead of `loss`, for batches of any other structure; returns the loss,
            or a dictionary that has it as `"loss"`; in evaluation it may return None, for a model that has no loss
            then. With neither `loss` nor `step`, the model returns its own: a tensor of one number, or
            `model(**batch).loss`, as models of transformers do.
        optimizer: A function of the parameters that returns a `torch.optim` optimizer, or a list of several with
            parameters of their own. A function whose argument is called `model` gets the model.
        batch_size: Samples per update, over all workers that share a batch; under DDP it is per rank.
        epochs: Passes over the data.
        test: Data for evaluation, in the same forms as `data`.
        seed: Seeds all randomness: initialization, the order of samples, dropout and augmentation.
        lr_scheduler: A function of the optimizer that returns a learning-rate scheduler.
        lr_scheduler_interval: `"update"` or `"epoch"`: when the scheduler is stepped.
        accumulate_grad_batches: The number of batches whose gradients are averaged before an update.
        device: `"cpu"`, `"cuda"` (workers are spread over the GPUs), `"cuda:1"`, or `"auto"`: a GPU where there is one.
        precision: `"32-true"`, or autocast with parameters in single precision: `"bf16-mixed"`, or `"16-mixed"`, which
            also scales the loss.
        compute: How gradients are computed: `"autograd"` by PyTorch; `"fused"` by one compiled program, for small
            networks; `"auto"` by whichever is faster on the first batch, and by PyTorch if it ends before a compiler.
        compile_options: Keywords of `torch.compile`, with which every worker compiles the model; `{}` for its defaults.
            A model that was compiled before keeps its own.
        metrics: `{name: metric}` over `test`. A metric is a function `f(outputs, targets)` of the whole test set, or an
            object with `update(output, target)`, `compute()` and `reset()`, as those of torchmetrics are. A list of
            such objects or a MetricCollection is accepted as well.
        on_nan: What happens when a loss is NaN or infinite: `"stop"` the run, `"skip"` the batch (gradients are checked
            as well), or `"ignore"` it.
        evaluate_every: Updates between two evaluations on `test`. Default: once per epoch.
        num_workers: Processes per worker that load samples of a Dataset in advance.
        shuffle: Whether each epoch has its own order.
        loss_denominator: For a loss that is not a mean over samples: a function of a batch that returns the number by
            which the loss was divided.
        batch_transform: Augmentation: a function from batch to batch, seeded by seed, update and chunk.
        evaluate: Called as `evaluate(model, batch)`; returns `(output, target)`, which the metrics get. Required with
            `step` where there are metrics.
        gradient_clip_norm: The norm to which larger gradients of an update are scaled down.
        name: The name that runs and reports show.
    """

    model: nn.Module | Callable[[], nn.Module]
    data: Any
    loss: Callable[..., Tensor] | None = None
    step: Callable[[nn.Module, Batch], Tensor] | None = None
    optimizer: Callable[..., torch.optim.Optimizer] = field(kw_only=True)
    batch_size: int = 100
    epochs: int = 1
    test: Any = None
    seed: int = 0
    lr_scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    lr_scheduler_interval: str = "update"
    gradient_clip_norm: float | None = None
    accumulate_grad_batches: int = 1
    device: str = "auto"
    precision: str = "32-true"
    compute: str = "auto"
    compile_options: dict[str, Any] | None = None
    metrics: Any = field(default_factory=dict)  # a dictionary, once the job is made
    on_nan: str = "stop"
    evaluate_every: int | None = None
    num_workers: int = 0
    shuffle: bool = True
    loss_denominator: Callable[[Batch], float] | None = None
    batch_transform: Callable[[Batch], Batch] | None = None
    evaluate: Callable[[nn.Module, Batch], tuple[Any, Any]] | None = None
    name: str = "job"
    origin: str = ""  # where the command line found it

    def __post_init__(self) -> None:
        self.metrics = by_name(self.metrics)
        self.model = self._uncompiled(self.model)
        for number in (*LEAST, "seed", "gradient_clip_norm"):
            setattr(self, number, plain(getattr(self, number)))
        faults = [*self._take_arrays(), *self._take_loaders(), *self._faults()]
        if faults:
            raise JobError("this job cannot be trained:\n" + "\n".join(f"  - {fault}" for fault in faults))

    def __repr__(self) -> str:
        model = type(self.model).__name__ if isinstance(self.model, nn.Module) else "..."
        return f"Job({self.name!r}, model={model}, batch_size={self.batch_size}, epochs={self.epochs})"

    def _repr_html_(self) -> str:
        usual = {
            name: each.default for name, each in self.__dataclass_fields__.items() if name not in ("name", "origin")
        }
        return TextList(f"Job {self.name}", given({name: getattr(self, name) for name in usual}, usual)).html()

    def _take_arrays(self) -> Iterator[str]:
        """Make tensors of NumPy arrays; yield what is wrong with one."""
        for what in ("data", "test"):
            data, faults = as_tensors(getattr(self, what), what)
            setattr(self, what, data)
            yield from faults

    def _take_loaders(self) -> Iterator[str]:
        """Take DataLoaders and streams apart, and adopt what they say; yield where the job says something else."""
        loader, self.test = self.data, taken_apart(self.test)
        self.data, settings = (
            adopted(taken_apart(loader), loader) if not isinstance(loader, LoaderData) else (loader, {})
        )
        for name, value in settings.items():
            default = type(self).__dataclass_fields__[name].default
            if getattr(self, name) not in (default, value):
                yield (
                    f"{name}={getattr(self, name)}, and data= is a DataLoader that says {value}; leave {name}= out, or "
                    "make them agree"
                )
            setattr(self, name, value)

    def _faults(self) -> Sequence[str]:
        faults = []
        if self.loss is not None and self.step is not None:
            faults.append("give either loss=f(output, target) or step=f(model, batch), not both")
        if not isinstance(self.model, nn.Module) and not callable(self.model):
            faults.append(
                f"model={self.model!r:.60} is neither an nn.Module nor a function that makes one; give one, as in "
                "model=lambda: nn.Linear(20, 2)"
            )
        if isinstance(self.optimizer, torch.optim.Optimizer):
            kind, rate = type(self.optimizer).__name__, self.optimizer.defaults.get("lr", 0.1)
            faults.append(
                f"optimizer= is an optimizer ({kind}) already tied to one model's parameters; every worker needs its "
                f"own: give a function that makes one, as in optimizer=partial(torch.optim.{kind}, lr={rate})"
            )
        elif not callable(self.optimizer):
            faults.append(
                f"optimizer={self.optimizer!r:.60} is not a function that makes an optimizer; give one, as in "
                "optimizer=partial(torch.optim.SGD, lr=0.1)"
            )
        if self.precision not in PRECISIONS:
            faults.append(f"precision={self.precision!r}; {suggest(self.precision, PRECISIONS)}")
        if self.compute not in COMPUTES:
            faults.append(f"compute={self.compute!r}; {suggest(self.compute, COMPUTES)}")
        if self.lr_scheduler_interval not in INTERVALS:
            interval = self.lr_scheduler_interval
            faults.append(f"lr_scheduler_interval={interval!r}; {suggest(interval, INTERVALS)}")
        if self.on_nan not in ON_NAN:
            faults.append(f"on_nan={self.on_nan!r}; {suggest(self.on_nan, ON_NAN)}")
        if isinstance(self.compile_options, dict):
            options = inspect.signature(torch.compile).parameters.keys() - {"model"}
            unknown = self.compile_options.keys() - options
            faults += [f"compile_options= has {each!r}; {suggest(each, options)}" for each in sorted(unknown)]
        return [*faults, *self._faults_of_numbers(), *self._faults_of_functions(), *self._faults_of_metrics()]

    def _faults_of_numbers(self) -> Iterator[str]:
        for word, least in LEAST.items():
            value = getattr(self, word)
            if (word, value) != ("evaluate_every", None) and not is_whole(value, least):
                yield f"{word}={value!r} is not a whole number of at least {least}"
        norm = self.gradient_clip_norm
        if norm is not None and not is_positive(norm):
            yield f"gradient_clip_norm={norm!r} is not a positive number; give one, such as 1.0, or None"
        if not is_whole(self.seed, 0) or self.seed >= 2**63:
            yield f"seed={self.seed!r} is not a whole number from 0 to 2**63 - 1"

    def _faults_of_functions(self) -> Iterator[str]:
        for word, usual in FUNCTIONS.items():
            value = getattr(self, word)
            if value is not None and not callable(value):
                yield f"{word}={value!r:.60} is not a function; give one, such as {usual}"
        typed = ("name", "shuffle", "compile_options")
        yield from wrong_types(Job, {word: getattr(self, word) for word in typed})
        if isinstance(self.loss, type) and issubclass(self.loss, nn.Module):
            yield f"loss={self.loss.__name__} is a class; give an object of it, as in loss=nn.{self.loss.__name__}()"
        if isinstance(self.data, tuple) and any(isinstance(part, list) for part in self.data):
            yield "data= holds Python lists; give tensors, as in data=(torch.tensor(x), torch.tensor(y))"

    def _faults_of_metrics(self) -> Iterator[str]:
        if self.metrics and self.step is not None and self.evaluate is None:
            yield (
                "metrics= beside step= would never be called, as a step returns only its loss; give also "
                "evaluate=f(model, batch) -> (output, target)"
            )
        if self.evaluate is not None and not self.metrics:
            yield "evaluate= is given without metrics= that would see its outputs; give metrics, or leave it out"
        if not isinstance(self.metrics, dict):
            yield f"metrics={self.metrics!r:.60} is not a dictionary {{name: metric}}, nor a metric or a list of some"
            return
        for name, metric in self.metrics.items():
            if not isinstance(name, str):
                yield f"metrics= has a metric called {name!r}; give it a name, as in metrics={{'f1': ...}}"
            if name in RESERVED:
                yield f"a metric cannot be called {name!r}, as a run has a figure of this name; give it another one"
            if not (goes_by_batches(metric) or callable(metric)):
                yield (
                    f"the metric {name!r} is {metric!r:.60}, which is neither a function f(output, target) nor an "
                    "object with update(output, target), compute() and reset()"
                )

    def refuse_unused(self) -> None:
        """Raise `JobError` for fields about an evaluation that would never be used."""
        options = {"metrics": self.metrics, "evaluate": self.evaluate, "evaluate_every": self.evaluate_every}
        names = ", ".join(f"{name}=" for name, value in options.items() if value)
        if self.test is None and names:
            raise JobError(
                f"{names} would never be used, as this job has no test data; give test=, in the form of data=, "
                "or leave it out"
            )

    def untested(self) -> Job:
        """Return the job without test data and the fields about them."""
        return self.with_(test=None, metrics={}, evaluate=None, evaluate_every=None)

    @accepts_old_names(JOB_FIELDS)
    def with_(self, **changes: Any) -> Job:
        """Return the job with some fields changed."""
        return replace(self, **changes)

    def make_model(self) -> nn.Module:
        """Return a new module with the parameters that every run of this job starts from.

        It is made by one thread: `nn.init.orthogonal_`, for one, rounds otherwise with two.
        """
        if isinstance(self.model, nn.Module):
            import copy

            with users_code("copying model=", hint=lambda fault: "; give a function that makes it, as in model=Net"):
                return copy.deepcopy(without_history(self.model))
        with torch.random.fork_rng(devices=[]), seeded_elsewhere(self.seed):
            seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
            seed(self.seed)  # without a GPU, the first takes milliseconds to note whence it was called
            with threads(1), users_code("model="):
                module = self._uncompiled(self.model())
        if not isinstance(module, nn.Module):
            raise JobError(f"model= returned {type(module).__name__}, not an nn.Module")
        return without_history(module)

    def _uncompiled(self, model: Any) -> Any:
        """Return the module within a model that went through torch.compile, whose options are kept for the workers."""
        module, options = unwrapped(model)
        if options is not None and self.compile_options is None:
            self.compile_options = options
        return module

    def make_optimizer(self, module: nn.Module, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a new optimizer for the module. Raise `JobError` for what is not a first-order torch optimizer."""
        with users_code("optimizer=", hint=lambda fault: _hint(self.optimizer)):
            optimizer = self.optimizer(module if _wants_module(self.optimizer) else parameters)
        if isinstance(optimizer, list | tuple):
            optimizer = together(optimizer)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise JobError(
                f"optimizer= returned {type(optimizer).__name__}, not a torch.optim.Optimizer, nor a list of some"
            )
        refuse_closures(optimizer)
        ids = {id(parameter) for parameter in (*parameters, *module.parameters())}
        for group in optimizer.param_groups:
            if any(id(parameter) not in ids for parameter in group["params"]):
                raise JobError(
                    "optimizer= returned an optimizer of parameters that are not the model's; give it those that it is "
                    "called with, as in lambda parameters: SGD(parameters, lr=0.1). Parameters of a loss belong into "
                    "the model"
                )
            if not math.isfinite(group.get("lr", 0.0)):
                raise JobError(f"optimizer= returned an optimizer with lr={float(group['lr'])}; give a finite one")
        return optimizer


def checked(job: object) -> Job:
    """Return the job, or raise `JobError` for anything else."""
    if isinstance(job, Job):
        return job
    raise JobError(
        f"job={job!r:.60} is not a Job; give one, as in paceline.Job(model=..., data=..., loss=..., optimizer=...). "
        "Built-in jobs and job files have names on the command line only"
    )


@contextmanager
def seeded_elsewhere(seed: int) -> Iterator[None]:
    """Seed Python's and NumPy's generators for functions of the user's, and restore them afterwards."""
    states = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _hint(factory: Callable[..., Any]) -> str:
    """Return what to change in the function that makes an optimizer, if it has the parameters of a model already."""
    if isinstance(factory, partial) and (factory.args or "params" in factory.keywords):
        return "; optimizer= is called with the parameters: leave them out, as in partial(torch.optim.SGD, lr=0.1)"
    return ""


def _wants_module(factory: Callable[..., Any]) -> bool:
    try:
        first = next(iter(inspect.signature(factory).parameters), "")
    except (TypeError, ValueError):
        return False
    return first in ("model", "module", "net")


def without_history(module: nn.Module) -> nn.Module:
    """Detach the tensors that hooks before a module's forward compute anew, as for pruning: others cannot be copied."""
    for part in module.modules():
        if part._forward_pre_hooks:
            for name, value in vars(part).items():
                if isinstance(value, Tensor) and value.grad_fn is not None:
                    vars(part)[name] = value.detach()
    return module


# NumPy arrays and data frames as a job's data, which become tensors.


def as_tensors(data: Any, what: str) -> tuple[Any, list[str]]:
    """Return data with tensors in place of arrays and frames, and what is wrong with one; `what` names the argument.

    Numbers of float64, NumPy's default, become tensors of PyTorch's default type, which the parameters of models have.
    """
    entries = data if isinstance(data, tuple | list) else [data]
    parts = [_array(each) for each in entries]
    arrays = [each for each in parts if isinstance(each, np.ndarray)]
    if not arrays:
        return data, []
    for original, each in zip(entries, parts, strict=True):
        if isinstance(each, np.ndarray) and each.dtype.kind not in "biuf":
            kind = "NumPy array" if each is original else type(original).__name__
            return data, [f"{what}= has a {kind} of {each.dtype}; give one of numbers, which a tensor can hold"]
    return tuple(_tensor(each) for each in parts), []


def _array(each: Any) -> Any:
    """Return the array of a frame or a series of pandas or Polars; anything else as it is."""
    return np.array(each) if type(each).__module__.partition(".")[0] in ("pandas", "polars") else each


def _tensor(each: Any) -> Any:
    if not isinstance(each, np.ndarray):
        return each
    tensor = torch.from_numpy(np.ascontiguousarray(each.astype(each.dtype.newbyteorder("="), copy=False)))
    return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor


# Models that went through `torch.compile`: the module within, and how it was to be compiled.
#
# A compiled model has another name for every parameter (`_orig_mod.`) and cannot be sent to another process. So the
# module within is what is trained and saved, and each worker compiles its own copy in place.


def unwrapped(model: Any) -> tuple[Any, dict[str, Any] | None]:
    """Return the module within a compiled model and the keywords of its `torch.compile`; else the model, and None."""
    frames = sys.modules.get("torch._dynamo.eval_frame")  # imported by whatever has compiled a model
    if frames is None or not isinstance(model, frames.OptimizedModule):
        return model, None
    module: nn.Module = model._orig_mod
    return module, _keywords(model.dynamo_ctx)


def _keywords(context: Any) -> dict[str, Any]:
    """Return the keywords that a compiled model's context was made from, as far as PyTorch keeps them."""
    backend, keywords = getattr(context, "callback", None), dict[str, Any]()
    while (within := getattr(backend, "_torchdynamo_orig_backend", None)) is not None:
        backend = within
    if (name := getattr(backend, "compiler_name", "inductor")) != "inductor":
        keywords["backend"] = name
    options = {**getattr(backend, "config", {}), **getattr(backend, "kwargs", {}).get("options", {})}
    if options:
        keywords["options"] = options
    if getattr(context, "fullgraph", False):
        keywords["fullgraph"] = True
    if (dynamic := getattr(backend, "dynamic", None)) is not None:
        keywords["dynamic"] = dynamic
    return keywords


# The number of compute threads: another number would add up in another order and change the bits.


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let PyTorch compute with this many threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
