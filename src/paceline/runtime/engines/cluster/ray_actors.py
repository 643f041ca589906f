"""The actors in which agents run: they are started on machines that answer, and ended."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.runtime.engines.cluster.ray_session import package
from paceline.runtime.engines.ray_actor import Machine, RayAgent

ANSWER = 0.3  # seconds in which a machine that is well accepts a connection


@dataclass(frozen=True, eq=False)
class RayActor:
    """An actor that was started, here or not yet."""

    handle: Any
    #: What it will say of its machine.
    where: Any

    @property
    def machine(self) -> Machine | None:
        """Its machine, if it has said it."""
        ray = package()
        try:
            ready, _ = ray.wait([self.where], timeout=0)
            return ray.get(self.where) if ready else None
        except ray.exceptions.RayError:
            return None  # it has ended before


class RayActors:
    """Starts and ends actors, each with so many CPUs and GPUs."""

    def __init__(self, cpus: int, gpus: int) -> None:
        self._needs = {"num_cpus": cpus, "num_gpus": gpus}
        self._all: list[Any] = []

    def start(self, avoid: Collection[Machine] = ()) -> RayActor:
        """Start an actor on none of these machines.

        Ray places actors on a machine that has ended until it notices, after some 15 seconds, and they wait there.
        """
        names = ", ".join(machine.name for machine in avoid)
        labels = {"label_selector": {"ray.io/node-id": f"!in({names})"}} if avoid else {}
        options = {**self._needs, **labels, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        handle = package().remote(RayAgent).options(**options).remote()
        self._all.append(handle)
        return RayActor(handle, handle.machine.remote())

    def end(self, actors: Sequence[RayActor] | None = None) -> threading.Thread:
        """End these actors, or all of them, in a thread, since Ray may wait for a machine that has ended."""
        handles = [each.handle for each in actors] if actors is not None else list(self._all)
        thread = threading.Thread(target=_kill, args=(handles,), name="paceline-ray-kill", daemon=True)
        thread.start()
        return thread


def _kill(handles: Sequence[Any]) -> None:
    for handle in handles:
        with contextlib.suppress(Exception):
            package().kill(handle, no_restart=True)


def has_ended(machine: Machine) -> bool:
    """Whether nothing listens any longer where the raylet of a machine did."""
    try:
        socket.create_connection((machine.host, machine.port), ANSWER).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False  # it may only be slow
    return False


def answers(machine: Machine) -> bool:
    """Whether the raylet of a machine accepts a connection."""
    try:
        socket.create_connection((machine.host, machine.port), ANSWER).close()
    except OSError:
        return False
    return True
