"""An asynchronous parameter server of Ray actors, as Ray's documentation teaches it: prints samples per second.

Arguments: hidden units, seconds.
"""

import os
import sys
import time
from typing import Any

import ray
import torch
from torch import nn

BATCH = 100


@ray.remote(num_cpus=0)
class Server:
    def __init__(self) -> None:
        from job import SGD, job

        self.model = job.make_model()
        self.optimizer = SGD(self.model.parameters())

    def push(self, gradients: list[Any]) -> list[Any]:
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.grad = torch.from_numpy(gradient.copy())
        self.optimizer.step()
        return self.pull()

    def pull(self) -> list[Any]:
        return [parameter.detach().numpy().copy() for parameter in self.model.parameters()]


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self) -> None:
        from job import job

        torch.set_num_threads(1)
        self.model, (self.x, self.y) = job.make_model(), job.data

    def train(self, server: Any, seconds: float) -> tuple[int, float]:
        weights, loss = ray.get(server.pull.remote()), nn.CrossEntropyLoss()
        order, steps, begun = torch.randperm(len(self.x)), 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            for parameter, value in zip(self.model.parameters(), weights, strict=True):
                parameter.data.copy_(torch.from_numpy(value.copy()))
            at = steps * BATCH % (len(self.x) - BATCH)
            which = order[at : at + BATCH]
            self.model.zero_grad()
            loss(self.model(self.x[which]), self.y[which]).backward()
            weights = ray.get(server.push.remote([p.grad.numpy() for p in self.model.parameters()]))
            steps += 1
        return steps, time.perf_counter() - begun


if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))
    paths = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"env_vars": {"HIDDEN": sys.argv[1], "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}}
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=settings)
    server, workers = Server.remote(), [Worker.remote() for _ in range(2)]
    ray.get([worker.train.remote(server, 1.0) for worker in workers])
    found = ray.get([worker.train.remote(server, float(sys.argv[2])) for worker in workers])
    print(sum(steps * BATCH / took for steps, took in found))
