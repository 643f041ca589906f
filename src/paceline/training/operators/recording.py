"""Recording: which operators an instance calls, found by running the model's own `forward` without computing anything.

Operators are replaced by stand-ins that return a `Value` for each tensor that the operator would return. A function of
PyTorch that is applied to a `Value` becomes a call of its own. So `forward` may loop, branch and recurse over its
*input* as it likes; what operators compute is not known yet, and a decision by it is refused by name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paceline.algorithms.dataflow import NO_OPERATOR, Call, Graph
from paceline.errors import JobError
from paceline.training.jobs.job import Batch

CONTAINERS = (nn.ModuleList, nn.ModuleDict)
REMEDY = "the structure may depend on the model's input, not on what its operators compute: put it into an operator"


class Recorded(NamedTuple):
    """What a call computes."""

    #: The operator's number, or the function.
    what: int | Callable[..., Any]
    #: Arguments, with a `Value` in the place of each tensor that another call computes.
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    #: How often the instance has called the operator before.
    nth: int = 0

    @property
    def values(self) -> Iterator[Value]:
        """What it takes of other calls."""
        return values_in((self.args, self.kwargs))


def values_in(tree: Any) -> Iterator[Value]:
    """Yield the stand-ins in an argument."""
    return (leaf for leaf in leaves(tree) if isinstance(leaf, Value))


def mapped(tree: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return what a structure of tuples, lists and dictionaries is with everything of a kind changed."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, tuple | list):
        children = [mapped(each, kind, change) for each in tree]
        return type(tree)(*children) if hasattr(tree, "_fields") else type(tree)(children)
    if isinstance(tree, Mapping):
        return {key: mapped(each, kind, change) for key, each in tree.items()}
    return tree


def leaves(tree: Any) -> Iterator[Any]:
    """Yield what a structure of tuples, lists and dictionaries is built of."""
    if isinstance(tree, tuple | list):
        for each in tree:
            yield from leaves(each)
    elif isinstance(tree, Mapping):
        yield from leaves(tuple(tree.values()))
    else:
        yield tree


#: How what an operator returns is built: with the place of each tensor in that of the tensor.
Built = Any


def taken_apart(result: Any, name: str) -> tuple[list[Tensor], Built]:
    """Return the tensors of what an operator returned, and how it is built of them."""
    tensors: list[Tensor] = []

    def take(leaf: Any) -> int:
        if not isinstance(leaf, Tensor):
            raise JobError(
                f"operator {name} returns a {type(leaf).__name__}; return tensors, or tuples, lists or dictionaries of "
                "them"
            )
        tensors.append(leaf)
        return len(tensors) - 1

    def walk(tree: Any) -> Built:
        if isinstance(tree, tuple | list):
            children = [walk(each) for each in tree]
            return type(tree)(*children) if hasattr(tree, "_fields") else type(tree)(children)
        return {key: walk(each) for key, each in tree.items()} if isinstance(tree, dict) else take(tree)

    return tensors, walk(result)


class Instance(NamedTuple):
    """An instance's graph, and what its calls compute."""

    graph: Graph
    calls: tuple[Recorded, ...]


class Value:
    """Stands for a tensor that a call will compute."""

    __slots__ = ("call", "place", "tape")

    def __init__(self, tape: _Tape, call: int, place: int) -> None:
        self.tape: _Tape | None = tape
        self.call, self.place = call, place

    def then(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
        """Return what stands for a function's result."""
        if self.tape is None:
            raise JobError(f"the model keeps what an operator returned beyond its instance; {REMEDY}")
        return self.tape.function(function, args, kwargs)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Value:
        return next(values_in((args, kwargs))).then(function, args, kwargs or {})

    def __getattr__(self, name: str) -> Callable[..., Value]:
        method = getattr(Tensor, name, None)
        if name in READS or not callable(method):
            raise JobError(f"the model reads .{name} of what an operator returned; {REMEDY}")
        if name.endswith("_"):
            raise JobError(f"the model changes in place, by {name}, what an operator returned; use {name.rstrip('_')}")
        return lambda *args, **kwargs: self.then(method, (self, *args), kwargs)

    def __iter__(self) -> Iterator[Any]:
        raise JobError(f"the model iterates over a tensor that an operator returned; {REMEDY}")

    def __bool__(self) -> bool:
        raise JobError(f"the model decides by the value of what an operator returned; {REMEDY}")


READS = {
    "size",
    "dim",
    "numel",
    "item",
    "tolist",
    "numpy",
    "stride",
    "data_ptr",
    "backward",
    "detach_",
    "values",
    "indices",
}
OPERATIONS = (
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "rtruediv",
    "matmul",
    "rmatmul",
    "pow",
    "rpow",
    "neg",
    "getitem",
    "gt",
    "ge",
    "lt",
    "le",
)


def _operation(name: str) -> Callable[..., Value]:
    method = getattr(Tensor, name)
    return lambda self, *args: self.then(method, (self, *args), {})


def _number(self: Value) -> Any:
    raise JobError(f"the model turns what an operator returned into a number; {REMEDY}")


for _name in OPERATIONS:
    setattr(Value, f"__{_name}__", _operation(f"__{_name}__"))
for _name in ("float", "int", "index", "len"):
    setattr(Value, f"__{_name}__", _number)


class _StandIn(nn.Module):
    """Stands in for an operator."""

    def __init__(self, name: str, number: int, recorder: Recorder) -> None:
        super().__init__()
        self.__dict__.update(_name=name, _number=number, _recorder=recorder)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._recorder.tape.operator(self._number, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        raise JobError(
            f"the model reads {name} of its operator {self._name} outside of a call; an operator is called as a whole, "
            "by the worker that holds it: put what needs it into one submodule"
        )

    def __iter__(self) -> Any:
        return self.__getattr__("what is in it")

    def __getitem__(self, key: object) -> Any:
        return self.__getattr__(str(key))


class _Tape:
    """The calls of one instance so far."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.calls = recorder, list[Call]()
        self.recorded: list[Recorded] = []
        self.uses: dict[int, int] = {}

    def operator(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        built = self.recorder.returns.get(number)
        if built is None:
            name = self.recorder.names[number]
            raise JobError(
                f"no instance of the first batch calls operator {name}, so it is not known what it returns; "
                "arrange the data so that each operator is called in the first batch"
            )
        nth = self.uses.get(number, 0)
        self.uses[number] = nth + 1
        call = self._add(Recorded(number, args, kwargs, nth), self.recorder.holders.get(number), number)
        return mapped(built, int, lambda place: Value(self, call, place))

    def function(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
        return Value(self, self._add(Recorded(function, args, kwargs), None, NO_OPERATOR), 0)

    def _add(self, recorded: Recorded, holder: int | None, operator: int) -> int:
        args, kwargs = mapped((recorded.args, recorded.kwargs), Value, lambda value: value)
        recorded = recorded._replace(args=args, kwargs=kwargs)  # a list may grow after the call
        takes = tuple(dict.fromkeys(value.call for value in recorded.values))
        if holder is None:  # it has no parameters: it is computed where the first thing that it takes is
            holder, operator = self.calls[takes[0]].holder if takes else 0, NO_OPERATOR
        self.calls.append(Call(holder, operator, takes))
        self.recorded.append(recorded)
        return len(self.calls) - 1

    def instance(self, loss: Any) -> Instance:
        """Return the instance without the calls that its loss does not depend on; the loss is the last call."""
        if not isinstance(loss, Value):
            raise JobError(f"the loss is a {type(loss).__name__}: it depends on no operator of the model")
        needed = {loss.call}
        for number in range(loss.call, -1, -1):
            if number in needed:
                needed.update(self.calls[number].takes)
        numbers = sorted(needed)
        place = {old: new for new, old in enumerate(numbers)}
        for value in {id(v): v for n in numbers for v in self.recorded[n].values}.values():
            value.call = place[value.call]
        for recorded in self.recorded:
            for value in recorded.values:
                value.tape = None  # no circle keeps the instance alive
        calls = tuple(
            call._replace(takes=tuple(place[other] for other in call.takes))
            for call in (self.calls[n] for n in numbers)
        )
        return Instance(Graph(calls), tuple(self.recorded[n] for n in numbers))


class Recorder:
    """Records instances of a model whose operators are held by these workers."""

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[nn.Module, Batch], Any],
        holders: Mapping[int, int],
        returns: Mapping[int, Built],
    ) -> None:
        """
        Args:
            module: the model; it is not changed.
            loss: called with a model and a batch.
            holders: the worker of each operator with parameters or buffers.
            returns: how what each operator returns is built of tensors.
        """
        self.names, self.holders, self.returns, self.loss = list(operators_of(module)), holders, returns, loss
        numbers = {name: number for number, name in enumerate(self.names)}
        self.model = _standing_in(module, "", lambda name: _StandIn(name, numbers[name], self))
        self.tape = _Tape(self)

    def record(self, batch: Batch) -> Instance:
        self.tape = _Tape(self)
        return self.tape.instance(self.loss(self.model, batch))


def operators_of(module: nn.Module) -> dict[str, nn.Module]:
    """Return the operators of a model by name: its children, and those of its lists and dictionaries of modules."""
    operators: dict[str, nn.Module] = {}
    for name, child in module.named_children():
        if isinstance(child, CONTAINERS):
            operators |= {f"{name}.{inner}": part for inner, part in operators_of(child).items()}
        else:
            operators[name] = child
    return operators


def _standing_in(module: nn.Module, prefix: str, make: Callable[[str], nn.Module]) -> nn.Module:
    """Return the model with stand-ins for its operators, everything else being its own."""
    clone = copy.copy(module)
    clone.__dict__["_modules"] = dict(module._modules)
    stand_ins: dict[int, nn.Module] = {}
    for name, child in module._modules.items():
        if child is None:
            continue
        if id(child) not in stand_ins:
            full = f"{prefix}{name}"
            stand_ins[id(child)] = (
                _standing_in(child, f"{full}.", make) if isinstance(child, CONTAINERS) else make(full)
            )
        clone._modules[name] = stand_ins[id(child)]
    return clone


def structure_of(module: nn.Module, run: Callable[[nn.Module], object]) -> dict[int, Built]:
    """Run a model as it is, and return how what each operator returns is built of tensors."""
    structures: dict[int, Built] = {}
    hooks = []
    for number, (name, part) in enumerate(operators_of(module).items()):

        def check_structure(_: nn.Module, args: Any, result: Any, number: int = number, name: str = name) -> None:
            built = taken_apart(result, name)[1]
            if structures.setdefault(number, built) != built:
                raise JobError(f"operator {name} returns now {structures[number]}, now {built}; return always the same")

        hooks.append(part.register_forward_hook(check_structure))
    try:
        with torch.no_grad():
            run(module)
    finally:
        for hook in hooks:
            hook.remove()
    return structures
