"""Networks as people write them: plain modules, with a forward and a loss of their own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 18
Program = tuple[nn.Module, Tensor, Tensor, Callable[..., Any]]
PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    """Register a network with its data and its loss by its name."""
    PROGRAMS[make.__name__] = make
    return make


def classes(count: int, *shape: int) -> Tensor:
    return torch.randint(count, (BATCH, *shape))


class Written(nn.Module):
    """Parts by name, and a forward that uses them."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], **parts: Any) -> None:
        super().__init__()
        self.written = forward
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, x: Tensor) -> Any:
        return self.written(self, x)


class CausalAttention(nn.Module):
    """Attention by hand: one dense layer for query, key and value, a mask in a buffer."""

    bias: Tensor

    def __init__(self, width: int, heads: int, steps: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("bias", torch.tril(torch.ones(steps, steps)).view(1, 1, steps, steps))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = self.qkv(x).split(c, dim=2)
        k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        mixed = (F.softmax(scores, dim=-1) @ v).transpose(1, 2).contiguous().view(b, t, c)
        found: Tensor = self.out(mixed)
        return found


class FunctionalAttention(nn.Module):
    """The same by PyTorch's function."""

    def __init__(self, width: int, heads: int, steps: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: Tensor = self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return found


class Decoder(nn.Module):
    """A small language model, whose last layer may share its weights with the first."""

    def __init__(self, attention: Callable[[int, int, int], nn.Module], tied: bool, words: int = 11) -> None:
        super().__init__()
        width, heads, steps = 8, 2, 5
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(steps, width)
        self.norm, self.attention = nn.LayerNorm(width), attention(width, heads, steps)
        self.dense = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))
        self.head = nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        x = x + self.attention(self.norm(x))
        found: Tensor = self.head(x + self.dense(x))
        return found


@program
def language_model() -> Program:
    def loss(scores: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(scores.view(-1, scores.size(-1)), y.view(-1))

    return Decoder(CausalAttention, tied=True), classes(11, 5), classes(11, 5), loss


@program
def language_model_of_functions() -> Program:
    cross_entropy = nn.CrossEntropyLoss(ignore_index=0)
    return (
        Decoder(FunctionalAttention, tied=False),
        classes(11, 5),
        classes(11, 5),
        lambda scores, y: cross_entropy(scores.flatten(0, 1), y.flatten()),
    )


@program
def padded_encoder() -> Program:
    def forward(it: Any, x: Tensor) -> Any:
        padding = x == 0
        coded = it.body(it.words(x) * math.sqrt(6), src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1).float()
        return it.head((coded * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1))

    layer = nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True)
    x = classes(9, 5)
    x[:, 0] = 1
    parts = {"words": nn.Embedding(9, 6, padding_idx=0), "head": nn.Linear(6, 3)}
    body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    return Written(forward, body=body, **parts), x, classes(3), nn.CrossEntropyLoss()


@program
def vision_transformer() -> Program:
    def forward(it: Any, x: Tensor) -> Any:
        x = it.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((it.first.expand(x.shape[0], -1, -1), x), dim=1) + it.places
        return it.head(it.body(x)[:, 0])

    layer = nn.TransformerEncoderLayer(6, 2, 8, 0.0, activation="gelu", batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    first, places = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.randn(1, 5, 6))
    model = Written(forward, patches=nn.Conv2d(1, 6, 4, 4), first=first, places=places, body=body, head=nn.Linear(6, 3))
    return model, torch.randn(BATCH, 1, 8, 8), classes(3), nn.CrossEntropyLoss(label_smoothing=0.1)


@program
def mixer() -> Program:
    def forward(it: Any, x: Tensor) -> Any:
        x = x + it.steps(it.norm(x).transpose(1, 2)).transpose(1, 2)
        return it.head((x + it.channels(x)).mean(dim=1))

    parts = {"norm": nn.LayerNorm(5), "steps": nn.Linear(7, 7), "channels": nn.Linear(5, 5), "head": nn.Linear(5, 3)}
    return Written(forward, **parts), torch.randn(BATCH, 7, 5), classes(3), nn.CrossEntropyLoss()


@program
def u_net() -> Program:
    def forward(it: Any, x: Tensor) -> Any:
        fine = F.relu(it.down(x))
        coarse = F.relu(it.deep(F.max_pool2d(fine, 2)))
        return it.end(torch.cat([it.up(coarse), fine], dim=1))

    model = Written(
        forward,
        down=nn.Conv2d(1, 3, 3, padding=1),
        deep=nn.Conv2d(3, 4, 3, padding=1),
        up=nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1, groups=1),
        end=nn.Conv2d(6, 3, 1),
    )
    return model, torch.randn(BATCH, 1, 6, 6), classes(3, 6, 6), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 0.5]))


@program
def autoencoder() -> Program:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(3, 1, 3, padding=1),
        nn.Sigmoid(),
    )
    x = torch.rand(BATCH, 1, 6, 6)
    return model, x, x, nn.BCELoss()


@program
def categories_and_numbers() -> Program:
    def forward(it: Any, x: Tensor) -> Any:
        kinds = x[:, :2].long()
        rows = [it.one(kinds[:, 0]), it.other(kinds[:, 1])]
        return it.body(torch.cat([*rows, x[:, 2:]], dim=1)).squeeze(1)

    x = torch.cat([torch.randint(4, (BATCH, 2)).float(), torch.randn(BATCH, 3)], 1)
    body = nn.Sequential(nn.Linear(8, 9), nn.Mish(), nn.Linear(9, 1))
    model = Written(forward, one=nn.Embedding(4, 2), other=nn.Embedding(5, 3), body=body)
    return model, x, torch.rand(BATCH).round(), nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0))


@program
def factors_of_users_and_items() -> Program:
    def forward(it: Any, x: Tensor) -> Any:
        user, item = x[:, 0], x[:, 1]
        return (it.users(user) * it.items(item)).sum(1) + it.shift(user).squeeze(1)

    model = Written(forward, users=nn.Embedding(6, 4), items=nn.Embedding(7, 4), shift=nn.Embedding(6, 1))
    return model, classes(6, 2), torch.randn(BATCH), lambda found, y: ((found - y) ** 2).mean()


@program
def excited_channels() -> Program:
    def forward(it: Any, x: Tensor) -> Any:
        x = it.norm(F.relu(it.maps(x)))
        x = it.slope(x * torch.sigmoid(it.gate(F.adaptive_avg_pool2d(x, 1))))
        return it.head(it.shown(x).amax(dim=(2)).mean(-1))

    model = Written(
        forward,
        maps=nn.Conv2d(3, 4, 3, padding=1),
        norm=nn.GroupNorm(2, 4),
        gate=nn.Conv2d(4, 4, 1),
        slope=nn.PReLU(4),
        shown=nn.InstanceNorm2d(4, affine=True),
        head=nn.Linear(4, 3),
    )
    return model, torch.randn(BATCH, 3, 5, 5), classes(3), nn.CrossEntropyLoss()


@program
def steps_before_samples() -> Program:
    def forward(it: Any, x: Tensor) -> Any:
        zeros = torch.zeros(1, x.size(0), 4, dtype=x.dtype, device=x.device)
        outputs, _ = it.first(x.permute(1, 0, 2), (zeros, zeros))
        _, last = it.second(outputs)
        return it.head(last.squeeze(0))

    model = Written(forward, first=nn.LSTM(3, 4), second=nn.RNN(4, 5), head=nn.Linear(5, 3))
    return model, torch.randn(BATCH, 6, 3), classes(3), nn.CrossEntropyLoss()


@program
def attention_to_another_sequence() -> Program:
    def forward(it: Any, x: Tensor) -> Any:
        seen = it.enter(x)
        asked, _ = it.attention(it.asks.expand(x.size(0), -1, -1), seen, seen)
        shares = torch.softmax(it.weigh(asked), dim=1)
        return (shares * asked).sum(dim=1)

    model = Written(
        forward,
        enter=nn.Linear(3, 4),
        asks=nn.Parameter(torch.randn(1, 2, 4)),
        weigh=nn.Linear(4, 1),
        attention=nn.MultiheadAttention(4, 2, batch_first=True),
    )
    return model, torch.randn(BATCH, 5, 3), torch.randn(BATCH, 4), nn.SmoothL1Loss()


@program
def waves_and_lengths() -> Program:
    def forward(it: Any, x: Tensor) -> Any:
        angles = x @ it.waves
        x = F.normalize(torch.cat([torch.sin(angles), torch.cos(angles)], -1), dim=-1)
        experts = torch.stack([it.one(x), it.other(x)], dim=1)
        shares = F.softmax(it.choice(x), dim=-1)
        return (shares.unsqueeze(-1) * experts).sum(1).std(1, keepdim=True) * it.scale.exp()

    model = Written(
        forward,
        waves=torch.randn(2, 4),
        one=nn.Linear(8, 5),
        other=nn.Linear(8, 5),
        choice=nn.Linear(8, 2),
        scale=nn.Parameter(torch.zeros(1)),
    )
    pinball = lambda s, y: torch.maximum(0.9 * (y - s), -0.1 * (y - s)).mean()  # noqa: E731
    return model, torch.randn(BATCH, 2), torch.randn(BATCH, 1), pinball


@program
def causal_convolutions() -> Program:
    def forward(it: Any, x: Tensor) -> Any:
        x = it.gate(it.near(x)[:, :, :-2])
        return it.head(F.softplus(it.far(x)[..., :-4])[:, :, -1])

    model = Written(
        forward,
        near=nn.Conv1d(2, 8, 3, padding=2),
        gate=nn.GLU(dim=1),
        far=nn.Conv1d(4, 4, 3, padding=4, dilation=2),
        head=nn.Linear(4, 3),
    )
    return model, torch.randn(BATCH, 2, 9), classes(3), nn.CrossEntropyLoss()
