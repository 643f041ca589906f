"""A process that runs one leg after another, from its start to its end."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import torch

from paceline.engines.local.process_main import become_worker
from paceline.gradients.pickling import unpack
from paceline.links.memory import SharedTensors
from paceline.tuner.trials import Terms, run_leg


def main(number: int, pipe: Connection, threads: int, terms: Terms, packed: list[bytes], shared: SharedTensors) -> None:
    """Take legs from the pipe until it closes. Never returns."""
    become_worker(False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    torch.set_num_threads(threads)

    def report(step: int, value: float) -> bool:
        pipe.send(("report", step, value))
        return bool(pipe.recv())

    try:
        begin = time.perf_counter()
        objective: Any = unpack(packed.pop(), shared.open())
        pipe.send(("ready", time.perf_counter() - begin))
        while True:
            assignment = pipe.recv()
            pipe.send(("end", run_leg(objective, assignment, terms, report, number)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the tuner has closed the pipe
    except (pickle.PickleError, ImportError, AttributeError) as error:
        pipe.send(("unusable", f"{type(error).__name__}: {error}"))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
