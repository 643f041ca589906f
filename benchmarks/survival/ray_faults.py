"""Faults of Ray itself on real runs: the raylet of a node is killed, or the head of the cluster.

    python benchmarks/survival/ray_faults.py --fault raylet         adds a line to ray.jsonl
    python benchmarks/survival/ray_faults.py --fault head
    python benchmarks/survival/ray_faults.py --table                what was done so far, in result-ray.json

A call starts a cluster of its own on loopback: a head without CPUs, and three nodes with one CPU each, of which a run
of two workers leaves one free. With a raylet, Ray ends the agent that it has started. The run has to go on, with a
worker on the node that was free, and to end as it would have. With the head, every process of the run has to end with
exit code 1, and the command that it names has to finish the training.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from paceline.testing.survival.proofs import applied_once, replayed

from paceline.runtime.runs.live import EventKind, ProcessKind, RunEvent, read_events

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from harness import add_line, lines_of, write  # noqa: E402

BATCHES, STEP = 1200, 0.02
JOB = f"""
from paceline.testing.survival.nodes import survival_job

job = survival_job({BATCHES})
"""
PATIENCE = 60.0  # seconds for what the fault leads to
KEEP = os.environ.get("RAY_FAULTS_KEEP")
MARK = "PACELINE_RAY_FAULTS"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


class Cluster:
    """A cluster of Ray on this machine, and one run on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, f"127.0.0.1:{free_port()}"
        paths = os.pathsep.join([str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
        self.environment = {
            **os.environ, MARK: str(folder), "PYTHONPATH": paths, "SURVIVAL_STEP": str(STEP),
            "SURVIVAL_HOLD": str(folder / "hold"), "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }  # fmt: skip
        (folder / "hold").touch()
        (folder / "job.py").write_text(JOB)

    def ray(self, *options: str) -> None:
        """Start a node of Ray, which stays in the foreground of its own process, and wait until it runs."""
        program = [str(Path(sys.executable).with_name("ray")), "start", *options, "--block", "--disable-usage-stats"]
        out = self.folder / f"ray-{len(list(self.folder.glob('ray-*')))}.txt"
        self._start(program, out)
        until(lambda: "Ray runtime started" in out.read_text(), 60.0, "a node of Ray")

    def paceline(self, *options: str) -> subprocess.Popen[bytes]:
        """Start the driver of a run."""
        program = [sys.executable, "-m", "paceline", "train", *options]
        return self._start(program, self.folder / f"driver-{len(list(self.folder.glob('driver-*')))}.txt")

    def _start(self, program: list[str], out: Path) -> subprocess.Popen[bytes]:
        with out.open("wb") as file:
            return subprocess.Popen(program, cwd=self.folder, env=self.environment, stdout=file, stderr=file)

    def processes(self, word: str = "") -> list[psutil.Process]:
        """Return the processes that were started here, directly or by others, whose command has this word."""
        found = []
        for each in psutil.process_iter():
            try:
                ours = each.environ().get(MARK) == str(self.folder) and each.status() != psutil.STATUS_ZOMBIE
                if ours and word in " ".join(each.cmdline()):
                    found.append(each)
            except (psutil.Error, OSError):
                continue
        return found

    @property
    def run(self) -> Path | None:
        return next((self.folder / "runs").glob("*"), None)

    def events(self) -> list[RunEvent]:
        return read_events(self.run) if self.run is not None else []


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Start a cluster; end all of its processes after the block."""
    with tempfile.TemporaryDirectory(prefix="ray-faults-") as folder:
        made = Cluster(Path(folder))
        try:
            shared = ("--num-gpus", "0", "--object-store-memory", "100000000")
            port = made.address.partition(":")[2]
            made.ray("--head", "--port", port, "--node-ip-address", "127.0.0.1", "--num-cpus", "0",
                     "--include-dashboard", "false", "--temp-dir", f"{folder}/t", *shared)  # fmt: skip
            for _ in range(3):
                made.ray("--address", made.address, "--node-ip-address", "127.0.0.1", "--num-cpus", "1", *shared)
            yield made
        except TimeoutError as error:
            said = "\n".join(f"{file.name}: {file.read_text()[-1000:]}" for file in Path(folder).glob("*.txt"))
            raise TimeoutError(f"{error}\n{said}") from error
        finally:
            for each in made.processes():
                each.kill()


def until(done: Callable[[], Any], seconds: float, what: str) -> float:
    """Wait until something is so; return the seconds that it took."""
    begun = time.monotonic()
    while not done():
        if time.monotonic() > begun + seconds:
            raise TimeoutError(f"{what} has not come within {seconds:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - begun


def begun(made: Cluster) -> subprocess.Popen[bytes]:
    """Start a run on the cluster; return its driver when batches are leased."""
    engine = ("--engine", "ray", "--address", made.address, "--trusted-network")
    options = ("job.py", "--plan", "downpour:shards=2", "--workers", "2", "--checkpoint-every", "100")
    driver = made.paceline(*options, *engine)
    until(lambda: any(e.kind is EventKind.LEASING for e in made.events()), 90.0, "the training")
    return driver


def raylet(made: Cluster, chance: random.Random) -> dict[str, Any]:
    """Kill the raylet of a node with an agent, at a moment that chance chooses."""
    driver = begun(made)
    time.sleep(1.0 + chance.random() * 4)
    agent = chance.choice([e for e in made.processes("ray::RayAgent") if e.ppid() != 1])
    pids = {p.pid for p in [agent, *agent.children(recursive=True)]}
    rank = next(e.rank for e in made.events() if e.kind is EventKind.STARTED and e.pid in pids)
    at = time.time()
    os.kill(agent.ppid(), signal.SIGKILL)

    def first(kind: EventKind, process: ProcessKind) -> float | None:
        later = [e.at - at for e in made.events() if e.at > at and (e.kind, e.process, e.rank) == (kind, process, rank)]
        return min(later, default=None)

    until(lambda: first(EventKind.LOST, ProcessKind.AGENT) is not None, PATIENCE, "the notice")
    until(lambda: first(EventKind.STARTED, ProcessKind.WORKER) is not None, PATIENCE, "the replacement")
    (made.folder / "hold").unlink()
    code, run = driver.wait(PATIENCE), made.run
    assert run is not None
    if KEEP:
        shutil.copytree(run, KEEP, dirs_exist_ok=True)
    wrong = [applied_once(run, BATCHES), replayed(run)] if code == 0 else [f"exit code {code}"]
    return {
        "noticed": round(first(EventKind.LOST, ProcessKind.AGENT) or 0.0, 2),
        "replaced": round(first(EventKind.STARTED, ProcessKind.WORKER) or 0.0, 2),
        "wrong": [each for each in wrong if each],
    }  # fmt: skip


def head(made: Cluster, chance: random.Random) -> dict[str, Any]:
    """Kill the head of Ray once there is a checkpoint, at a moment that chance chooses."""
    driver = begun(made)
    until(lambda: made.run and list((made.run / "checkpoints").glob("[0-9]*")), PATIENCE, "a checkpoint")
    time.sleep(chance.random() * 3)
    (gcs,) = made.processes("gcs/gcs_server")
    ours = [driver.pid, *(e.pid for e in made.events() if e.kind is EventKind.STARTED)]
    ours += [each.pid for each in made.processes("ray::RayAgent")]
    gcs.kill()
    at = time.monotonic()
    code = driver.wait(PATIENCE)
    ended = time.monotonic() - at
    until(lambda: not any(_lives(pid) for pid in ours), PATIENCE, "the end of every process")
    everything = time.monotonic() - at
    said = (made.folder / "driver-0.txt").read_text()
    wrong = [] if code == 1 else [f"exit code {code}: {said[-500:]}"]
    named = re.search(r"paceline train (--resume .*?)(?:   \(|$)", said, re.MULTILINE)
    if named is None:
        return {"driver_ended": round(ended, 2), "wrong": [*wrong, f"no command to resume: {said[-500:]}"]}
    (made.folder / "hold").unlink()
    resumed = made.paceline(*shlex.split(named[1])).wait(PATIENCE)
    wrong += [] if resumed == 0 else [f"the resumed run ended with {resumed}"]
    if made.run is not None and not wrong:
        wrong += [each for each in [replayed(made.run)] if each]
    return {"driver_ended": round(ended, 2), "all_ended": round(everything, 2), "resumed": resumed, "wrong": wrong}


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


FAULTS = {"raylet": raylet, "head": head}


def table(file: Path) -> None:
    """Write what was done so far."""
    found = lines_of(file)
    figures: dict[str, Any] = {}
    for fault in FAULTS:
        mine = [each for each in found if each["fault"] == fault]
        names = sorted({name for each in mine for name in each} - {"fault", "seed", "wrong", "load"})
        spread = {name: sorted(each[name] for each in mine if name in each) for name in names}
        figures[fault] = {"count": len(mine), **spread, "wrong": [w for each in mine for w in each["wrong"]]}
        print(f"{fault}: {json.dumps(figures[fault])}")
    write({**figures, "load": sorted(each["load"] for each in found)}, "result-ray.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=tuple(FAULTS))
    parser.add_argument("--seed", type=int, help="default: the number of faults done so far")
    parser.add_argument("--table", action="store_true")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster is ended on the way out
    options, file = parser.parse_args(), HERE / "ray.jsonl"
    if options.fault:
        seed = len(lines_of(file)) if options.seed is None else options.seed
        with cluster() as made:
            found = FAULTS[options.fault](made, random.Random(seed))
        line = {"fault": options.fault, "seed": seed, "load": round(os.getloadavg()[0], 1), **found}
        add_line(file, line)
        print(line)
    if options.table:
        table(file)


if __name__ == "__main__":
    main()
