"""The actors in which agents run: they are started on machines that answer, and ended."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.engines.cluster.ray_session import package
from paceline.engines.ray_actor import Machine, RayAgent

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
    """Starts and ends actors, each with so many CPUs and GPUs.

    A spare one has imported PyTorch, and waits: importing takes two processes 2.5 s of CPU time each.
    """

    def __init__(self, cpus: int, gpus: int) -> None:
        self._needs = {"CPU": cpus, "GPU": gpus}
        self._all: list[Any] = []
        self._spare: RayActor | None = None

    def start(self, avoid: Collection[Machine] = ()) -> RayActor:
        """Start an actor on none of these machines.

        Ray places actors on a machine that has ended until it notices, after some 15 seconds, and they wait there.
        """
        needs = {"num_cpus": self._needs["CPU"], "num_gpus": self._needs["GPU"]}
        names = ", ".join(machine.name for machine in avoid)
        labels = {"label_selector": {"ray.io/node-id": f"!in({names})"}} if avoid else {}
        agent = package().remote(RayAgent).options(**needs, **labels, scheduling_strategy="SPREAD", max_restarts=0)
        handle = agent.remote()
        self._all.append(handle)
        return RayActor(handle, handle.machine.remote())

    def start_spare(self) -> None:
        """Start a spare actor if the cluster has room for it, in a thread, since Ray's head may not answer."""
        threading.Thread(target=self._start_spare, name="paceline-ray-spare", daemon=True).start()

    def _start_spare(self) -> None:
        with contextlib.suppress(Exception):
            free = package().available_resources()
            if self._spare is None and all(free.get(name, 0) >= count for name, count in self._needs.items()):
                self._spare = self.start()
                self._spare.handle.warm.remote()

    def take_spare(self) -> RayActor | None:
        """Return the spare actor if it has started, on a machine that answers."""
        spare = self._spare
        if spare is None or spare.machine is None or not answers(spare.machine):
            return None
        self._spare = None
        return spare

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


def answers(machine: Machine) -> bool:
    """Whether the raylet of a machine accepts a connection."""
    try:
        socket.create_connection((machine.host, machine.port), ANSWER).close()
    except OSError:
        return False
    return True
