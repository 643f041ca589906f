"""A job of Paceline's, trained by the plan that PLAN names: the time of a long training less that of a short one."""

import json
import os
import time
from pathlib import Path

from common import BATCH, SGD, UPDATES, network, samples
from torch import nn

import paceline

plan = os.environ["PLAN"]
batch = BATCH * paceline.Plan.parse(plan, workers=2).parts  # a synchronous plan divides its batch
job = paceline.Job(network, samples(), nn.CrossEntropyLoss(), optimizer=SGD, batch_size=batch, epochs=10**6)


def seconds(updates: int) -> float:
    began = time.perf_counter()
    paceline.train(job, plan, workers=2, folder=None, max_updates=updates, compute=os.environ.get("COMPUTE"))
    return time.perf_counter() - began


updates = UPDATES * 2 * BATCH // batch  # as many samples as the others
few = updates // 5
seconds(few)  # starts the process that workers are forked from
each = (seconds(updates) - seconds(few)) / (updates - few)
Path(os.environ["FOUND"]).write_text(json.dumps(each * 2 * BATCH / batch))
