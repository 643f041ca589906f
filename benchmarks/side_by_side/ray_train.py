"""Ray Train's TorchTrainer with two workers on a cluster of this one machine."""

import os
import tempfile

import ray
import ray.train
import ray.train.torch
import torch
from common import SGD, Batches, Clock, network
from torch import nn


def loop() -> None:
    torch.set_num_threads(1)
    model, loss, clock = ray.train.torch.prepare_model(network()), nn.CrossEntropyLoss(), Clock()
    optimizer = SGD(model.parameters())
    for x, y in Batches():
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
        if ray.train.get_context().get_world_rank() == 0:
            clock.tick()


passed = {name: os.environ[name] for name in ("HIDDEN", "UPDATES", "FOUND", "PYTHONPATH")}
ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": passed}, log_to_driver=False)
with tempfile.TemporaryDirectory() as folder:
    ray.train.torch.TorchTrainer(
        loop,
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(storage_path=folder),
    ).fit()
ray.shutdown()
