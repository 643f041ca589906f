"""A machine joins a run by a code: two hosts with empty home folders, what goes wrong, and an attacker.

    python benchmarks/joining/run.py [--seconds 60] [--only join,messages,attack]

Needs the right to make network namespaces, and `paceline[pair]`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.interfaces.testing.survival.hosts import Host, hosts
from paceline.runtime.links.pairing.code import WORDS
from paceline.runtime.runs.trace import Kind, Trace

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))
from harness import write  # noqa: E402

PATIENCE = 120.0
#: A job of 55 thousand parameters with a module and a file beside it, and steps of some milliseconds.
JOB = """
import os, time
from pathlib import Path

import torch

import paceline
from network import Network

torch.manual_seed(1)
x, y = torch.randn(3000, 784), torch.randint(10, (3000,))


def step(model, batch):
    time.sleep({pause})
    Path(os.environ["HOME"], f"computes-{{os.getpid()}}").touch()
    weight = float(open("data/weight.txt").read())
    return weight * torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


job = paceline.Job(
    model=Network, data=(x, y), step=step, optimizer=lambda p: torch.optim.SGD(p, lr=0.01), batch_size=20,
    epochs={epochs},
)
"""
NETWORK = """
from torch import nn


class Network(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
"""
#: Lets this Python believe that Paceline is another version.
OTHER_VERSION = "import paceline.version\npaceline.version.__version__ = '0.0.9'\n"


@dataclass
class Person:
    """A machine with an empty home folder."""

    host: Host
    home: Path
    name: str

    def start(self, *words: str, **environment: str) -> Command:
        program = [sys.executable, "-m", "paceline", *words]
        inner = ["ip", "netns", "exec", self.host.name, "unshare", "--uts", "sh", "-c"]
        script = f'hostname {self.name} && exec "$@"'
        out = self.home / "screen.txt"
        paths = [*([environment.pop("FIRST")] if "FIRST" in environment else []), *sys.path]
        kept = {key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH") if key in os.environ}
        with out.open("w") as screen:
            process = subprocess.Popen(
                [*inner, script, "sh", *program],
                cwd=self.home,
                env={**kept, "HOME": str(self.home), "PYTHONPATH": os.pathsep.join(paths), **environment},
                stdin=subprocess.PIPE,
                stdout=screen,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        return Command(process, out)


@dataclass
class Command:
    """A command under way."""

    process: subprocess.Popen[str]
    out: Path

    @property
    def screen(self) -> str:
        return self.out.read_text()

    def shows(self, pattern: str) -> re.Match[str]:
        """Wait until the screen shows something."""
        until = time.monotonic() + PATIENCE
        while (found := re.search(pattern, self.screen)) is None:
            assert self.process.poll() is None or re.search(pattern, self.screen), self.screen
            assert time.monotonic() < until, self.screen
            time.sleep(0.02)
        return found

    def answer(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self) -> str:
        self.process.wait(PATIENCE)
        return self.screen

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def people(pause: float, epochs: int) -> Iterator[tuple[Person, Person]]:
    """Two machines; alice has a job."""
    with tempfile.TemporaryDirectory(prefix="pl-join-") as folder, hosts(2, "pljoin") as (a, b):
        homes = [Path(folder, name) for name in ("alice", "bob")]
        for home in homes:
            home.mkdir()
        (homes[0] / "job.py").write_text(JOB.format(pause=pause, epochs=epochs))
        (homes[0] / "network.py").write_text(NETWORK)
        (homes[0] / "data").mkdir()
        (homes[0] / "data" / "weight.txt").write_text("1.0")
        yield Person(a, homes[0], "alice"), Person(b, homes[1], "bob")


@contextmanager
def opened(alice: Person, *words: str, **environment: str) -> Iterator[tuple[Command, str, str]]:
    """A run of alice's that is open: the command, where to join, and the code."""
    command = alice.start("train", "job.py", "--plan", "downpour", "--open", "--quiet", *words, **environment)
    try:
        found = command.shows(r"or: paceline join (\S+) (\S+)")
        yield command, found[1], found[2]
    finally:
        command.stop()
        shutil.rmtree(alice.home / "runs", ignore_errors=True)


def sent(host: Host) -> int:
    """Return the bytes that a host has sent."""
    listed = subprocess.run(
        ["ip", "netns", "exec", host.name, "cat", f"/sys/class/net/{host.name}i/statistics/tx_bytes"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return int(listed.stdout)


def joining(seconds: float) -> dict[str, object]:
    """Time from `paceline join` until the second machine's first push, and what was sent until then."""
    with people(0.01, 8) as (alice, bob), opened(alice) as (first, where, code):
        before, start = sent(alice.host), time.time()
        second = bob.start("join", where, code)
        try:
            second.shows("as you\\?")
            asked = time.time() - start
            second.answer("y")
            second.shows("joined the run")
            received, travelled = time.time() - start, sent(alice.host) - before
            (run,) = (alice.home / "runs").iterdir()
            until, workers = time.monotonic() + PATIENCE, list[Path]()
            while not workers and time.monotonic() < until:
                time.sleep(0.02)
                workers = [
                    each for each in bob.home.glob("computes-*") if each.name != f"computes-{second.process.pid}"
                ]
            computed = time.time() - start
            other, mine = second.end(), first.end()
        finally:
            second.stop()
        rows = Trace.open(run / "trace.arrow").rows
        of_bob = rows[(rows["kind"] == Kind.COMPUTE) & (rows["worker"] == 1)]
        return {
            "asked_seconds": asked,
            "received_seconds": received,
            "computes_seconds": computed,
            "travelled_bytes": travelled,
            "batches_of_bob": len(of_bob),
            "batches": int((rows["kind"] == Kind.APPLY).sum()),
            "alice": mine,
            "bob": other,
        }


def messages() -> dict[str, str]:
    """Return what each person reads when something is wrong."""
    said: dict[str, str] = {}

    def record(name: str, bob: Person, *words: str, answer: str = "", **environment: str) -> None:
        command = bob.start("join", *words, **environment)
        try:
            if answer:
                command.shows("as you\\?")
                command.answer(answer)
            said[name] = command.end().strip()
        finally:
            command.stop()

    with people(0.02, 400) as (alice, bob):
        with opened(alice) as (first, where, code):
            record("another version", bob, where, code, "-y", FIRST=_shadow(bob, "sitecustomize.py", OTHER_VERSION))
            record("the person says no", bob, where, code, answer="n")
            second = bob.start("join", where, code, "-y")
            try:
                second.shows("joined the run")
                record("a code that was used", bob, where, code)
            finally:
                second.stop()
            following = first.shows(r"the next machine: paceline join (\S+)")[1]
            number = following.split("-")[0]
            for guess in range(10):
                words = f"{number}-{WORDS[guess]}-{WORDS[guess]}"
                record(f"wrong code {guess + 1}", bob, where, words)
            said["alice, after wrong codes"] = first.screen
        package = alice.home / "installed"
        (package / "widgets-2.1.dist-info").mkdir(parents=True)
        (package / "widgets.py").write_text("")
        (package / "widgets-2.1.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: widgets\nVersion: 2.1\n"
        )
        (package / "widgets-2.1.dist-info" / "top_level.txt").write_text("widgets\n")
        (package / "widgets-2.1.dist-info" / "RECORD").write_text("widgets.py,,\n")
        job = alice.home / "job.py"
        job.write_text("import widgets\n" + job.read_text())
        with opened(alice, FIRST=str(package)) as (_, where, code):
            record("a package that is missing", bob, where, code, "-y")
        job.write_text(job.read_text().replace("import widgets\n", ""))
        with opened(alice) as (_, where, code):
            _ip("-n", alice.host.name, "route", "add", "blackhole", f"{bob.host.address}/32")
            record("a firewall that drops", bob, where, code)
            _ip("-n", alice.host.name, "route", "del", "blackhole", f"{bob.host.address}/32")
        _ip("-n", alice.host.name, "addr", "add", "10.99.0.1/24", "dev", "lo")
        with opened(alice, "--address", "10.99.0.1") as (_, where, code):
            record("a wrong interface", bob, f"{alice.host.address}:{where.rpartition(':')[2]}", code, "-y")
    return said


def _shadow(person: Person, name: str, text: str) -> str:
    folder = person.home / "shadow"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return str(folder)


ATTACK = """
import socket, sys, threading, time
from paceline.errors import PacelineError
from paceline.runtime.links.pairing.code import WORDS, Code
from paceline.runtime.links.pairing.exchange import visit
from paceline.runtime.links.tcp.address import Address
where, number, until = Address.parse(sys.argv[1]), int(sys.argv[2]), time.monotonic() + float(sys.argv[3])
answers, opened = {}, [0, 0]
def guess(first):
    n = first
    while time.monotonic() < until:
        n += 1
        try:
            with visit(where, Code(number, WORDS[n % 500] + "-" + WORDS[n * 7 % 500])):
                answers["let in"] = answers.get("let in", 0) + 1
        except PacelineError as error:
            word = str(error).rpartition(": ")[2][:40] if "wrong" not in str(error) else "wrong"
            answers[word] = answers.get(word, 0) + 1
        opened[0] += 1
def knock():
    while time.monotonic() < until:
        try:
            socket.create_connection(where, 1).close()
        except OSError:
            time.sleep(0.001)
        opened[1] += 1
for each in [threading.Thread(target=guess, args=(100 * n,)) for n in range(2)] + [threading.Thread(target=knock)]:
    each.start()
for each in threading.enumerate():
    if each is not threading.current_thread(): each.join()
print(opened, answers)
"""


def attack(seconds: float) -> dict[str, object]:
    """The batches of a run in the time before an attack and during it, and what the attacker comes to."""
    with people(0.005, 100_000) as (alice, bob), opened(alice) as (first, where, code):
        (run,) = (alice.home / "runs").iterdir()
        time.sleep(5.0)

        def batches(for_seconds: float, meanwhile: Callable[[], object] = lambda: None) -> float:
            before, start = _pushed(run), time.monotonic()
            meanwhile()
            time.sleep(max(0.0, start + for_seconds - time.monotonic()))
            return (_pushed(run) - before) / (time.monotonic() - start)

        alone = batches(seconds)
        said = ""

        def attacks() -> None:
            nonlocal said
            program = [sys.executable, "-c", ATTACK, where, code.split("-")[0], str(seconds)]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            said = subprocess.run(
                ["ip", "netns", "exec", bob.host.name, *program], env=environment, capture_output=True, text=True
            ).stdout

        attacked = batches(seconds, attacks)
        after = batches(seconds)
        return {"alone": alone, "attacked": attacked, "after": after, "attacker": said.strip(), "alice": first.screen}


def _pushed(run: Path) -> int:
    import json

    return int(json.loads((run / "live.json").read_text()).get("updates", 0))


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


PARTS: Mapping[str, Callable[[float], object]] = {
    "join": joining, "messages": lambda _: messages(), "attack": attack,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the attack, and of the run before and after it")
    parser.add_argument("--only", default=",".join(PARTS))
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # so that no host is left
    results = {name: PARTS[name](options.seconds) for name in options.only.split(",")}
    for name, result in results.items():
        print(f"== {name}")
        for key, value in result.items():  # type: ignore[attr-defined]
            print(f"-- {key}: {value}")
    write(results, folder=FOLDER)


if __name__ == "__main__":
    main()
