"""Random small networks of every supported layer, in odd sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.training.jobs.modules import Subsampling


class Residual(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


class Last(nn.Module):
    """The last output of a recurrent layer, and a dense layer on it."""

    def __init__(self, recurrent: nn.LSTM | nn.GRU | nn.RNN, classes: int) -> None:
        super().__init__()
        self.recurrent, self.head = recurrent, nn.Linear(recurrent.hidden_size, classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.recurrent(x)
        scores: Tensor = self.head(outputs[:, -1])
        return scores


@dataclass
class Case:
    model: nn.Module
    x: Tensor
    y: Tensor
    loss: Callable[..., Any]

    def double(self) -> Case:
        x = self.x if not self.x.is_floating_point() else self.x.double()
        y = self.y.double() if self.y.is_floating_point() else self.y
        return Case(self.model.double(), x, y, self.loss)


FUNCTIONS = (nn.Sigmoid, nn.Tanh, nn.ReLU, nn.GELU, lambda: nn.GELU(approximate="tanh"))


@st.composite
def images(draw: st.DrawFn) -> Case:
    """Convolutions, poolings, normalisation, residual additions and dense layers on images of 1x1 to 12x12."""
    torch.manual_seed(draw(st.integers(0, 10_000)))
    channels, height, width = (draw(st.integers(1, most)) for most in (4, 12, 12))
    shape, layers = (channels, height, width), []
    for _ in range(draw(st.integers(1, 4))):
        layer = draw(_layer(shape))
        layers.append(layer)
        with torch.no_grad():
            shape = tuple(nn.Sequential(layer)(torch.zeros(3, *shape)).shape[1:])
    return draw(_finished(layers, shape, (channels, height, width)))


@st.composite
def _finished(draw: st.DrawFn, layers: list[nn.Module], shape: tuple[int, ...], inputs: tuple[int, ...]) -> Case:
    size, outputs = int(torch.Size(shape).numel()), draw(st.integers(1, 19))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(size, outputs, bias=draw(st.booleans())))
    batch = draw(st.sampled_from([2, 3, 15, 16, 17, 40, 70]))
    x = torch.randn(batch, *inputs)
    if draw(st.booleans()):
        return Case(model, x, torch.randn(batch, outputs), nn.MSELoss())
    return Case(model, x, torch.randint(outputs, (batch,)), nn.CrossEntropyLoss())


@st.composite
def _layer(draw: st.DrawFn, shape: tuple[int, ...]) -> nn.Module:
    channels, height, width = shape
    kind = draw(st.sampled_from(("convolution", "highest", "average", "trainable", "norm", "function", "residual")))
    if kind == "convolution":
        padding = (draw(st.integers(0, 2)), draw(st.integers(0, 2)))
        kernel = tuple(draw(st.integers(1, min(5, n + 2 * p))) for n, p in zip((height, width), padding, strict=True))
        dilation = tuple(
            draw(st.integers(1, 2)) if 2 * (k - 1) + 1 <= n + 2 * p else 1
            for k, n, p in zip(kernel, (height, width), padding, strict=True)
        )
        groups = draw(st.sampled_from([g for g in (1, 2) if channels % g == 0]))
        stride = (draw(st.integers(1, 6)), draw(st.integers(1, 6)))
        outputs = groups * draw(st.integers(1, 5))
        return nn.Conv2d(channels, outputs, kernel, stride, padding, dilation, groups, bias=draw(st.booleans()))
    window = (draw(st.integers(1, min(4, height))), draw(st.integers(1, min(4, width))))
    stride = (draw(st.integers(1, 5)), draw(st.integers(1, 5)))
    if kind == "highest":
        if window == (height, width):
            return nn.AdaptiveMaxPool2d(1)
        return nn.MaxPool2d(window, stride, tuple(draw(st.integers(0, w // 2)) for w in window))
    if kind == "average":
        return nn.AvgPool2d(window, stride, tuple(draw(st.integers(0, w // 2)) for w in window))
    if kind == "trainable" and min(height, width) >= 2:
        pooling = Subsampling(draw(st.integers(2, min(4, height, width))))
        nn.init.normal_(pooling.weight)
        return pooling
    if kind == "norm":
        norm = nn.BatchNorm2d(channels, affine=draw(st.booleans()), track_running_stats=draw(st.booleans()))
        return nn.Sequential(norm, nn.Sigmoid())
    if kind == "residual":
        return Residual(nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.Tanh()))
    return draw(st.sampled_from(FUNCTIONS))()


@st.composite
def sequences(draw: st.DrawFn) -> Case:
    """Recurrent layers, alone or after an embedding; convolutions and poolings along one dimension."""
    torch.manual_seed(draw(st.integers(0, 10_000)))
    steps, features, hidden, classes = (draw(st.integers(1, most)) for most in (9, 7, 19, 6))
    batch = draw(st.sampled_from([1, 5, 16, 33]))
    y = torch.randint(classes, (batch,))
    kind = draw(st.sampled_from(("recurrent", "tokens", "line")))
    if kind == "line":
        size = draw(st.integers(3, 20))
        kernel, stride = draw(st.integers(1, 3)), draw(st.integers(1, 4))
        line = nn.Sequential(nn.Conv1d(features, hidden, kernel, stride, draw(st.integers(0, 1))), nn.ReLU())
        pools = [nn.MaxPool1d(1, 2), nn.AvgPool1d(1), nn.AdaptiveAvgPool1d(1), nn.BatchNorm1d(hidden), nn.Identity()]
        pool = draw(st.sampled_from(pools))
        with torch.no_grad():
            out = nn.Sequential(line, pool, nn.Flatten())(torch.zeros(2, features, size)).shape[1]
        model = nn.Sequential(line, pool, nn.Flatten(), nn.Linear(out, classes))
        batch = max(batch, 2)
        return Case(model, torch.randn(batch, features, size), torch.randint(classes, (batch,)), nn.CrossEntropyLoss())
    recurrent = draw(st.sampled_from((nn.LSTM, nn.GRU, nn.RNN)))
    last = Last(recurrent(features, hidden, batch_first=True, bias=draw(st.booleans())), classes)
    if kind == "recurrent":
        return Case(last, torch.randn(batch, steps, features), y, nn.CrossEntropyLoss())
    table = nn.Embedding(11, features, padding_idx=draw(st.sampled_from([None, 0])))
    return Case(nn.Sequential(table, last), torch.randint(11, (batch, steps)), y, nn.CrossEntropyLoss())


class Encoder(nn.Module):
    """Tokens and their positions, encoder layers with or without a causal mask, and a mean over the steps."""

    mask: Tensor

    def __init__(self, layer: nn.TransformerEncoderLayer, depth: int, steps: int, classes: int, causal: bool) -> None:
        super().__init__()
        width = layer.linear1.in_features
        self.tokens, self.positions = nn.Embedding(11, width), nn.Embedding(steps + 1, width)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)
        self.causal = causal
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(steps))

    def forward(self, x: Tensor) -> Tensor:
        given = self.tokens(x) + self.positions(torch.arange(x.size(1), device=x.device))
        coded = self.body(given, mask=self.mask) if self.causal else self.body(given)
        scores: Tensor = self.head(coded.mean(dim=1))
        return scores


class Ends(nn.Module):
    """The last states of a recurrent layer in both directions, side by side."""

    def __init__(self, recurrent: nn.LSTM | nn.GRU | nn.RNN, classes: int) -> None:
        super().__init__()
        self.recurrent, self.head = recurrent, nn.Linear(2 * recurrent.hidden_size, classes)

    def forward(self, x: Tensor) -> Tensor:
        _, states = self.recurrent(x)
        last = states[0] if isinstance(self.recurrent, nn.LSTM) else states
        scores: Tensor = self.head(torch.cat((last[-2], last[-1]), dim=1))
        return scores


class Gated(nn.Module):
    """A product of two branches between norms, and a parameter that is added."""

    def __init__(self, features: int, hidden: int, outputs: int, norm: nn.Module) -> None:
        super().__init__()
        self.gate, self.value, self.norm = nn.Linear(features, hidden), nn.Linear(features, hidden), norm
        self.shift, self.head = nn.Parameter(torch.randn(hidden)), nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        scores: Tensor = self.head(self.norm(gate * self.value(x) - 0.5 * gate + 1) + self.shift)
        return scores


LOSSES = (
    nn.MSELoss(),
    nn.L1Loss(),
    nn.SmoothL1Loss(beta=0.4),
    nn.HuberLoss(delta=0.7),
    nn.BCEWithLogitsLoss(),
)


@st.composite
def encoders(draw: st.DrawFn) -> Case:
    """Attention, layer norm, recurrent layers in both directions, gates, and all losses."""
    torch.manual_seed(draw(st.integers(0, 10_000)))
    heads, size, steps, classes = (draw(st.integers(1, most)) for most in (3, 5, 7, 6))
    batch, smoothing = draw(st.sampled_from([1, 5, 16, 33])), draw(st.sampled_from([0.0, 0.1]))
    y, tokens = torch.randint(classes, (batch,)), torch.randint(11, (batch, steps))
    kind = draw(st.sampled_from(("encoder", "ends", "gated", "logarithms")))
    if kind == "encoder":
        layer = nn.TransformerEncoderLayer(
            heads * size,
            heads,
            draw(st.integers(1, 9)),
            0.0,
            draw(st.sampled_from(["relu", "gelu"])),
            batch_first=True,
            norm_first=draw(st.booleans()),
        )
        model = Encoder(layer, draw(st.integers(1, 2)), steps, classes, draw(st.booleans()))
        return Case(model, tokens, y, nn.CrossEntropyLoss(label_smoothing=smoothing))
    if kind == "ends":
        recurrent = draw(st.sampled_from((nn.LSTM, nn.GRU, nn.RNN)))
        body = recurrent(size, heads, draw(st.integers(1, 3)), batch_first=True, bidirectional=True)
        return Case(Ends(body, classes), torch.randn(batch, steps, size), y, nn.CrossEntropyLoss())
    if kind == "logarithms":
        model = nn.Sequential(nn.Linear(size, heads), nn.SiLU(), nn.Linear(heads, classes), nn.LogSoftmax(dim=1))
        return Case(model, torch.randn(batch, size), y, nn.NLLLoss())
    norm = draw(st.sampled_from((nn.LayerNorm, nn.RMSNorm)))(heads)
    y = torch.rand(batch, classes)
    return Case(Gated(size, heads, classes, norm), torch.randn(batch, size), y, draw(st.sampled_from(LOSSES)))


STEPS: dict[str, Callable[..., Tensor]] = {
    "sines": lambda it, x: torch.sin(x) * torch.cos(0.5 * x),
    "roots": lambda it, x: torch.sqrt(x.square() + 1) / (1 + x.abs()),
    "powers": lambda it, x: (x.clamp(-2, 2) ** 3 - x.pow(2)) / (1.5 + torch.exp(-x)),
    "logarithms": lambda it, x: torch.log(F.softplus(x) + 1) + F.mish(x),
    "largest": lambda it, x: torch.maximum(x, it.row) - torch.where(x > 0, it.column, 0.1 * x),
    "spread": lambda it, x: x * it.row + it.column.unsqueeze(0) - it.one,
    "shares": lambda it, x: torch.softmax(x, dim=1) + F.log_softmax(x, dim=-1),
    "lengths": lambda it, x: F.normalize(x, dim=-1) + x.std(1, keepdim=True),
    "turned": lambda it, x: x + it.steps(x.transpose(1, 2)).transpose(1, 2),
    "halves": lambda it, x: torch.cat([x[:, 1:], 2 * x.narrow(1, 0, 1)], dim=1) * torch.stack([x, -x], 2).sum(2).exp(),
    "kept": lambda it, x: torch.stack([x, it.same(x)], dim=1)[:, 1] + x[:, :1] * x[:, -1:, :],
    "paired": lambda it, x: x + torch.tanh(x @ x.transpose(1, 2)) @ it.same(x),
    "masked": lambda it, x: torch.softmax((x @ x.mT / 3).masked_fill(it.later, -torch.inf), -1) @ x,
    "attended": lambda it, x: F.scaled_dot_product_attention(x, it.same(x), x, is_causal=True),
    "product": lambda it, x: x @ it.square + F.linear(x, it.square, it.row),
    "dense": lambda it, x: torch.relu(it.same(x)),
    "highest": lambda it, x: x - x.amax(1, keepdim=True) + x.max(2, keepdim=True)[0],
}


class Operations(nn.Module):
    """Operations on steps x features, one after another, and a dense layer on what is left of the steps."""

    later: Tensor

    def __init__(self, names: list[str], steps: int, features: int, outputs: int, end: str) -> None:
        super().__init__()
        self.names, self.end = names, end
        self.row, self.one = nn.Parameter(torch.randn(features)), nn.Parameter(torch.randn(()))
        self.column, self.square = nn.Parameter(torch.randn(steps, 1)), nn.Parameter(torch.randn(features, features))
        self.steps, self.same = nn.Linear(steps, steps), nn.Linear(features, features)
        self.register_buffer("later", torch.ones(steps, steps, dtype=torch.bool).triu(1))
        self.head = nn.Linear(features, outputs)

    def forward(self, x: Tensor) -> Tensor:
        for name in self.names:
            x = 0.5 * x + STEPS[name](self, x)
        ends = {
            "mean": lambda: x.mean(1),
            "sum": lambda: x.sum(dim=1),
            "last": lambda: x[:, -1],
            "highest": lambda: x.amax(1),
        }
        used = self.row.sum() + self.one + self.column.sum() + self.square.sum() + self.steps.bias.sum()
        scores: Tensor = self.head(self.same(ends[self.end]())) + 0.01 * (used + self.steps.weight.sum())
        return scores


@st.composite
def operations(draw: st.DrawFn) -> Case:
    """Functions of whole tensors, with parameters in all shapes; losses with weights, and own ones."""
    torch.manual_seed(draw(st.integers(0, 10_000)))
    steps, features, outputs = (draw(st.integers(2, most)) for most in (6, 7, 5))
    names = draw(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4))
    end, batch = draw(st.sampled_from(["mean", "sum", "last", "highest"])), draw(st.sampled_from([1, 5, 16, 33]))
    model, x = Operations(names, steps, features, outputs, end), torch.randn(batch, steps, features)
    if draw(st.booleans()):
        labels = torch.randint(outputs, (batch,))
        loss: Any = nn.CrossEntropyLoss(
            weight=torch.rand(outputs).double() + 0.5, ignore_index=draw(st.integers(-1, 0))
        )
        labels[0] = 1
        return Case(model, x, labels, loss)
    own = draw(st.sampled_from((lambda s, y: ((s - y) ** 2).mean(), lambda s, y: torch.log1p((s - y).abs()).mean())))
    return Case(model, x, torch.randn(batch, outputs), own)


def examples(count: int) -> settings:
    """So many examples, the same ones each time."""
    suppressed = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=suppressed)


def drawn(strategy: SearchStrategy[Case], count: int) -> list[Case]:
    """So many networks, in double precision."""
    cases: list[Case] = []

    @examples(count)
    @given(strategy)
    def collect(case: Case) -> None:
        cases.append(case.double())

    collect()
    return cases
