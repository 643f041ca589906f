"""The networks that are measured, and the best that PyTorch and JAX do with the same ones on the same data."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from paceline.training.jobs.modules import Residual, Subsampling

RATE = 0.05
SGD = partial(torch.optim.SGD, lr=RATE)


@dataclass(frozen=True)
class Network:
    """A network and the size of its data."""

    name: str
    make: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    batch: int
    samples: int  # of an epoch
    vocabulary: int = 0  # of inputs that are tokens

    def data(self, samples: int) -> tuple[Tensor, Tensor]:
        """Random numbers: time does not depend on them."""
        generator = torch.Generator().manual_seed(0)
        if self.vocabulary:
            x = torch.randint(self.vocabulary, (samples, *self.inputs), generator=generator)
        else:
            x = torch.rand(samples, *self.inputs, generator=generator)
        return x, torch.randint(10, (samples,), generator=generator)


class LastState(nn.Module):
    """An LSTM, and a dense layer on its last output."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.recurrent, self.head = nn.LSTM(features, hidden, batch_first=True), nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.recurrent(x)
        scores: Tensor = self.head(outputs[:, -1])
        return scores


class Encoder(nn.Module):
    """Two layers of an encoder over tokens and their positions, and a dense layer on the mean of all steps."""

    def __init__(self, vocabulary: int, steps: int, width: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(0.02 * torch.randn(steps, width))
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(self.tokens(x) + self.positions).mean(dim=1))
        return scores


def residual() -> nn.Module:
    """The network of the built-in job cifar-resnet."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        Residual(16),
        Residual(16),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def categories() -> nn.Module:
    """A dense network on the embeddings of ten categories."""
    return nn.Sequential(
        nn.Embedding(500, 16),
        nn.Flatten(),
        nn.Linear(160, 64),
        nn.ReLU(),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def mnist_cnn() -> nn.Module:
    """The published study's network."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Conv2d(1, 6, 5),
        nn.Sigmoid(),
        Subsampling(),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(6 * 36, 10),
    )


def mnist_dnn() -> nn.Module:
    """A dense network of two hidden layers."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, 10),
    )


def lenet() -> nn.Module:
    """LeNet-5 with average pooling."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Conv2d(1, 6, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.Tanh(),
        nn.Linear(120, 84),
        nn.Tanh(),
        nn.Linear(84, 10),
    )


def tabular() -> nn.Module:
    """A dense network for rows of 64 numbers."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


CNN = Network("mnist-cnn", mnist_cnn, (28, 28), 64, 60_000)
ONE_BY_ONE = Network("mnist-cnn, batch 1", mnist_cnn, (28, 28), 1, 60_000)
NETWORKS = (
    CNN,
    ONE_BY_ONE,
    Network("mnist-dnn", mnist_dnn, (28, 28), 100, 60_000),
    Network("LeNet-5", lenet, (28, 28), 64, 60_000),
    Network("tabular 64-128-64", tabular, (64,), 64, 60_000),
    Network("LSTM 32, 50 steps", lambda: LastState(8, 32), (50, 8), 64, 10_000),
    Network("encoder 64, 64 steps", lambda: Encoder(1000, 64, 64), (64,), 32, 2_000, 1000),
    Network("10 categories, embedded", categories, (10,), 32, 60_000, 500),
    Network("residual CNN 16", residual, (3, 32, 32), 32, 2_000),
)


# The best that PyTorch and JAX do with the same network on the same data: over threads and modes, data in memory,
# shuffled once per epoch, nothing read back on the way.


def pytorch(network: Network, threads: int, compiled: bool, seconds: float) -> float:
    """Seconds of an epoch, from as many batches as fit into the time given."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _pytorch(network, compiled, seconds)
    finally:
        torch.set_num_threads(before)


def _pytorch(network: Network, compiled: bool, seconds: float) -> float:
    model, loss = network.make(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, fused=True)
    x, y = network.data(min(network.samples, 20_000))

    def forward(a: Tensor, b: Tensor) -> Tensor:
        loss_value: Tensor = loss(model(a), b)
        return loss_value

    run: Callable[[Tensor, Tensor], Tensor] = torch.compile(forward) if compiled else forward

    def steps(limit: float) -> float:
        """Seconds per sample."""
        begin, done = time.perf_counter(), 0
        while time.perf_counter() - begin < limit:
            order = torch.randperm(len(x))
            shuffled, labels = x[order], y[order]
            for start in range(0, len(x) - network.batch + 1, network.batch):
                optimizer.zero_grad()
                run(shuffled[start : start + network.batch], labels[start : start + network.batch]).backward()
                optimizer.step()
                done += network.batch
                if time.perf_counter() - begin >= limit:
                    break
        return (time.perf_counter() - begin) / done

    steps(min(seconds, 0.3))
    return min(steps(seconds) for _ in range(3)) * network.samples


def best_pytorch(network: Network, cores: int, seconds: float) -> dict[str, float]:
    """Seconds of an epoch by the name of the mode."""
    timings = {}
    for threads in range(1, cores + 1):
        timings[f"eager, {threads} thread{'s' * (threads > 1)}"] = pytorch(network, threads, False, seconds)
    fastest = min(range(1, cores + 1), key=lambda n: timings[f"eager, {n} thread{'s' * (n > 1)}"])
    timings[f"compiled, {fastest} thread{'s' * (fastest > 1)}"] = pytorch(network, fastest, True, seconds)
    return timings


def jax_epoch(seconds: float) -> float | None:
    """mnist-cnn at batch 64, the whole epoch one scan; None where JAX is not installed."""
    if importlib.util.find_spec("jax") is None:
        return None
    import numpy as np

    jax: Any = importlib.import_module("jax")
    jnp: Any = importlib.import_module("jax.numpy")

    def model(p: Any, x: Any) -> Any:
        maps = jax.lax.conv_general_dilated(x[:, None], p["conv"], (1, 1), "VALID")
        maps = jax.nn.sigmoid(maps + p["bias"][:, None, None])
        pooled = jnp.einsum("ncyaxb,ab->ncyx", maps.reshape(-1, 6, 6, 4, 6, 4), p["pool"]) + p["shift"]
        return jax.nn.sigmoid(pooled).reshape(-1, 216) @ p["dense"] + p["last"]

    def loss(p: Any, x: Any, y: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(model(p, x)), y[:, None], 1).mean()

    def step(p: Any, batch: Any) -> Any:
        gradients = jax.grad(loss)(p, *batch)
        return jax.tree.map(lambda w, g: w - RATE * g, p, gradients), None

    epoch = jax.jit(lambda p, x, y: jax.lax.scan(step, p, (x, y))[0])
    draw = np.random.default_rng(0)
    p: Any = {
        "conv": draw.normal(size=(6, 1, 5, 5)) * 0.1,
        "bias": np.zeros(6),
        "pool": np.full((4, 4), 1 / 16),
        "shift": np.zeros(()),
        "dense": draw.normal(size=(216, 10)) * 0.1,
        "last": np.zeros(10),
    }
    p = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), p)
    x = jnp.asarray(draw.random((937, 64, 28, 28), np.float32))
    y = jnp.asarray(draw.integers(0, 10, (937, 64)))
    jax.block_until_ready(epoch(p, x, y))
    times: list[float] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < max(seconds, 1.0) or not times:
        start = time.perf_counter()
        jax.block_until_ready(epoch(p, x, y))
        times.append(time.perf_counter() - start)
    return min(times)
