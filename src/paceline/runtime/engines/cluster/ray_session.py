"""This process's connection to Ray: a cluster of its own, or one that the user names. Nothing else here imports Ray.

A cluster of its own is started by `ray.init(address="local")` whatever RAY_ADDRESS says or runs on this machine, has a
token of its own, keeps its files in a folder of its own, and ends with the run. A cluster that others have started is
joined only if the user names it, and only if its head asks for a token: Ray runs whatever code it is sent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import MachineError, SecurityError, UsageError
from paceline.runtime.engines.cluster.ray_watch import RayWatch
from paceline.runtime.engines.ray_actor import Machine, this_machine
from paceline.runtime.engines.workers.process import short_folder
from paceline.runtime.links.tcp.address import Address, is_loopback

AUTO = "auto"
MIB = 1 << 20
REACH_SECONDS = 5.0  # for the head of Ray to accept a connection
PROBE_SECONDS = 120.0  # for a connection without a token to be accepted or refused
PATIENCE = 10.0  # seconds that Ray may take to shut down
LOOPBACK_HOST = "127.0.0.1"
#: Environment variables that let a process in.
CREDENTIALS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@dataclass(frozen=True)
class RaySession:
    """A connection to a cluster of Ray."""

    #: Where the head of Ray listens.
    head: Address
    #: Whether the cluster is this process's own, on this machine alone.
    own: bool
    #: This machine's address, as other nodes of the cluster see it.
    host: str
    #: Sees whether the head of Ray can be reached.
    watch: RayWatch
    #: This machine. Ray ends the process at its next call if its raylet has ended.
    machine: Machine


def package() -> Any:
    """Return the module ray, within a session."""
    import ray

    return ray


@contextlib.contextmanager
def session(address: str | None, cpus: int, job_bytes: int) -> Iterator[RaySession]:
    """Connect to Ray for as long as the block lasts.

    `cpus` and `job_bytes` are what a cluster of its own has to offer.

    Raises:
        UsageError: Ray is not installed, or there is no cluster at the address.
        SecurityError: the cluster accepts unauthenticated connections.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise UsageError("engine='ray' needs Ray: `pip install 'paceline[ray]'`") from error
    if ray.is_initialized():
        with _connected(ray, own=False) as where:
            _require_this(where.head, address)
            refuse_open(where.head)
            yield where
        return
    with _unprinted(), _own(ray, cpus, job_bytes) if address is None else _joined(ray, address) as where:
        yield where


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what Ray warns of to itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _unprinted() -> Iterator[None]:
    """Keep from standard output, where a result belongs, what Ray prints there of processes that have died."""
    import ray._private.worker

    module: Any = ray._private.worker
    printed = module.print_to_stdstream
    module.print_to_stdstream = lambda data, ignore_prefix=False: None
    try:
        yield
    finally:
        module.print_to_stdstream = printed


@contextlib.contextmanager
def _connected(ray: Any, own: bool) -> Iterator[RaySession]:
    """Watch the head of the cluster that this process is connected to."""
    head = Address.parse(ray.get_runtime_context().gcs_address)
    watch = RayWatch(head)
    try:
        yield RaySession(head, own, LOOPBACK_HOST if own else ray.util.get_node_ip_address(), watch, this_machine())
    finally:
        watch.close()


def _require_this(head: Address, address: str | None) -> None:
    """Raise UsageError unless the user names the cluster that the program is connected to."""
    if address is None:
        raise UsageError(
            f"this process is connected to the Ray cluster at {head} already: give address='auto' to train there, or "
            "call ray.shutdown() first to train on a cluster that is started for the run alone"
        )
    if address != AUTO and _resolved(Address.parse(address)) != _resolved(head):
        raise UsageError(f"this process is connected to the Ray cluster at {head}, and {address} is another one")


def _resolved(address: Address) -> tuple[str, int]:
    try:
        host = socket.gethostbyname(address.host)
    except OSError:
        host = address.host
    return host, address.port


@contextlib.contextmanager
def _joined(ray: Any, address: str) -> Iterator[RaySession]:
    """Connect to a cluster that others have started, and leave it."""
    _join(ray, address)
    try:
        with _connected(ray, own=False) as where:
            refuse_open(where.head)
            yield where
    finally:
        shut_down(ray)


def _join(ray: Any, address: str) -> None:
    advice = (
        "Give --address the HOST:PORT that `ray start --head` printed, on a machine that is a node of that cluster; "
        "without --address a cluster is started for the run alone, on this machine"
    )
    if address.startswith("ray://"):
        raise UsageError(f"{address} is for clients of Ray, and the head must be a node of the cluster. {advice}")
    if address != AUTO:
        where = Address.parse(address)
        try:
            socket.create_connection(where, REACH_SECONDS).close()
        except OSError as error:
            raise UsageError(f"there is no Ray cluster at {where}: {error.strerror or error}. {advice}") from error
    try:
        with _quiet():
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except ray.exceptions.AuthenticationError as error:
        raise SecurityError(
            f"the Ray cluster at {address} asks for a token, and this process has another one or none: set "
            "RAY_AUTH_MODE=token, and copy ~/.ray/auth_token from its head"
        ) from error
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        shut_down(ray)
        first = str(error).strip().splitlines()[0]
        raise UsageError(f"the Ray cluster at {address} cannot be joined: {first}. {advice}") from error


# a cluster of its own.


@contextlib.contextmanager
def _own(ray: Any, cpus: int, job_bytes: int) -> Iterator[RaySession]:
    token = secrets.token_hex(32)
    with (
        tempfile.TemporaryDirectory(prefix="paceline-ray-", dir=short_folder(), ignore_cleanup_errors=True) as folder,
        _environment({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}),
    ):
        try:
            _start(ray, cpus, job_bytes, folder)
            with _connected(ray, own=True) as where:
                try:
                    yield where
                finally:
                    if where.watch.lost_since is not None:  # then Ray would wait for its head
                        _end_processes(folder)
        finally:
            shut_down(ray)
            _end_processes(folder)


def _start(ray: Any, cpus: int, job_bytes: int, folder: str) -> None:
    """Start a cluster on this machine, at the second attempt if it is too busy for Ray's own deadline of 30 s."""
    for attempt in range(2):
        try:
            with _quiet():
                ray.init(
                    address="local",
                    num_cpus=max(cpus, os.cpu_count() or 1),
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.CRITICAL,
                    _temp_dir=folder,
                    object_store_memory=128 * MIB + 2 * job_bytes,
                )
            return
        except Exception as error:  # Ray has no class for it
            shut_down(ray)
            _end_processes(folder)
            if attempt:
                why = str(error).strip().splitlines()[0]
                raise MachineError(f"Ray cannot start on this machine: {why} See whether `ray.init()` can") from error


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables that Ray reads within the block, in this process and in those that it starts."""
    before = {name: os.environ.get(name) for name in (*variables, "RAY_AUTH_TOKEN_PATH")}
    os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
    os.environ.update(variables)
    _read_environment_again()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        _read_environment_again()


def _read_environment_again() -> None:
    """Ray has read the mode and the token once, when it was imported or connected last."""
    with contextlib.suppress(ImportError, AttributeError):
        import ray

        compiled: Any = ray._raylet
        compiled.Config.initialize("")
        compiled.AuthenticationTokenLoader.instance().reset_cache()


def shut_down(ray: Any) -> None:
    """Disconnect from Ray, which waits for its head; if that is gone, not for long."""
    thread = threading.Thread(target=ray.shutdown, name="paceline-ray-shutdown", daemon=True)
    thread.start()
    thread.join(PATIENCE)


def _end_processes(folder: str) -> None:
    """End the processes of a cluster of this process's own that still run."""
    end = time.monotonic() + PATIENCE
    while (pids := _processes(folder)) and time.monotonic() < end:
        for process in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


def _processes(folder: str) -> list[int]:
    """Return the processes of a cluster: their command names its folder, or Ray has renamed it and they log there."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            mine = folder.encode() in command or (command.startswith(b"ray::") and _holds(entry / "fd", folder))
            if mine and int(entry.name) != os.getpid():
                pids.append(int(entry.name))
    return pids


def _holds(files: Path, folder: str) -> bool:
    """Whether a process has a file of a folder open."""
    return any(os.readlink(file).startswith(os.path.realpath(folder)) for file in files.iterdir())


# unauthenticated access.


def refuse_open(head: Address) -> None:
    """Raise SecurityError if a process without a token may connect to the head of Ray from another machine."""
    if is_loopback(head.host) or not accepts_anyone(head):
        return
    raise SecurityError(
        f"the Ray cluster at {head} asks no one for a token, so anyone who reaches that port may run any code on its "
        "machines. Start it with one: `ray get-auth-token --generate`, copy ~/.ray/auth_token to every machine, and "
        "set RAY_AUTH_MODE=token for every `ray start` and for this command"
    )


def accepts_anyone(head: Address) -> bool:
    """Whether the head of Ray accepts a process that shows no token: one is sent there."""
    program = (
        "import logging, os, sys, ray\n"
        "ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)\n"
        "os._exit(77)"
    )
    environment = {key: value for key, value in os.environ.items() if key not in (*CREDENTIALS, "RAY_ADDRESS")}
    environment |= {"RAY_AUTH_MODE": "disabled"}
    try:
        ended = subprocess.run(
            [sys.executable, "-c", program, str(head)],
            env=environment,
            timeout=PROBE_SECONDS,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return False  # it was not let in
    return ended.returncode == 77
