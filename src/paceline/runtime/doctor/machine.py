"""What of this machine alone matters to a run."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from paceline.algorithms.cluster.launchers import HEAD_PORT
from paceline.errors import JobError
from paceline.instruction_sets import processor_flags
from paceline.runtime.doctor import Finding, Grade
from paceline.runtime.links.tcp.address import Interface, interfaces
from paceline.version import __version__

LEAST_MTU = 1280  # of IPv6, which every network carries
LEAST_FREE = 2 << 30  # bytes for the runs of a day or so
ABILITIES = {"avx512f": "AVX-512", "avx2": "AVX2", "amx_tile": "AMX", "asimd": "NEON", "sve": "SVE"}


def examine(runs: Path) -> Iterator[Finding]:
    """Yield what there is to say of this machine; `runs` is where runs are stored."""
    yield network(interfaces())
    yield own_name(socket.gethostname())
    yield port()
    yield cores()
    yield abilities()
    yield versions()
    yield compiler()
    yield disk(runs)


def network(found: list[Interface]) -> Finding:
    """The interfaces that there are, and which one runs use."""
    if not found:
        remedy = "connect a cable or a Wi-Fi; other machines cannot be reached, and runs on this one work"
        return Finding("network", Grade.NOTE, "only loopback is up", remedy)
    listed = ", ".join(f"{each.name} {each.host} ({each.kind}, MTU {each.mtu})" for each in found)
    text = f"{listed}; runs use {found[0].host}"
    small = [each.name for each in found if 0 < each.mtu < LEAST_MTU]
    if small:
        remedy = f"ip link set {small[0]} mtu {LEAST_MTU}, or more"
        return Finding("network", Grade.NOTE, f"{text}; packets of {small[0]} are very small", remedy)
    if len(found) > 1:
        return Finding("network", Grade.GOOD, f"{text}; --address chooses another one")
    return Finding("network", Grade.GOOD, text)


def own_name(name: str) -> Finding:
    """Whether this machine's name means an address by which others reach it."""
    try:
        hosts = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None, socket.AF_INET)}
    except OSError:
        remedy = f"echo '{_usual()} {name}' >> /etc/hosts, as root"
        return Finding("name", Grade.NOTE, f"{name} means no address", remedy)
    if all(host.startswith("127.") for host in hosts):
        return Finding(
            "name",
            Grade.NOTE,
            f"{name} means {', '.join(sorted(hosts))} here, which other machines cannot reach: torchrun and gloo would "
            "tell them that; Paceline does not use it",
            f"in /etc/hosts let {name} be {_usual()} instead of 127.0.1.1",
        )
    return Finding("name", Grade.GOOD, f"{name} means {', '.join(sorted(hosts))}")


def _usual() -> str:
    networks = interfaces()
    return networks[0].host if networks else "192.168.1.2"


def port() -> Finding:
    """Whether the port is free at which machines join."""
    try:
        socket.create_server(("", HEAD_PORT)).close()
    except OSError as error:
        text = f"{HEAD_PORT} is in use ({os.strerror(error.errno or 0)}): a run that is open takes another one"
        return Finding("port", Grade.NOTE, text, "end the other run, or open the port that the new one shows")
    return Finding("port", Grade.GOOD, f"{HEAD_PORT} is free")


def cores() -> Finding:
    """How many cores this process may use, and how many there are."""
    usable, total = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    share = _quota()
    text = f"{usable} of {total} cores may be used"
    if (threads := os.environ.get("OMP_NUM_THREADS", "")).isdecimal() and 0 < int(threads) < usable:
        return Finding("cores", Grade.NOTE, f"{text}, and OMP_NUM_THREADS={threads}", "unset OMP_NUM_THREADS")
    if share is not None and share < usable:
        remedy = "give the container more (docker run --cpus), or start fewer workers"
        return Finding("cores", Grade.NOTE, f"{text}, for {share:.1f} seconds of each second", remedy)
    if usable < total:
        return Finding("cores", Grade.NOTE, text, "start the command without taskset, or give the job more cores")
    return Finding("cores", Grade.GOOD, text)


def _quota() -> float | None:
    """Return the cores' worth of time that a control group leaves this process; None for no limit."""
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    return None


def abilities() -> Finding:
    """The vector instructions that this processor has."""
    flags = processor_flags()
    names = [name for flag, name in ABILITIES.items() if flag in flags]
    if not names:
        text = f"{platform.machine()}, without vector instructions that are known here"
        return Finding("processor", Grade.NOTE, text, "a run works, and is slow; in a virtual machine pass the CPU on")
    return Finding("processor", Grade.GOOD, f"{platform.machine()} with {', '.join(names)}")


def versions() -> Finding:
    """The versions that all machines of a run must share."""
    installed = f"Python {platform.python_version()}, Paceline {__version__}"
    try:
        return Finding("versions", Grade.GOOD, f"{installed}, PyTorch {version('torch')}; all machines need the same")
    except PackageNotFoundError:
        return Finding("versions", Grade.FAULT, f"{installed}, no PyTorch", "pip install 'paceline[train]'")


def compiler() -> Finding:
    """The compiler that there is for compute="fused"."""
    try:
        from paceline.kernels.build import compiler as best

        return Finding("compiler", Grade.GOOD, str(best()))
    except ModuleNotFoundError as error:
        return Finding("compiler", Grade.NOTE, f"not looked for, as {error.name} is missing", "see versions")
    except JobError:
        text = "no C++ compiler; a run works, by PyTorch alone (compute='autograd')"
        return Finding("compiler", Grade.NOTE, text, "apt install g++, or pip install ziglang")


def disk(runs: Path) -> Finding:
    """Whether runs and their checkpoints can be written, and how much there is room for."""
    place = next(folder for folder in (runs.absolute(), *runs.absolute().parents) if folder.is_dir())
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".paceline-") as file:
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        text = f"runs and checkpoints cannot be written to {place}: {error.strerror}"
        return Finding("disk", Grade.FAULT, text, "name another folder by --runs, or PACELINE_RUNS")
    free = shutil.disk_usage(place).free
    text = f"checkpoints can be written to {runs}, with {free / 1e9:.1f} GB free"
    if free < LEAST_FREE:
        return Finding("disk", Grade.NOTE, text, "make room, or name another folder by --runs, or PACELINE_RUNS")
    return Finding("disk", Grade.GOOD, text)
