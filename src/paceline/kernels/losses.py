"""The losses that have a kernel: each a mean over samples, and over the numbers of a sample.

A loss is one of PyTorch's; a function of (output, target) that calls one, such as cross entropy of all steps of a
sequence; or an expression of each output and its target, averaged.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from paceline.kernels.functions import applied, partials
from paceline.kernels.ir import Expression, Number, Op, Ref
from paceline.kernels.layers.base import CannotFuse, is_hooked, kind_of
from paceline.kernels.layers.elementwise import EXPRESSIONS

IGNORED = -100  # the class that PyTorch's losses leave out
SCORE, TARGET = Ref("score", ()), Ref("target", ())
WAY_OUT = "compute='autograd' takes any loss"


class LossText(NamedTuple):
    """A loss as a text names it: a function of class numbers (`labels`), or of a target for each score."""

    name: str
    number: float = 0.0  # the loss's own: smoothing, beta, delta
    labels: bool = False
    #: Whether the model's last layer has to be a log-softmax, which the loss contains.
    of_logarithms: bool = False
    #: Whether the scores of a place's classes are the last dimension, instead of the first of a sample.
    last: bool = False
    #: How much each class counts; nothing where all count the same.
    weights: tuple[float, ...] = ()
    ignored: int = IGNORED
    #: How many classes the loss expects; 0 where it takes any number.
    classes: int = 0
    #: What an own loss computes of SCORE and TARGET.
    expression: Expression | None = None
    #: The loss itself, which generated code is compared with.
    function: Callable[..., Any] | None = None

    def slope(self) -> Expression:
        """The slope of an own loss by the score."""
        assert self.expression is not None
        derivative: Expression = Number(0.0)
        for leaf, value in partials(self.expression, self.expression, Number(1.0)):
            if leaf == SCORE:
                derivative = Op("+", derivative, value)
        return derivative


@dataclass(frozen=True)
class LossPattern:
    """How a loss is recognised: its function, the setting that is its number, and what other settings have to be."""

    text: LossText
    function: Callable[..., Any]
    number: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


MEAN = {"reduction": "mean"}
PLAIN = {**MEAN, "weight": None}

LOSSES: dict[type[nn.Module], LossPattern] = {
    nn.CrossEntropyLoss: LossPattern(LossText("cross_entropy", labels=True), F.cross_entropy, "label_smoothing", MEAN),
    nn.NLLLoss: LossPattern(LossText("cross_entropy", labels=True, of_logarithms=True), F.nll_loss, settings=MEAN),
    nn.MSELoss: LossPattern(LossText("squared_error"), F.mse_loss, settings=PLAIN),
    nn.L1Loss: LossPattern(LossText("absolute_error"), F.l1_loss, settings=PLAIN),
    nn.SmoothL1Loss: LossPattern(LossText("smooth_error", 1.0), F.smooth_l1_loss, "beta", MEAN),
    nn.HuberLoss: LossPattern(LossText("huber_error", 1.0), F.huber_loss, "delta", PLAIN),
    nn.BCELoss: LossPattern(LossText("share_entropy"), F.binary_cross_entropy, settings=PLAIN),
    nn.BCEWithLogitsLoss: LossPattern(
        LossText("binary_cross_entropy"), F.binary_cross_entropy_with_logits, settings={**PLAIN, "pos_weight": None}
    ),
}


def loss_kind(loss: Callable[..., Any]) -> LossText:
    """What the loss is called in a text."""
    if isinstance(loss, nn.Module) and not is_hooked(loss) and (kind := kind_of(loss, LOSSES)) is not None:
        return _text(kind, {**vars(loss), **loss._buffers})._replace(function=loss)
    plain = next((of for of, row in LOSSES.items() if loss is row.function), None)
    loss_text = _followed(loss) if plain is None else _text(plain, {})
    if loss_text is None:
        raise CannotFuse(
            f"the loss {getattr(loss, '__name__', loss)} has no kernel; {', '.join(k.__name__ for k in LOSSES)} have, "
            f"functions of (output, target) that call one of these, and means of an expression of both; {WAY_OUT}"
        )
    return loss_text._replace(function=loss)


def _text(kind: type[nn.Module], settings: Mapping[str, Any]) -> LossText:
    """The text of one of PyTorch's losses with these settings."""
    row = LOSSES[kind]
    if kind is nn.BCEWithLogitsLoss and isinstance(more := settings.get("pos_weight"), Tensor) and more.numel() == 1:
        settings = {**settings, "pos_weight": None}
        row = LossPattern(
            LossText("own_error", expression=_weighed_entropy(float(more))), row.function, settings=row.settings
        )
    changed = [
        f"{key}={settings[key]!r}"
        for key, value in row.settings.items()
        if settings.get(key, value) not in (value, None)
    ]
    if changed:
        raise CannotFuse(f"{kind.__name__} with {', '.join(changed)} has no kernel, the plain mean has; {WAY_OUT}")
    number = float(settings.get(row.number, row.text.number)) if row.number else row.text.number
    if kind is nn.SmoothL1Loss and number == 0:
        return LOSSES[nn.L1Loss].text
    if not row.text.labels:
        return row.text._replace(number=number)
    weights, ignored = settings.get("weight"), settings.get("ignore_index", IGNORED)
    if weights is not None and number:
        raise CannotFuse(f"{kind.__name__} with weight= and label_smoothing= has no kernel, one of both has; {WAY_OUT}")
    shares = () if weights is None else tuple(map(float, weights.detach().tolist()))
    return row.text._replace(number=number, weights=shares, ignored=int(ignored))


def _weighed_entropy(more: float) -> Expression:
    """Binary cross entropy in which a 1 counts `more` times: (1 - y) s + (1 + (more - 1) y) softplus(-s)."""
    rest = Op("*", Op("-", Number(1.0), TARGET), SCORE)
    counts = Op("+", Number(1.0), Op("*", TARGET, Number(more - 1)))
    return Op("+", rest, Op("*", counts, applied("softplus", Op("*", SCORE, Number(-1.0)))))


# functions of (output, target).


class _Tracer(fx.Tracer):
    """Follows a loss into the modules that it calls."""

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return forward(*args, **kwargs)


class _Pair(nn.Module):
    """A loss as a module, so that it can be traced."""

    def __init__(self, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["called"] = loss  # no part of this module: its tensors are not traced

    def forward(self, output: Any, target: Any) -> Any:
        return vars(self)["called"](output, target)


def _followed(loss: Callable[..., Any]) -> LossText | None:
    """What a function of (output, target) computes, or None where that is neither of the two forms."""
    root = _Pair(loss)
    try:
        graph = _Tracer().trace(root)
    except Exception:  # whatever the user's code does with what it does not expect
        return None
    end: Any = next(node for node in graph.nodes if node.op == "output").args[0]
    if not isinstance(end, fx.Node):
        return None
    constants = {name: value for name, value in vars(root).items() if isinstance(value, Tensor)}
    row = next((kind for kind, row in LOSSES.items() if end.target is row.function), None)
    return _averaged(end) if row is None else _called(row, end, constants)


#: The arguments of PyTorch's losses after output and target, by place.
ARGUMENTS = {
    nn.CrossEntropyLoss: ("weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing"),
    nn.NLLLoss: ("weight", "size_average", "ignore_index", "reduce", "reduction"),
}
#: Methods that leave the numbers in their order, and conversions.
VIEWS = (
    "view",
    "reshape",
    "flatten",
    "squeeze",
    "unsqueeze",
    "contiguous",
    "float",
    "double",
    "long",
    "to",
    "view_as",
    "type_as",
    "reshape_as",
    torch.flatten,
    torch.squeeze,
    torch.unsqueeze,
    torch.reshape,
)


def _called(kind: type[nn.Module], node: fx.Node, constants: Mapping[str, Tensor]) -> LossText | None:
    """One of PyTorch's losses, called with views of output and target."""
    words = ("input", "target", *ARGUMENTS.get(kind, ()))
    kwargs: dict[str, Any] = {**dict(zip(words, node.args, strict=False)), **node.kwargs}
    output, target = kwargs.pop("input", None), kwargs.pop("target", None)
    for word, value in kwargs.items():
        if isinstance(value, fx.Node):
            kwargs[word] = constants.get(str(value.target))
            if kwargs[word] is None:
                return None
    text = _text(kind, kwargs)
    scores, targets = _view(output, "output"), _view(target, "target")
    if scores is None or targets is None or targets.turned or (scores.turned and not text.labels):
        return None
    return text._replace(last=scores.last, classes=scores.classes) if text.labels else text


class View(NamedTuple):
    """An argument in another shape: where its classes are, as the loss was given them."""

    last: bool = False  # the classes are the last dimension of the argument, instead of its second
    classes: int = 0  # how many there are, where a view says it
    turned: bool = False


def _view(value: Any, argument: str) -> View | None:
    """How a value is a view of an argument of the loss; None where it is something else."""
    view = View()
    while isinstance(value, fx.Node) and value.op != "placeholder":
        previous = _before(value, view)
        if previous is None:
            return None
        value, view = value.args[0], previous
    return view if isinstance(value, fx.Node) and value.name == argument else None


def _before(node: fx.Node, view: View) -> View | None:
    """The view before one of its steps, from the last to the first."""
    target, args = node.target, _flat(node.args[1:])
    order = args if target in ("permute", torch.permute) else None
    if target in ("transpose", torch.transpose) and {*args} in ({1, 2}, {1, -1}):
        order = [0, 2, 1]
    if order is not None:
        last = {(0, 2, 1): not view.last, (0, 3, 1, 2): True, (0, 2, 3, 1): False}.get(tuple(order))
        return None if last is None or last == view.last else view._replace(last=last, turned=True)
    if target not in VIEWS:
        return None
    if target in ("flatten", torch.flatten) and tuple(args) in ((0, 1), (0, -2)):
        return view._replace(last=True)
    if target in ("view", "reshape", torch.reshape) and len(args) == 2 and args[0] == -1:
        count = 0 if _is_last_size(args[1], node.args[0]) else args[1]
        return view._replace(last=True, classes=count) if isinstance(count, int) else None
    return view


def _is_last_size(value: Any, of: Any) -> bool:
    """Whether a size is that of a node's last dimension: x.size(-1), x.shape[-1]."""
    if not isinstance(value, fx.Node) or tuple(value.args[1:]) != (-1,):
        return False
    if value.target == "size":
        return value.args[0] is of
    shape = value.args[0]
    return value.target is operator.getitem and isinstance(shape, fx.Node) and shape.args[:2] == (of, "shape")


def _flat(args: Any) -> list[Any]:
    return [n for arg in args for n in (arg if isinstance(arg, tuple | list) else (arg,))]


def _averaged(node: fx.Node) -> LossText | None:
    """The mean of an expression of each output and its target."""
    if node.target not in ("mean", torch.mean) or len(node.args) != 1 or node.kwargs:
        return None
    try:
        expression = _expression(node.args[0])
    except (KeyError, TypeError, AttributeError):
        return None
    return LossText("own_error", expression=expression)


def _expression(value: Any) -> Expression:
    """A node as an expression; KeyError where it is none."""
    if isinstance(value, int | float):
        return Number(float(value))
    if value.op == "placeholder":
        return {"output": SCORE, "target": TARGET}[value.name]
    args = list(map(_expression, value.args))
    return EXPRESSIONS[value.target](*args, **{key: _expression(each) for key, each in value.kwargs.items()})
