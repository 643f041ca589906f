"""The best that PyTorch and JAX do with the same network on the same data: over threads and modes, data in memory,
shuffled once per epoch, nothing read back on the way.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from paceline.kernels.measure.networks import RATE, Network


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
