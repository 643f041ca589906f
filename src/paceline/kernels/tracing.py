"""The nodes of a module, by torch.fx: down to the layers that have a kernel, what is made of others written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from paceline.kernels.ir import FORBIDDEN
from paceline.kernels.layers import MODULES
from paceline.kernels.layers.base import BATCH, CannotFuse, HeldTensor, is_hooked, kind_of

# Arguments of traced functions: names of layers, parameters, and values that do not depend on the samples.

WORDS = ("cpu", "cuda", "none", "tanh", "sum", "mean")  # among arguments, that are no layers' names


@dataclass(frozen=True)
class States:
    """The last states of a recurrent layer: one for each of its layers and directions."""

    source: str
    layers: int
    directions: int
    hidden: int


def flat(values: Any) -> list[Any]:
    """All arguments, those in lists among them."""
    if isinstance(values, dict):
        values = list(values.values())
    return [v for each in values for v in flat(each)] if isinstance(values, tuple | list) else [values]


def without_samples(values: Any) -> Any:
    """Arguments, with 1 in place of the number of samples and buffers as the tensors that they are."""
    if isinstance(values, tuple | list):
        return type(values)(map(without_samples, values))
    if isinstance(values, dict):
        return {key: without_samples(value) for key, value in values.items()}
    return 1 if values is BATCH else values.tensor if isinstance(values, HeldTensor) else values


def is_whole(args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a conversion makes whole numbers."""
    types = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.dtype)]
    return any(not t.is_floating_point for t in types)


def finite(values: Tensor) -> Tensor:
    """Numbers, a finite one in place of minus infinity: what is added to scores that do not count."""
    return torch.where(values == -torch.inf, FORBIDDEN, values)


def as_numbers(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keywords of an attention, a mask of truth values among them as what is added to scores."""
    return {
        key: torch.where(value, FORBIDDEN, 0.0) if isinstance(value, Tensor) and value.dtype == torch.bool else value
        for key, value in kwargs.items()
    }


def called(target: Any) -> str:
    """What a traced function is called."""
    return str(getattr(target, "__name__", target))


def depends(argument: Any, *besides: Any) -> bool:
    """Whether anything in these arguments depends on the samples, on how many there are, or on what is trained."""
    if isinstance(argument, tuple | list):
        return any(depends(each, *besides) for each in argument)
    if isinstance(argument, dict):
        return any(depends(each, *besides) for each in argument.values())
    if isinstance(argument, slice):
        return depends([argument.start, argument.stop, argument.step], *besides)
    if isinstance(argument, HeldTensor):
        return isinstance(argument.tensor, nn.Parameter)
    return (
        (argument is BATCH and BATCH not in besides)
        or isinstance(argument, States)
        or (isinstance(argument, str) and argument not in WORDS)
    )


class _Tracer(fx.Tracer):
    """Follows a module down to the layers that have a row in the table."""

    proxy_buffer_attributes = True

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **options: Any) -> fx.Proxy:
        """Some functions are traced as what they are made of."""
        if kind in ("call_function", "call_method") and target in FUNCTIONS:
            proxy: fx.Proxy = FUNCTIONS[target](*args, **kwargs)
            return proxy
        return super().create_proxy(kind, target, args, kwargs, *more, **options)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if kind_of(m, MODULES) is not None:
            return True
        return kind_of(m, FORWARDS) is None and super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What PyTorch's own layers compute is written without branches that cannot be followed."""
        kind = kind_of(m, FORWARDS)
        return super().call_module(m, forward if kind is None else partial(FORWARDS[kind], m), args, kwargs)


INSTEAD = "remove it, or take compute='autograd', which is PyTorch"


class _Root(nn.Module):
    """A module around another, so that a layer can be traced from above."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return self.body(x)


def traced(module: nn.Module) -> tuple[fx.Graph, dict[str, Tensor]]:
    """The nodes of a module, and the tensors that its forward makes for itself.

    A module that is itself a layer is traced from above.
    """
    root: nn.Module = module if kind_of(module, (*MODULES, *FORWARDS)) is None else _Root(module)
    _check_hooks(module)
    before = set(vars(root))
    try:
        graph = _Tracer().trace(root)
    except CannotFuse:
        raise
    except Exception as error:
        raise CannotFuse(
            f"the model's forward cannot be followed ({type(error).__name__}: {error}); a Sequential, or a forward "
            "without branches on the data, can; compute='autograd' trains any"
        ) from error
    finally:  # tracing leaves them in the module
        constants = {name: vars(root).pop(name) for name in set(vars(root)) - before}
    if root is not module:
        for node in graph.nodes:
            if node.op in ("call_module", "get_attr"):
                node.target = str(node.target).removeprefix("body").removeprefix(".")
    for node in graph.nodes:
        if node.name in WORDS:  # which are no results where they are arguments
            node._rename(f"{node.name}_given")
    return graph, constants


def _check_hooks(module: nn.Module) -> None:
    """Refuses hooks, which may change what a module or a gradient is and are no part of a text."""
    for name, part in module.named_modules():
        if is_hooked(part):
            raise CannotFuse(f"layer {name or 'model'} has a hook, which generated code does not call: {INSTEAD}")
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise CannotFuse(f"the parameter {name} has a hook, which generated code does not call: {INSTEAD}")


# What modules and functions are made of, written in functions that have a row in the table, without branches.
#
# PyTorch's own encoders, attention as a function, gates, lengths. A row is traced in place of its module or function.

# encoders and decoders.


def encoder(part: nn.TransformerEncoder, src: Any, mask: Any = None, **kwargs: Any) -> Any:
    """All layers, one upon another."""
    for layer in part.layers:
        src = layer(src, src_mask=mask, **kwargs)
    return src if part.norm is None else part.norm(src)


def encoder_layer(part: nn.TransformerEncoderLayer, src: Any, src_mask: Any = None, **kwargs: Any) -> Any:
    """Attention and two dense layers, each beside a way around it; the norms come before them, or after."""
    padding = kwargs.get("src_key_padding_mask")

    def attended(x: Any) -> Any:
        outputs = part.self_attn(x, x, x, attn_mask=src_mask, key_padding_mask=padding, need_weights=False)
        return part.dropout1(outputs[0])

    def transformed(x: Any) -> Any:
        return part.dropout2(part.linear2(part.dropout(part.activation(part.linear1(x)))))

    if part.norm_first:
        src = src + attended(part.norm1(src))
        return src + transformed(part.norm2(src))
    src = part.norm1(src + attended(src))
    return part.norm2(src + transformed(src))


def decoder(
    part: nn.TransformerDecoder, tgt: Any, memory: Any, tgt_mask: Any = None, memory_mask: Any = None, **kwargs: Any
) -> Any:
    """All layers, one upon another."""
    for layer in part.layers:
        tgt = layer(tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, **kwargs)
    return tgt if part.norm is None else part.norm(tgt)


def decoder_layer(
    part: nn.TransformerDecoderLayer,
    tgt: Any,
    memory: Any,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    **_: Any,
) -> Any:
    """Attention to itself, to what an encoder gives, and two dense layers; the norms come before them, or after."""

    def itself(x: Any) -> Any:
        masks = {"attn_mask": tgt_mask, "key_padding_mask": tgt_key_padding_mask}
        return part.dropout1(part.self_attn(x, x, x, need_weights=False, **masks)[0])

    def across(x: Any) -> Any:
        masks = {"attn_mask": memory_mask, "key_padding_mask": memory_key_padding_mask}
        return part.dropout2(part.multihead_attn(x, memory, memory, need_weights=False, **masks)[0])

    def transformed(x: Any) -> Any:
        return part.dropout3(part.linear2(part.dropout(part.activation(part.linear1(x)))))

    for norm, block in ((part.norm1, itself), (part.norm2, across), (part.norm3, transformed)):
        tgt = tgt + block(norm(tgt)) if part.norm_first else norm(tgt + block(tgt))
    return tgt


def allowed(scores: Any, mask: Any) -> Any:
    """Scores where a mask of truth values allows them; numbers are added. The graph's reader knows which it is."""
    raise AssertionError("this function is traced, not called")


# gates.


def gated(x: Any, dim: int = -1) -> Any:
    """F.glu: one half of the numbers, as far as the other half lets them through."""
    halves = x.chunk(2, dim)
    return halves[0] * torch.sigmoid(halves[1])


# attention as a function.


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """F.scaled_dot_product_attention."""
    if enable_gqa:
        raise CannotFuse("scaled_dot_product_attention: enable_gqa= has no kernel; repeat the heads of keys and values")
    scores = (query @ key.transpose(-2, -1)) * (query.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:
        earlier = torch.tril(torch.ones((query.size(-2), key.size(-2)), dtype=torch.bool))
        scores = scores.masked_fill(~earlier, -torch.inf)
    elif attn_mask is not None:
        scores = scores.tracer.create_proxy("call_function", allowed, (scores, attn_mask), {})
    shares = torch.softmax(scores, -1)
    return (F.dropout(shares, dropout_p) if dropout_p else shares) @ value


# sums and spreads.


def stacked(tensors: Any, dim: int = 0) -> Any:
    """torch.stack."""
    return torch.cat([x.unsqueeze(dim) for x in tensors], dim)


def normalised(x: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, **_: Any) -> Any:
    """F.normalize by Euclid's length."""
    if p != 2:
        raise CannotFuse(f"normalize(p={p}) has no kernel; p=2 has")
    return x / torch.sqrt((x * x).sum(dim, keepdim=True)).clamp(min=eps)


def length(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    """The Euclidean length along a dimension: x.norm(dim=1)."""
    if p not in (2, 2.0, "fro", None):
        raise CannotFuse(f"norm(p={p}) has no kernel; p=2 has")
    return torch.sqrt((x * x).sum(dim, keepdim=keepdim))


def variance(
    x: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, correction: int | None = None
) -> Any:
    """The variance along a dimension."""
    gap = x - x.mean(dim, keepdim=True)
    ddof = int(unbiased) if correction is None else correction
    count = x.size(dim) if isinstance(dim, int) else _product([x.size(d) for d in dim])
    return (gap * gap).sum(dim, keepdim=keepdim) / (count - ddof)


def _product(numbers: Any) -> Any:
    product = numbers[0]
    for number in numbers[1:]:
        product = product * number
    return product


def deviation(x: Any, *args: Any, **kwargs: Any) -> Any:
    """The standard deviation along a dimension."""
    return torch.sqrt(variance(x, *args, **kwargs))


def log_of_powers(x: Any, dim: int, keepdim: bool = False) -> Any:
    """torch.logsumexp."""
    log_sum = x.narrow(dim, 0, 1) - F.log_softmax(x, dim).narrow(dim, 0, 1)
    return log_sum if keepdim else log_sum.squeeze(dim)


#: What is traced in place of a module's own forward.
FORWARDS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.TransformerEncoder: encoder,
    nn.TransformerEncoderLayer: encoder_layer,
    nn.TransformerDecoder: decoder,
    nn.TransformerDecoderLayer: decoder_layer,
    nn.GLU: lambda part, x: gated(x, part.dim),
}

#: What is traced in place of a function.
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    F.glu: gated,
    F.scaled_dot_product_attention: attention,
    torch.stack: stacked,
    F.normalize: normalised,
    torch.norm: length,
    "norm": length,
    torch.linalg.vector_norm: length,
    torch.linalg.norm: length,
    torch.var: variance,
    "var": variance,
    torch.std: deviation,
    "std": deviation,
    torch.logsumexp: log_of_powers,
    "logsumexp": log_of_powers,
}
